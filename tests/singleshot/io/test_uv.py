"""What is installed is what is locked: by uv, from where pip is configured to look."""

import hashlib
import os
import re
import shutil
import sys
import venv
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipelines.cli.doctor import check_packages
from singleshot.io import uv
from singleshot.io.uv import run_uv

ENVIRONMENT = Path(sys.executable).parent
LOCKS = sorted(uv.LOCK_FILE.parent.glob("requirements*.lock"))
ENTRY = re.compile(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n((?:    #.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_versions_by_hash_and_names_no_index(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    header, entries = re.match(r"(?:#.*\n)*", text)[0], ENTRY.findall(text)
    assert text == header + "".join(
        f"{name}=={version}{hashes}\n{origin}" for name, version, hashes, origin in entries
    )
    assert not [version for _, version, _, _ in entries if "+" in version]
    assert {name for name, _, hashes, _ in entries if not hashes} <= {"torch", "torchvision"}


def test_a_version_is_the_same_in_all_locks_of_an_environment() -> None:
    base, *others = (
        {name: version for name, version, _, _ in ENTRY.findall(lock.read_text())}
        for lock in (uv.LOCK_FILE, *LOCKS)
        if lock.stem != "requirements-tensorflow"
    )
    assert len(others) == 4
    for other in others:
        assert {name: version for name, version in other.items() if base.get(name, version) != version} == {}


def test_the_environment_has_the_versions_of_the_lock() -> None:
    finding = check_packages(uv.LOCK_FILE)
    assert finding.state == "ok", finding.found


@pytest.fixture
def pip_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's configuration: an index that has nothing, and a directory of files."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    path, index, files = (tmp_path / name for name in ("pip.conf", "index", "files"))
    index.mkdir()
    files.mkdir()
    path.write_text(f"[global]\nindex-url = {index.as_uri()}\nextra-index-url =\nfind-links = {files}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    return path


@pytest.fixture
def wheel(tmp_path: Path, pip_conf: Path) -> str:
    """The SHA-256 of a package in that directory."""
    return write_wheel(tmp_path / "files", "toy", "1.0", {"toy.py": ""})


def write_wheel(directory: Path, name: str, version: str, files: Mapping[str, str]) -> str:
    """Write a package with these files; its SHA-256."""
    path, about = directory / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(directory: Path, sha256: str) -> bool:
    lock = directory / "toy.lock"
    lock.write_text(f"toy==1.0 \\\n    --hash=sha256:{sha256}\n    # via -r toy.in\n")
    return run_uv(["pip", "install", "--target", str(directory / "target"), "--requirements", str(lock)])


def test_what_pip_would_find_is_installed(tmp_path: Path, wheel: str) -> None:
    assert install(tmp_path, wheel)
    assert (tmp_path / "target" / "toy.py").exists()


def test_a_file_other_than_the_locked_one_is_not_installed(
    tmp_path: Path, wheel: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not install(tmp_path, hashlib.sha256(b"another").hexdigest())
    assert "Hash mismatch" in capfd.readouterr().err
    assert not (tmp_path / "target" / "toy.py").exists()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with pip, and another one beside it."""
    directory = tmp_path_factory.mktemp("environments")
    venv.create(directory / "own", with_pip=True)
    venv.create(directory / "other")
    return directory / "own"


@pytest.fixture
def into(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Have packages installed into that environment; gives the path that a module gets there."""
    monkeypatch.setattr(sys, "executable", str(environment / "bin/python"))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    packages = next((environment / "lib").glob("*/site-packages"))
    for left in [*packages.glob("toy*"), *packages.glob("uv*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    return lambda module: packages / module


@pytest.mark.parametrize(
    "setting",
    [
        {"UV_SYSTEM_PYTHON": "1"},
        {"UV_SYSTEM_PYTHON": "1", "UV_BREAK_SYSTEM_PACKAGES": "1"},
        {"UV_PYTHON": "{other}/bin/python"},
        {"UV_PYTHON": "3"},
        {"UV_PYTHON_PREFERENCE": "only-managed"},
        {"UV_MANAGED_PYTHON": "1"},
        {"UV_NO_MANAGED_PYTHON": "1"},
        {"UV_PYTHON_SEARCH_PATH": "{other}/bin"},
        {"UV_PROJECT_ENVIRONMENT": "{other}"},
        {"UV_PROJECT": "{other}"},
        {"UV_WORKING_DIR": "/"},
        {"UV_WORKING_DIRECTORY": "/"},
        {"UV_REQUIRE_HASHES": "1"},
        {"VIRTUAL_ENV": "{other}"},
        {"CONDA_PREFIX": "{other}", "CONDA_DEFAULT_ENV": "work"},
        {"CONDA_PREFIX": "{other}", "CONDA_DEFAULT_ENV": "base"},
    ],
    ids=lambda setting: ",".join(setting),
)
def test_uv_installs_here_whatever_its_variables_say(
    setting: Mapping[str, str],
    into: Callable[[str], Path],
    tmp_path: Path,
    wheel: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uv, "_fetch", lambda _: None)
    monkeypatch.setattr(uv, "_settings_of_pip", lambda: {"find-links": str(tmp_path / "files")})
    monkeypatch.setattr(uv, "_program", lambda: ENVIRONMENT / "uv")
    monkeypatch.chdir(tmp_path)
    Path("toy.in").write_text("toy==1.0\n", encoding="utf-8")
    other = into("").parents[3] / "other"
    for name, value in setting.items():
        monkeypatch.setenv(name, value.format(other=other))
    assert run_uv(["pip", "install", "--no-index", "--requirements", "toy.in"])
    assert into("toy.py").exists()


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        ("variable", "target = {other}"),
        ("variable", "prefix = {other}"),
        ("variable", "root = {other}"),
        ("variable", "user = true"),
        ("variable", "python = {other}/bin/python"),
        ("variable", "dry-run = true"),
        ("variable", "quiet = 1"),
        ("variable", "platform = win_amd64"),
        ("variable", "requirement = {other}/nothing.txt"),
        ("variable", "no-binary = :all:"),
        ("global", "user = true"),
        ("install", "target = {other}"),
    ],
)
def test_pip_installs_uv_here_whatever_its_settings_say(
    place: str,
    setting: str,
    into: Callable[[str], Path],
    tmp_path: Path,
    pip_conf: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sha256 = write_wheel(tmp_path / "files", "uv", "0.0.1", {"toy_uv.py": ""})
    monkeypatch.setattr(uv, "LOCK_FILE", tmp_path / "requirements.lock")
    uv.LOCK_FILE.write_text(f"uv==0.0.1 \\\n    --hash=sha256:{sha256}\n    # via -r requirements-dev.in\n")
    name, _, value = setting.format(other=into("").parents[3] / "other").partition(" = ")
    if place == "variable":
        monkeypatch.setenv(f"PIP_{name.upper().replace('-', '_')}", value)
    else:
        section = "" if place == "global" else f"[{place}]\n"  # pip's file has the first already
        pip_conf.write_text(
            f"{pip_conf.read_text(encoding='utf-8')}{section}{name} = {value}\n", encoding="utf-8"
        )
    uv._fetch(uv._settings_of_pip())
    assert into("toy_uv.py").exists()


def test_settings_of_pip_reach_uv(pip_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_conf.write_text(
        "[global]\nindex-url = https://a.example/simple\nfind-links =\n    /one\n    /two\ntimeout = 7\n"
        "[install]\nindex-url = https://b.example/simple\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://c.example/simple https://d.example/simple")
    monkeypatch.setenv("PIP_CERT", "/a/certificate.pem")
    assert uv._for_uv(uv._settings_of_pip()) == {
        "UV_DEFAULT_INDEX": "https://b.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "UV_INDEX": "https://c.example/simple https://d.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/a/certificate.pem",
    }


def test_without_an_index_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uv, "LOCK_FILE", tmp_path / "requirements.lock")
    uv.LOCK_FILE.write_text(f"uv==0.0.1 \\\n    --hash=sha256:{64 * '0'}\n    # via -r requirements-dev.in\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["uv", "--version"])
    assert uv.main() == 1
    assert re.fullmatch(
        r"error: uv 0\.0\.1, .*: pip can't fetch it \(.*\); check .*\n", capfd.readouterr().err
    )

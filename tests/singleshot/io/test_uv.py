"""What is installed is what is locked: by uv, from where pip is configured to look."""

import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from pipelines.cli.doctor import check_packages
from singleshot.io import uv
from singleshot.io.uv import run_uv

LOCKS = sorted(uv.LOCK_FILE.parent.glob("requirements*.lock"))
ENTRY = re.compile(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n((?:    #.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_versions_by_hash_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
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
    path = tmp_path / "files" / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy.py", "")
        archive.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        archive.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy-1.0.dist-info/RECORD", "")
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


def test_settings_of_pip_reach_uv(pip_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_conf.write_text(
        "[global]\nindex-url = https://a.example/simple\nfind-links =\n    /one\n    /two\ntimeout = 7\n"
        "[install]\nindex-url = https://b.example/simple\n"
    )
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://c.example/simple https://d.example/simple")
    monkeypatch.setenv("PIP_CERT", "/a/certificate.pem")
    assert uv._settings_of_pip() == {
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

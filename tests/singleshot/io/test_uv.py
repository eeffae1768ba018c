"""What is installed is what is locked: by uv, from where pip is configured to look."""

import os
import re
import sys
import venv
import zipfile

import pytest
from checkouts import ROOT

from singleshot.io import uv
from singleshot.io.uv import run_uv

LOCKS = sorted(ROOT.glob("requirements*.lock"))
ENTRY = re.compile(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n((?:    #.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_versions_by_hash_and_names_no_index(lock):
    text = lock.read_text(encoding="utf-8")
    header, entries = re.match(r"(?:#.*\n)*", text)[0], ENTRY.findall(text)
    assert text == header + "".join(
        f"{name}=={version}{hashes}\n{origin}" for name, version, hashes, origin in entries
    )
    assert not [version for _, version, _, _ in entries if "+" in version]
    assert {name for name, _, hashes, _ in entries if not hashes} <= {"torch", "torchvision"}


def test_a_version_is_the_same_in_all_locks_of_an_environment():
    base, *others = (
        {name: version for name, version, _, _ in ENTRY.findall(lock.read_text())}
        for lock in (ROOT / "requirements.lock", *LOCKS)
        if lock.stem != "requirements-tensorflow"
    )
    assert len(others) == 4
    for other in others:
        assert {name: version for name, version in other.items() if base.get(name, version) != version} == {}


@pytest.fixture
def pip_conf(tmp_path, monkeypatch):
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


@pytest.mark.slow
@pytest.mark.usefixtures("pip_conf")
def test_it_installs_here_whatever_variables_say(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "files/toy-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("toy.py", "")
        archive.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        archive.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy-1.0.dist-info/RECORD", "")
    for name in ("own", "other"):
        venv.create(tmp_path / name, with_pip=name == "own")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own/bin/python"))
    for name in ("UV_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(name, str(tmp_path / "other"))
    monkeypatch.setenv("UV_SYSTEM_PYTHON", "1")
    assert run_uv(["pip", "install", "toy==1.0"])
    assert [path.parents[3].name for path in tmp_path.glob("*/lib/*/site-packages/toy.py")] == ["own"]


def test_settings_of_pip_reach_uv(pip_conf, monkeypatch):
    pip_conf.write_text(
        "[global]\nindex-url = https://a.example/simple\nfind-links =\n    /one\n    /two\ntimeout = 7\n"
        "[install]\nindex-url = https://b.example/simple\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://c.example/simple https://d.example/simple")
    monkeypatch.setenv("PIP_CERT", "/a/certificate.pem")
    assert uv.settings_of_pip() == {
        "UV_DEFAULT_INDEX": "https://b.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "UV_INDEX": "https://c.example/simple https://d.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/a/certificate.pem",
    }

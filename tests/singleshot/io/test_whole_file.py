import subprocess
import sys
from pathlib import Path

import pytest
from power import PowerCut, disk_at

from singleshot.io.whole_file import sync, whole_file


@pytest.mark.parametrize("operations", range(12))
def test_a_power_cut_leaves_the_old_file_or_the_new_one(tmp_path, operations):
    (root := tmp_path / "disk").mkdir()
    target = root / "table.csv"
    with disk_at(root) as disk:
        with whole_file(target) as file:
            file.write_text("old")
        sync(root)
        disk.left = operations
        written = False
        try:
            with whole_file(target) as file:
                file.write_text("new, and longer")
            written = True
        except PowerCut:
            pass
        disk.cut()
    assert target.read_text() in (["new, and longer"] if written else ["old", "new, and longer"])


def test_each_writer_has_a_file_of_its_own_and_what_a_killed_one_left_goes(tmp_path):
    photo, target, secret = tmp_path / "photo.png", tmp_path / ("x" * 246 + ".png"), tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / ".photo.png.partial").symlink_to(secret)  # as somebody may guess
    with whole_file(photo) as file:
        file.write_text("a photo")
    assert (secret.read_text(), photo.is_symlink()) == ("mine", False)
    code = (
        "import os, signal, sys; from pathlib import Path; from singleshot.io.whole_file import whole_file\n"
        "with whole_file(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, target], check=False)
    (left,) = tmp_path.glob(".*-*.partial")
    with whole_file(target) as first:
        assert not left.exists()
        with whole_file(target) as second:
            first.write_text("first")
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"
    assert not list(tmp_path.glob(".*-*.partial"))


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(OSError, match=r"/proc/model\.packed'$"), whole_file(Path("/proc/model.packed")):
        raise AssertionError
    for name in (None, "file:{}"):
        with pytest.raises(OSError, match=r"/a\.mp4'$"), whole_file(tmp_path / "a.mp4") as partial:
            raise OSError(28, "No space left on device", name and name.format(partial))

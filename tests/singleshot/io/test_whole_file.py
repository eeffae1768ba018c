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

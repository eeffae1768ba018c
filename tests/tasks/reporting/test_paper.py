import pytest

from tasks.reporting import paper


def test_the_networks_of_the_named_tasks_have_table_1s_bytes():
    # BCQ's actor: states of 17 and actions of 6 through layers of 400 and 300, four bytes a number.
    weights = (17 + 6) * 400 + 400 + 400 * 300 + 300 + 300 * 6 + 6
    assert 4 * weights / 1e6 == pytest.approx(paper.TABLE_1[0].actor, rel=0.01)

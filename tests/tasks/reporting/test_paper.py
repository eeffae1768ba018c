from pathlib import Path

import pytest

from tasks.reporting import paper

SEEDS = Path(__file__).parents[4] / "shared/seeds"


def text_of(number):
    """The report itself, where it is at hand."""
    files = list(SEEDS.glob(f"{number:03}_*.txt"))
    if not files:
        pytest.skip(f"the reports' text is not in {SEEDS}")
    return " ".join(files[0].read_text().replace("×", "x").split())


def test_table_1_and_the_claims_are_the_papers():
    text = text_of(1)
    for row in paper.TABLE_1:
        assert f"{row.method} {row.actor} {row.critic} {row.vae}" in text
    assert paper.RETENTION_CLAIM in text
    assert "seeds 0 – 4 over 1 million gradient updates" in text
    assert len(range(0, 5)) == paper.SWEEP_SEEDS
    assert paper.SWEEP_UPDATES == 1_000_000
    assert "sparsity of these networks from 10% to 95%" in text
    assert "Half-Cheetah-v2*, *Hopper-v2*, *Walker2d-v2" in text
    assert f"saves {paper.SPARSE_SAVING}x in memory" in text


def test_the_experiment_is_the_reports():
    text = text_of(2)
    wine, carla = paper.EXPERIMENT
    assert f"{wine.picture} (Figure 11): {wine.output}" in text
    assert f"{carla.picture} (Figure 12): {carla.output}" in text
    assert f"Figure 12 is classified as a {carla.label} and Figure 11 as {wine.label}" in text
    for compiler in paper.COMPILERS:
        section = compiler.section.split(",")[0]
        assert f"{section} {compiler.name} " in text or f"{section}\t{compiler.name}" in text


def test_table_i_and_the_findings_are_the_reports():
    text = text_of(3)
    for row in paper.TABLE_I:
        assert f"{row.size_px}x{row.size_px} {row.alexnet:g} {row.vgg:g} {row.network:g}".rstrip(
            "0"
        ) in text.replace("9.15 23.0 0.020", "9.15 23 0.02").replace("0.070", "0.07").replace(".0 ", " ")
        # “Speedup” there is the ratio of its own columns, rounded down or to the nearest.
        for seconds in (row.alexnet, row.vgg):
            assert any(f"{round(seconds / row.network) + d}x" in text for d in (-1, 0))
    assert "AlexNet is around 5 times faster than the VGG-19" in text
    assert "Huber and MSE losses show shorter training times" in text
    assert "LBFGS has the lowest total loss" in text
    assert "x".join(map(str, paper.LARGE_PX)) in text.replace(" ", "").replace("\\times", "x")
    assert all(style.removeprefix("The ") in text for style in paper.STYLES)


def test_the_networks_of_the_named_tasks_have_table_1s_bytes():
    # BCQ's actor: states of 17 and actions of 6 through layers of 400 and 300, four bytes a number.
    weights = (17 + 6) * 400 + 400 + 400 * 300 + 300 + 300 * 6 + 6
    assert 4 * weights / 1e6 == pytest.approx(paper.TABLE_1[0].actor, rel=0.01)

"""The pages of docs/extending: followed word by word, their examples work."""

import shutil

import pandas
import pytest
import safetensors.torch
from checkouts import ROOT, Checkout
from pages import blocks, commands, write_files
from PIL import Image

pytestmark = pytest.mark.slow
TEST = "tests/pipelines/test_dvc_yaml.py"
"""The test that a page has its reader run."""
PAGES = sorted(page.stem for page in (ROOT / "docs/extending").glob("*.md"))


@pytest.fixture(scope="module")
def working_tree(tmp_path_factory):
    checkout = Checkout.of_working_tree(tmp_path_factory.mktemp("docs") / "clone")
    (checkout.path / ".venv").symlink_to(ROOT / ".venv")  # for `make`
    return checkout


@pytest.fixture
def follow(working_tree, tmp_path):
    """A checkout with the files of a page, and where a page needs one, with a painting."""
    copies = []

    def edited(page):
        copies.append(working_tree.copy(tmp_path / page))
        write_files(f"extending/{page}", copies[-1])
        (copies[-1].path / TEST).parent.mkdir(parents=True)
        shutil.copy(ROOT / TEST, copies[-1].path / TEST)
        Image.effect_mandelbrot((96, 64), (-2, -1, 1, 1), 50).convert("RGB").save(
            copies[-1].path / "painting.jpg"
        )
        return copies[-1]

    yield edited
    for copy in copies:
        copy.kill_all()


OWN_DATA = """
import numpy as np
from singleshot.rl import Dataset

random = np.random.default_rng(1)
states = random.normal(size=(300, 4))
data = Dataset(states, np.tanh(states[:, :2]), np.zeros(300), states, np.zeros(300))
"""


def test_an_algorithm_of_ones_own_is_a_class_for_a_script(follow):
    (script,) = (block.text for block in blocks("extending/algorithm") if block.language == "py")
    show = "print(agent, round(agent.sparsity, 3), agent.act(states).shape)"
    told = follow("algorithm").run("python", "-c", f"{OWN_DATA}\n{script}\n{show}")
    assert told.splitlines()[-1] == "Clone, snip 0.95 0.95 (300, 2)"


SOURCES = """
from pipelines.config.params import check
from pipelines.engine.sources import source_digests
from pipelines.stages.deployment import benchmark_cells, export_cells
from pipelines.stages.offline_rl import prune_cell, quantize_cell, train_cell

def show(cell):
    digests = source_digests(cell.task.__module__, *cell.modules)
    print(cell.name, cell.task.__name__, cell.params, sorted(digests.items()))


config = check()
for agent in config.offline_rl.agents():
    for cell in (train_cell, quantize_cell) + ((prune_cell,) if agent.mask_pruner else ()):
        show(cell(config.offline_rl, agent))
for cells in (export_cells, benchmark_cells):
    for cell in cells(config):
        show(cell)
"""


def test_files_of_ones_own_leave_all_other_cells_alone(working_tree, tmp_path):
    own = working_tree.copy(tmp_path / "own")
    for page in ("algorithm", "pruner", "runtime", "environment"):
        write_files(f"extending/{page}", own)
    found = []
    for checkout in (own, working_tree):  # whatever params.yaml the working tree has
        checkout.run("python", "-m", "pipelines", "params", "profile=default")
        found.append(checkout.run("python", "-c", SOURCES))
    assert found[0] == found[1]


def read(checkout, table):
    return pandas.read_csv(checkout.path / "results" / table)


def check_pruner(checkout):
    layers = read(checkout, "pruning/layers.csv")
    assert set(layers["pruner"]) == {"snip", "gradient"}
    masks = safetensors.torch.load_file(
        checkout.path / "models/masks/Hopper/bc/gradient-0.95/seed-0/masks.safetensors"
    )
    total = sum(mask.numel() for mask in masks.values())
    assert sum(int(mask.sum()) for mask in masks.values()) == total - round(0.95 * total)


def check_algorithm(checkout):
    scores = read(checkout, "offline_rl/scores.csv")
    assert set(scores["algorithm"]) == {"clone"}
    last = scores[scores["update"] == 50].set_index("pruner")["return_mean"]
    assert set(last.index) == {"dense", "snip", "grasp"}
    # Lossless values play the last evaluation again.
    quantized = read(checkout, "sparse/quantized.csv")
    raw = quantized[quantized["values"] == "raw"].set_index("pruner")["return_mean"]
    assert raw.to_dict() == pytest.approx({name: last[name] for name in ("snip", "grasp")}, rel=1e-5)
    exports = read(checkout, "deployment/exports.csv")
    own = exports[exports["model"].str.contains("/clone/")]
    assert sorted(own["form"].unique()) == ["compacted", "dense", "masked"]


def check_environment(checkout):
    """What the last commands left: agents of data without an environment."""
    assert read(checkout, "offline_rl/scores.csv").empty
    losses = read(checkout, "offline_rl/heldout.csv")
    assert set(losses["environment"]) == {"Logs"}
    assert set(losses["algorithm"]) == {"bc", "bcq"}
    errors = losses[losses["loss"] == "action_error"]
    assert errors["value"].between(0, 4).all()
    exports = read(checkout, "deployment/exports.csv")
    assert exports["model"].str.startswith("Logs/").sum() == 2 * (1 + 3 + 3)  # dense, SNIP, GraSP


def check_style(checkout):
    assert (checkout.path / "models/styles/mine/contact_sheet.jpg").exists()
    assert Image.open(checkout.path / "out/painting-mine.jpg").size == (96, 64)


def check_runtime(checkout):
    timings = read(checkout, "deployment/timings.csv")
    ours = timings[timings["runtime"] == "onnx-reference"]
    assert len(ours) == len(timings[timings["runtime"] == "torch"]) > 0
    assert set(ours["status"]) == {"ok"}


def check_stage(checkout):
    units = read(checkout, "pruning/units.csv")
    masks = safetensors.torch.load_file(
        checkout.path / "models/masks/Hopper/bcq/snip-0.95/seed-0/masks.safetensors"
    )
    own = units[(units["algorithm"] == "bcq") & (units["pruner"] == "snip")].set_index("layer")
    assert own["units"].to_dict() == {name: mask.shape[0] for name, mask in masks.items()}
    assert own["empty"].to_dict() == {name: int((mask.sum(1) == 0).sum()) for name, mask in masks.items()}
    assert own["empty"].sum() > 0


CHECKS = {
    "stage": check_stage,
    "pruner": check_pruner,
    "algorithm": check_algorithm,
    "environment": check_environment,
    "style": check_style,
    "runtime": check_runtime,
}


@pytest.mark.parametrize("page", PAGES)
def test_an_extension_is_new_files_whose_commands_leave_what_the_page_says(follow, page):
    checkout = follow(page)
    status = checkout.run("git", "status", "--porcelain", "--untracked-files=all").splitlines()
    changed = {line.split()[-1] for line in status if not line.startswith("??")}
    assert changed <= {"dvc.yaml"}  # to which a stage adds itself
    for command in commands(f"extending/{page}"):
        checkout.run("bash", "-c", command)
    CHECKS[page](checkout)


def test_with_all_extensions_the_tests_of_pages_and_stages_pass(working_tree, tmp_path):
    checkout = working_tree.copy(tmp_path / "all")
    for page in PAGES:
        write_files(f"extending/{page}", checkout)
    checkout.run("make", "docs")
    shutil.copytree(ROOT / "tests", checkout.path / "tests")
    tests = ("tests/docs/test_pages.py", "tests/pipelines/test_dvc_yaml.py")
    checkout.run("pytest", "-m", "not slow", "-k", "not recipe and not readme", *tests)

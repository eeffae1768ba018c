"""`dvc repro` as users run it: what it leaves, and what it computes when something changed."""

import json
import re
from fractions import Fraction

import av
import pandas
import pytest
from checkouts import cleaned, progress

from singleshot.io.onnx_model import read_card
from singleshot.style.video.reader import probe

AGENT = "environment algorithm pruner sparsity seed"
COLUMNS = {
    "offline_rl/scores": f"{AGENT} update return_mean return_std d4rl_score episodes",
    "offline_rl/statistics": "environment algorithm pruner sparsity seeds score_iqm retention score_spread",
    "pruning/layers": f"{AGENT} network part layer weights_total weights_kept",
    "sparse/sizes": "model network pruner sparsity seed format bytes ratio_to_dense entropy_bound_bytes",
    "sparse/quantized": f"{AGENT} values bytes return_mean d4rl_score episodes",
    "style/studies": "study backbone loss optimizer size_px iteration content_loss style_loss seconds",
    "style/speed": "version backbone size_px device seconds_per_image",
    "style/quality": "style method image content_loss style_ratio ssim lpips",
    "deployment/timings": "model runtime device threads batch size_px p50_ms max_abs_error status reason",
}
"""Tables below `results`, which may have more columns."""
AGENTS = [
    ("Hopper", algorithm, *variant, 0)
    for algorithm in ("bc", "bcq")
    for variant in (("dense", 0.0), ("grasp", 0.95), ("snip", 0.95))
]
LOCAL = ("profile=smoke", "executor=local")
NOTHING_RAN = {}
PAGE = {"report": 1}
"""The page says when and where each stage's cells were computed."""
CELLS = {
    "prepare_data": 1,
    "prune": 4,
    "train": 6,
    "animate": 8,
    "sizes": 6,
    "quantize": 4,
    "fetch_images": 5,
    "fetch_weights": 4,
    "transfer_style": 12,
    "train_style": 1,
    "stylize": 4,
    "measure_quality": 1,
    "measure_speed": 1,
    "export_onnx": 8,
    "benchmark": 4,
    "evaluate": 1,
    "report": 1,
}
"""By step, in the profile smoke."""


def test_it_leaves_every_result_with_its_columns(finished_smoke):
    tables = {name: pandas.read_csv(finished_smoke.path / f"results/{name}.csv") for name in COLUMNS}
    for name, columns in COLUMNS.items():
        assert set(columns.split()) <= set(tables[name].columns), name
        assert len(tables[name]), name
    agent = AGENT.split()
    scores = tables["offline_rl/scores"]
    assert sorted(scores[agent].drop_duplicates().itertuples(index=False, name=None)) == AGENTS
    assert set(scores.groupby(agent)["update"].agg(tuple)) == {(5, 10, 15, 20)}
    sizes = tables["sparse/sizes"]
    assert len(sizes[["model", "pruner", "sparsity", "seed"]].drop_duplicates()) == len(AGENTS)
    summary = json.loads((finished_smoke.path / "results/offline_rl/summary.json").read_text())
    assert len(summary) == len(AGENTS)
    mean = scores.groupby(["environment", "algorithm", "pruner"])["d4rl_score"].mean()  # of all evaluations
    assert summary["Hopper/bc/snip-0.95"] == pytest.approx(mean["Hopper", "bc", "snip"], abs=0.005)
    kept = json.loads((finished_smoke.path / "results/offline_rl/evaluation.json").read_text())
    ratio = mean["Hopper", "bc", "snip"] / mean["Hopper", "bc", "dense"]
    assert kept["retention/all/bc/snip-0.95"] == pytest.approx(ratio, abs=5e-5)
    assert (finished_smoke.path / "report/figures/figure-01a.svg").read_bytes().startswith(b"<?xml")


def sound_of(path):
    """As it is encoded."""
    with av.open(path) as container:
        return [bytes(packet) for packet in container.demux(audio=0)]


def test_it_leaves_stylized_pictures_a_video_and_their_measures(finished_smoke):
    styles = finished_smoke.path / "results/style"
    studies = pandas.read_csv(styles / "studies.csv")
    variants = studies[["study", "backbone", "loss", "optimizer", "style"]].drop_duplicates()
    assert len(variants) == 12
    for study, *names in variants.itertuples(index=False):
        assert (styles / "gatys" / study / "-".join(names) / "picture.png").exists()
    assert (styles / "stylized/swirls/photos/chelsea.jpg").exists()
    paths = [
        finished_smoke.path / path for path in ("examples/clip.mp4", "results/style/stylized/swirls/clip.mp4")
    ]
    original, stylized = (probe(path) for path in paths)
    assert stylized.timestamps == original.timestamps
    assert stylized.frame_rate == Fraction(30000, 1001)
    assert (stylized.format.width, stylized.format.height) == (original.format.width, original.format.height)
    assert sound_of(paths[0]) == sound_of(paths[1]) != []
    quality = pandas.read_csv(styles / "quality.csv").set_index(["method", "image"])
    assert quality.loc[("photo", "chelsea"), "style_ratio"] == 1
    assert {"gatys-alexnet", "gatys-vgg19", "johnson"} <= set(quality.index.get_level_values("method"))
    assert quality.loc[("johnson", "clip.mp4"), "warping_error_ratio"] > 0


def test_every_network_is_exported_and_some_are_timed(finished_smoke):
    results = finished_smoke.path / "results/deployment"
    exports = pandas.read_csv(results / "exports.csv")
    for model, file in zip(exports["model"], exports["file"], strict=True):
        card = read_card(finished_smoke.path / "models/onnx" / model / file)
        assert card.cell == model
        assert card.commit == finished_smoke.run("git", "rev-parse", "HEAD").strip()
    assert len(set(exports["model"])) == len(AGENTS) + 2
    assert {"styles/swirls", "classifiers/efficientnet_lite0"} < set(exports["model"])
    assert set(exports.loc[exports["sparsity"] > 0, "form"]) == {"masked", "compacted"}
    timings = pandas.read_csv(results / "timings.csv")
    assert timings.groupby("model")["form"].agg(set).to_dict() == {
        "Hopper/bcq/snip-0.95/seed-0": {"masked", "compacted"},
        "styles/swirls": {"dense"},
        "classifiers/efficientnet_lite0": {"dense"},
    }
    # A machine may lack others, but these come with the dependencies.
    timed = timings[timings["runtime"].isin(["torch", "onnxruntime", "openvino-f32", "tvm", "xla"])]
    assert set(timed["status"]) == {"ok"}
    assert (timed["p99_ms"] >= timed["p50_ms"]).all()
    assert (timed["max_abs_error"] <= timed["tolerance"]).all()
    assert timings.loc[timings["status"] != "ok", "reason"].str.len().gt(0).all()


def test_the_classifier_sees_a_cat_if_asked_rightly(finished_smoke):
    answers = pandas.read_csv(finished_smoke.path / "results/deployment/classification.csv")
    first = answers[answers["rank"] == 1].set_index(["preprocessing", "runtime"])["label"]
    assert first["right", "torch"] == first["right", "onnxruntime"] == "tiger cat"
    assert first["reported", "torch"] != "tiger cat"


def test_every_part_has_exactly_the_sparsity_asked_for(finished_smoke):
    layers = pandas.read_csv(finished_smoke.path / "results/pruning/layers.csv")
    by_part = layers.groupby(["algorithm", "part", "pruner", "sparsity"])[
        ["weights_kept", "weights_total"]
    ].sum()
    assert len(by_part) >= 2 * (2 + 5)
    for (*_, sparsity), (kept, total) in by_part.iterrows():
        assert abs(kept - (1 - sparsity) * total) <= 1


def test_mlflow_has_one_finished_run_a_cell(finished_smoke):
    finished_smoke.check_runs()
    assert sorted(run.info.run_name for run in finished_smoke.runs(kind="stage")) == [
        f"{stage} (smoke)" for stage in sorted([*CELLS, "register"])
    ]
    commit = finished_smoke.run("git", "rev-parse", "HEAD").strip()
    for run in finished_smoke.runs(kind="cell"):
        tags = run.data.tags
        assert tags["mlflow.source.git.commit"] == commit
        assert (finished_smoke.path / f"results/provenance/{tags['dvc_stage']}/{tags['stage']}.json").exists()
        assert tags["profile"] == "smoke"
    (run,) = finished_smoke.runs(stage="train", algorithm="bcq", pruner="snip")
    steps = finished_smoke.mlflow.get_metric_history(run.info.run_id, "d4rl_score")
    assert [metric.step for metric in steps] == [5, 10, 15, 20]
    assert run.data.params["algorithm.lmbda"] == "0.75"


def test_git_sees_nothing_of_a_run_but_its_lock_file_and_metrics(finished_smoke):
    """Results, cells, databases and logs are all ignored: `git add .` after a run is safe."""
    changed = finished_smoke.run("git", "status", "--porcelain", "--untracked-files=all").splitlines()
    names = {line[3:] for line in changed} - {"params.yaml"}
    # No more than these: where the pipeline ran before in the tree that was copied, they are not new.
    metrics = {
        f"results/{name}.json" for name in ("offline_rl/summary", "offline_rl/evaluation", "style/summary")
    }
    assert names <= {"dvc.lock", *metrics}


def test_a_second_run_computes_nothing(smoke):
    before = smoke.results()
    output = smoke.repro()
    assert progress(output) == NOTHING_RAN
    assert re.findall("Running stage '(.*)'", output) == ["packages"]
    assert smoke.results() == before


@pytest.mark.slow
def test_another_executor_and_tracking_address_leave_every_stage_as_it_is(smoke):
    before = smoke.results()
    smoke.compose("profile=smoke", "executor=ray", "tracking.uri=sqlite:///mlflow.db-elsewhere")
    output = smoke.repro()
    assert progress(output) == NOTHING_RAN
    assert "Running stage 'config'" in output
    assert smoke.results() == before


@pytest.mark.slow
def test_an_edited_conf_stops_the_run_with_one_line(smoke):
    profile = smoke.path / "conf/profile/smoke.yaml"
    profile.write_text(profile.read_text().replace("updates: 20", "updates: 30"))
    output = smoke.repro(expect=255)
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "conf/ was edited after params.yaml" in errors[0]
    assert "make params" in errors[0]
    assert "Traceback" not in output
    assert progress(output) == NOTHING_RAN
    smoke.compose(*LOCAL)
    smoke.run("python", "-m", "pipelines", "check-config")


@pytest.mark.slow
def test_forced_stages_reuse_every_cell(smoke):
    before, cells = smoke.results(), smoke.cells()
    assert progress(smoke.repro("--force")) == {stage: (n, n, 0) for stage, n in CELLS.items()}
    assert smoke.results() == before
    assert smoke.cells() == cells
    smoke.check_runs()


@pytest.mark.slow
def test_another_seed_computes_only_its_cells_and_back_again_none(smoke):
    before = smoke.results()
    smoke.compose(*LOCAL, "offline_rl.sweep.seeds=[0,1]")
    done = progress(smoke.repro())
    assert done["prepare_data"] == (2, 1, 1)  # each seed has a draw of its own
    assert [done[stage] for stage in ("prune", "train", "sizes")] == [(8, 4, 4), (12, 6, 6), (12, 6, 6)]
    assert len(pandas.read_csv(smoke.path / "results/offline_rl/scores.csv")) == 48
    wider = smoke.results()
    assert {name: wider[name] for name in before if "/seed-0/" in name} == {
        name: content for name, content in before.items() if "/seed-0/" in name
    }
    smoke.check_runs()
    smoke.compose(*LOCAL)
    assert progress(smoke.repro()) == {"prepare_data": (1, 1, 0)}  # DVC's run cache has every other out
    assert smoke.results() == before


@pytest.mark.slow
def test_a_queued_experiment_shares_cells_and_runs_with_its_checkout(smoke):
    smoke.run("python", "-m", "pipelines.engine.dvc_files")  # as `make` does first
    before = smoke.cells()
    overrides = (f"-S{word}" for word in (*LOCAL, "offline_rl.training.bc.updates=21"))
    smoke.run("dvc", "exp", "run", "--queue", "--name", "longer", *overrides, "export")
    done = progress(smoke.run("dvc", "exp", "run", "--run-all"))
    assert [done[step] for step in ("prepare_data", "prune", "train")] == [(1, 1, 0), (4, 4, 0), (6, 3, 3)]
    assert done["export_onnx"] == (CELLS["export_onnx"], CELLS["export_onnx"] - 3, 3)
    assert before.items() < smoke.cells().items()
    smoke.check_runs()
    experiment = {run.data.tags["cell"] for run in smoke.runs(kind="cell", dvc_experiment="longer")}
    assert smoke.cells().keys() - before.keys() <= experiment


@pytest.mark.slow
def test_without_its_cells_a_run_comes_from_dvcs_cache(smoke):
    """The store may be deleted to save space."""
    before = smoke.results()
    smoke.run("rm", "-rf", ".cells", "models", "data/offline_rl", "results")
    smoke.run("dvc", "checkout")  # `dvc repro` restores what stages left, but not those that keep their outs
    assert progress(smoke.repro()) == NOTHING_RAN
    assert smoke.results() == before


@pytest.mark.slow
def test_an_edited_source_file_recomputes_only_what_uses_it(smoke):
    before = smoke.results()
    with (smoke.path / "tasks/train_agents.py").open("a") as file:
        file.write("# an edit\n")
    done = progress(smoke.repro())
    assert {step: missing for step, (_, _, missing) in done.items() if missing} == {"train": 6, **PAGE}
    assert done["sizes"] == (6, 6, 0)  # the same weights came out
    assert smoke.results() == before


@pytest.mark.slow
def test_ray_and_local_give_byte_identical_files(finished_smoke, tmp_path):
    checkout = finished_smoke.clone(tmp_path / "clone")
    with cleaned(checkout):
        checkout.compose("profile=smoke", "executor=ray")
        checkout.repro()
        here, on_ray = finished_smoke.results(), checkout.results()
        assert len(here) > 30
        assert here.keys() == on_ray.keys()
        assert [name for name in here if here[name] != on_ray[name]] == []
        # Its figures and page show seconds, so they are cells of their own on every run.
        others = checkout.cells().keys() - finished_smoke.cells().keys()
        assert others <= {run.data.tags["cell"] for run in checkout.runs(kind="cell", stage="report")}
        checkout.check_runs()

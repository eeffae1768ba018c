"""The task as a whole, from each source, by the contract of a job."""

import hashlib
import json
from dataclasses import replace

import h5py
import minari
import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.io import download
from singleshot.job import Job, Metrics, Progress
from singleshot.rl.data.minari import read_minari
from singleshot.rl.data.transitions import D4RLFile, DataConfig, Transitions
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.experts.policy import Expert, ExpertCard, Returns, load_expert, save_expert
from tasks import prepare_dataset as module
from tasks.prepare_dataset import DatasetParams, prepare_dataset

HOPPER = LOCOMOTION["Hopper"]
ROLLOUTS = DatasetParams("Hopper", HOPPER, DataConfig(transitions=1500, action_noise=0.2, seed=7))


@pytest.fixture
def expert(tmp_path):
    """A policy of random weights, under which Hopper soon falls over."""
    random = np.random.default_rng(0)
    shapes = [(11, 32), (32, 3)]
    unknown = Returns(0.0, 0.0, 0.0)
    card = ExpertCard("Hopper", "Hopper-v5", "random weights", 0, 0, {}, 1, unknown, unknown, {})
    policy = Expert(
        weights=tuple(random.normal(size=shape).astype(np.float32) / 4 for shape in shapes),
        biases=tuple(np.zeros(outputs, np.float32) for _, outputs in shapes),
        card=card,
    )
    save_expert(policy, tmp_path / "hopper.safetensors")
    return tmp_path / "hopper.safetensors"


def run(params, inputs, output):
    output.mkdir(parents=True)
    return list(prepare_dataset([Job(params, inputs, output)]))


def files(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_rollouts_are_transitions_a_minari_dataset_and_a_card(expert, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    output = tmp_path / "out"
    events = run(ROLLOUTS, ROLLOUTS.inputs(expert), output)
    fractions = [event.fraction for event in events if isinstance(event, Progress)]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert any("steps_per_second" in event.values for event in events if isinstance(event, Metrics))

    transitions = Transitions.load(output / "transitions.safetensors")
    assert len(transitions) == 1500
    again = read_minari(output / "minari" / "hopper-expert-v0", HOPPER).transitions
    for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
        np.testing.assert_array_equal(getattr(again, name), getattr(transitions, name))

    card = json.loads((output / "card.json").read_text())
    ends = np.flatnonzero(transitions.terminals)
    returns = [part.sum(dtype=np.float64) for part in np.split(transitions.rewards, ends + 1)[: len(ends)]]
    assert card["returns"]["episodes"] == len(returns)
    assert card["episodes"] == len(returns) + (not transitions.terminals[-1])
    for name in ("mean", "std", "min", "max"):
        assert card["returns"][name] == pytest.approx(getattr(np, name)(returns), rel=1e-4)
    assert card["returns"]["d4rl_score"] == pytest.approx(HOPPER.score(float(np.mean(returns))), rel=1e-5)
    assert card["sha256"] == hashlib.sha256(expert.read_bytes()).hexdigest()
    assert (card["source"], card["environment_id"], card["transitions"]) == ("expert", "Hopper-v5", 1500)
    assert (card["action_noise"], card["seed"]) == (0.2, 7)
    assert card["versions"]["minari"] == minari.__version__
    assert card["failures"] == {"threshold": 0.0, "played": card["episodes"], "used": {}, "left_out": {}}
    assert not (tmp_path / "home").exists()


def with_usual_return(expert, mean):
    """Rewrite the expert's file with another mean return in its card."""
    policy = load_expert(expert)
    card = replace(policy.card, deterministic=replace(policy.card.deterministic, mean=mean))
    save_expert(replace(policy, card=card), expert)


@pytest.mark.parametrize("fraction", [None, 0.0, 0.25])
def test_failed_episodes_are_used_as_the_setting_says(expert, tmp_path, fraction):
    """Half of the episodes, those below the median return, count as failed."""
    everything = replace(ROLLOUTS, data=replace(ROLLOUTS.data, failed_episodes=None))
    run(everything, {"expert": expert}, tmp_path / "all")
    data = read_minari_returns(tmp_path / "all")
    median = float(np.median(data))
    with_usual_return(expert, 1.5 * median)
    params = replace(ROLLOUTS, data=replace(ROLLOUTS.data, failed_episodes=fraction))
    run(params, {"expert": expert}, tmp_path / "out")
    returns = read_minari_returns(tmp_path / "out")
    failures = read_card(tmp_path / "out")["failures"]
    assert failures["threshold"] == pytest.approx(median)
    failed = returns < median
    if fraction is None:
        np.testing.assert_array_equal(returns, data)
        assert not failures["left_out"]
    else:
        assert failed.sum() == int(len(returns) * fraction)
        assert failures["left_out"] or fraction
    values = list(failures["used"].values())  # the last episode may be cut and then has no return
    assert values[: failed.sum()] == pytest.approx(returns[failed])
    assert len(values) <= failed.sum() + 1
    used, left_out = set(failures["used"]), set(failures["left_out"])
    assert not used & left_out
    assert all(data[int(number)] < median for number in used | left_out if int(number) < len(data))


def read_minari_returns(output):
    """Returns of the whole episodes."""
    return read_minari(output / "minari" / "hopper-expert-v0", HOPPER).returns


def test_two_runs_are_equal_byte_for_byte(expert, tmp_path):
    for name in ("first", "elsewhere/second"):
        run(ROLLOUTS, {"expert": expert}, tmp_path / name)
    first = files(tmp_path / "first")
    assert sorted(first) == [
        "card.json",
        "minari/hopper-expert-v0/data/main_data.hdf5",
        "minari/hopper-expert-v0/data/metadata.json",
        "transitions.safetensors",
    ]
    assert first == files(tmp_path / "elsewhere" / "second")
    for content in first.values():
        assert str(tmp_path).encode() not in content


@pytest.fixture
def d4rl_file(tmp_path):
    path = tmp_path / "hopper_tiny-v2.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.zeros((4, 11), np.float32)
        file["actions"] = np.zeros((4, 3), np.float32)
        file["rewards"] = np.arange(4, dtype=np.float32)
        file["terminals"] = np.array([False, True, False, False])
        file["timeouts"] = np.array([False, False, False, True])
    return path


def d4rl_params(url, sha256=None):
    return DatasetParams("Hopper", HOPPER, DataConfig(source="d4rl", d4rl={"Hopper": D4RLFile(url, sha256)}))


def read_card(output):
    return json.loads((output / "card.json").read_text())


@pytest.mark.parametrize("local", [True, False])
def test_a_d4rl_file(d4rl_file, tmp_path, monkeypatch, local):
    """The download has its own tests; here only what becomes of it."""
    sha256 = hashlib.sha256(d4rl_file.read_bytes()).hexdigest()
    monkeypatch.setattr(download, "download_cached", lambda url, sha256: (d4rl_file, sha256))
    params = d4rl_params(str(d4rl_file) if local else "http://example.org/hopper.hdf5", sha256)
    run(params, params.inputs(tmp_path / "unused"), tmp_path / "out")
    card = read_card(tmp_path / "out")
    origin = d4rl_file.name if local else "http://example.org/hopper.hdf5"
    assert (card["origin"], card["sha256"], card["seed"]) == (origin, sha256, None)
    assert (card["transitions"], card["episodes"]) == (3, 2)
    assert (card["returns"]["episodes"], card["returns"]["mean"]) == (1, 1)
    assert sorted(files(tmp_path / "out")) == ["card.json", "transitions.safetensors"]


def test_data_of_another_environment_or_checksum_is_refused(expert, d4rl_file, tmp_path):
    walker = DatasetParams("Walker2d", LOCOMOTION["Walker2d"], DataConfig(seed=0))
    gone, file = {"d4rl": tmp_path / "gone"}, {"d4rl": d4rl_file}
    for number, (params, inputs, named) in enumerate(
        [
            (walker, {"expert": expert}, r"hopper\.safetensors: .*Walker2d"),
            (d4rl_params(str(d4rl_file), "00"), file, r"hopper_tiny-v2\.hdf5: .*00"),
            (d4rl_params("gone"), gone, r"gone: .*offline_rl\.data\.d4rl\.Hopper\.url"),
        ]
    ):
        with pytest.raises(UserError, match=named):
            run(params, inputs, tmp_path / str(number))


def test_a_minari_directory_gives_the_same_transitions_again(expert, tmp_path):
    run(ROLLOUTS, {"expert": expert}, tmp_path / "first")
    directory = tmp_path / "first" / "minari" / "hopper-expert-v0"
    config = DataConfig(source="minari", minari={"Hopper": str(directory)})
    params = DatasetParams.of("Hopper", HOPPER, config, None)
    assert params.inputs(expert) == {"minari": directory}
    run(params, params.inputs(expert), tmp_path / "second")
    first, second = files(tmp_path / "first"), files(tmp_path / "second")
    assert first["transitions.safetensors"] == second["transitions.safetensors"]
    assert read_card(tmp_path / "second")["returns"] == read_card(tmp_path / "first")["returns"]
    assert read_card(tmp_path / "second")["origin"] == "hopper-expert-v0"


def minari_params(name, id_="Hopper-v5"):
    return DatasetParams(
        "Hopper", replace(HOPPER, id=id_), DataConfig(source="minari", minari={"Hopper": name})
    )


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_a_minari_id_is_read_on_this_machine_or_fetched_and_the_card_has_its_doubts(
    expert, tmp_path, monkeypatch
):
    run(ROLLOUTS, {"expert": expert}, tmp_path / "first")
    kept = tmp_path / "first" / "minari" / "hopper-expert-v0"
    fetched = minari_params(kept.name)
    monkeypatch.setattr(module, "fetch_minari", lambda name, _: kept.with_name(name))
    assert fetched.inputs(expert) == {}
    run(fetched, {}, tmp_path / "second")
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == [
        "card.json",
        "transitions.safetensors",
    ]
    assert read_card(tmp_path / "second")["origin"] == kept.name

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(kept.parent))
    params = minari_params(kept.name, "Hopper-v4")
    assert params.inputs(expert) == {"minari": kept}
    run(params, params.inputs(expert), tmp_path / "third")
    assert read_card(tmp_path / "third")["doubts"] == [
        "it was recorded in Hopper-v5 with {}, and agents will act in Hopper-v4"
    ]


def test_params_hold_only_what_the_source_uses():
    minari, d4rl = {"Hopper": "a-v0"}, {"Hopper": D4RLFile("c")}
    everything = DataConfig("minari", seed=3, transitions=5, minari=minari | {"Walker2d": "b"}, d4rl=d4rl)
    for source, draw, used in (
        ("minari", None, DataConfig("minari", minari=minari)),
        ("d4rl", None, DataConfig("d4rl", d4rl=d4rl)),
        ("expert", 7, DataConfig(transitions=5, seed=7)),
    ):
        assert DatasetParams.of("Hopper", HOPPER, replace(everything, source=source), draw).data == used
    with pytest.raises(UserError, match=r"data\.minari .*HalfCheetah"):
        DatasetParams.of("HalfCheetah", HOPPER, everything, None)

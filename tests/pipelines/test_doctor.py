import shutil
from dataclasses import replace

import gymnasium
import pytest
from checkouts import ROOT

from pipelines.cli import doctor
from pipelines.config.params import compose, configuration
from singleshot.errors import UserError
from singleshot.rl.data.transitions import D4RLFile
from singleshot.rl.environments import Environment


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    """A working directory with conf/ and the params.yaml of the profile smoke."""
    for name in ("SINGLESHOT_CELLS", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    compose(["profile=smoke"], tmp_path / "params.yaml")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)


def test_a_whole_checkout_has_no_problem_and_stays_as_it_is(tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert doctor.print_findings()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in ("params.yaml", "disk", "MLflow", "Ray")
    ]
    assert "6 agents" in lines[0]  # 2 algorithms × (dense + 2 pruners at one sparsity)
    assert "will be made" in lines[2]
    assert sorted(tmp_path.iterdir()) == before


def test_whatever_a_check_raises_is_a_line_and_stops_no_other(monkeypatch, capsys, tmp_path):
    with (tmp_path / "conf/offline_rl.yaml").open("a") as file:
        file.write("nonsense: [\n")
    monkeypatch.setattr(doctor, "check_disk", lambda: 1 / 0)
    assert not doctor.print_findings()
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem")]
    assert [line.split()[1] for line in problems] == ["params.yaml", "disk"]
    assert "conf" in problems[0]
    assert "ZeroDivisionError" in problems[1]


def test_the_disk_has_to_hold_the_sweep(monkeypatch, tmp_path):
    # 6 agents: three copies of 10 MB, a checkpoint of 25 MB; 3 × 5000 transitions of 400 bytes; 1 GB spare
    needed = 6 * (3 * 10e6 + 25e6) + 3 * 5000 * 400 + 1e9
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(needed) + 1))
    assert doctor.check_disk()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(needed) - 1))
    with pytest.raises(UserError, match=r"\.cells"):
        doctor.check_disk()
    model = tmp_path / "models/agents/Hopper/bc/dense/seed-0/agent.safetensors"
    model.parent.mkdir(parents=True)
    model.touch()
    assert doctor.check_disk()


def test_a_database_is_told_if_it_can_not_be_used_or_made(monkeypatch, tmp_path, empty_database):
    def told(path):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        return doctor.check_mlflow()

    with pytest.raises(UserError, match=r"missing/mlflow\.db"):
        told(tmp_path / "missing/mlflow.db")
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    assert "mlflow.db" in told(tmp_path / "mlflow.db")
    (tmp_path / "other.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match=r"other\.db"):
        told(tmp_path / "other.db")


def test_files_that_do_not_exist_and_endless_environments_are_named(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = configuration("profile=smoke")
    doctor.check_inputs(config)  # this project's own do
    gymnasium.register("Endless-v0", "gymnasium.envs.mujoco.hopper_v5:HopperEnv")
    data = replace(config.offline_rl.data, source="d4rl", d4rl={"Hopper": D4RLFile("my/hopper.hdf5")})
    for own, named in [
        ({"data": data}, r"my/hopper\.hdf5: no such file, for Hopper"),
        ({"environments": {"Endless": Environment("Endless-v0")}}, r"Endless: .*time_limit"),
        ({"environments": {"Endless": Environment("Endless-v0", time_limit=5)}}, "Endless has no expert"),
    ]:
        with pytest.raises(UserError, match=named):
            doctor.check_inputs(replace(config, offline_rl=replace(config.offline_rl, **own)))
    style = replace(config.style, stylize=replace(config.style.stylize, video="my/film.mp4"))
    with pytest.raises(UserError, match=r"my/film\.mp4: no such file, for style\.stylize\.video"):
        doctor.check_inputs(replace(config, style=style))


@pytest.mark.slow
def test_a_cluster_can_be_joined_with_its_token(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.chdir(ROOT)
    assert "1 x 2 CPU, 0 GPU" in doctor.check_ray()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(UserError, match="RAY_AUTH_TOKEN"):
        doctor.check_ray()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1"):
        doctor.check_ray()

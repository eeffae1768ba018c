from dataclasses import replace

import gymnasium
import pytest
from checkouts import ROOT

from pipelines.cli.doctor import check_inputs
from pipelines.config.params import configuration
from singleshot.errors import UserError
from singleshot.rl.data.transitions import D4RLFile
from singleshot.rl.environments import Environment


@pytest.fixture
def config(monkeypatch):
    monkeypatch.chdir(ROOT)
    return configuration("profile=smoke")


def test_files_that_do_not_exist_are_named(config):
    check_inputs(config)  # this project's own do
    data = replace(config.offline_rl.data, source="d4rl", d4rl={"Hopper": D4RLFile("my/hopper.hdf5")})
    offline_rl = replace(config.offline_rl, data=data)
    with pytest.raises(UserError, match=r"my/hopper\.hdf5: no such file, for Hopper"):
        check_inputs(replace(config, offline_rl=offline_rl))
    style = replace(config.style, stylize=replace(config.style.stylize, video="my/film.mp4"))
    with pytest.raises(UserError, match=r"my/film\.mp4: no such file, for style\.stylize\.video"):
        check_inputs(replace(config, style=style))


def test_an_environment_without_a_time_limit_is_named(config):
    gymnasium.register("Endless-v0", "gymnasium.envs.mujoco.hopper_v5:HopperEnv")
    for limit in (None, 5):
        environments = {"Endless": Environment("Endless-v0", time_limit=limit)}
        checked = replace(config, offline_rl=replace(config.offline_rl, environments=environments))
        with pytest.raises(UserError, match="Endless has no expert" if limit else r"Endless: .*time_limit"):
            check_inputs(checked)

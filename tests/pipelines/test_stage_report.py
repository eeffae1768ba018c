"""What the page says of settings that are not the paper's."""

from pipelines.config.params import configuration
from pipelines.stages.report import scale

SCALE = {"environments", "seeds", "sparsities in %", "gradient updates"}


def settings(*overrides):
    """Of a profile with some overrides: its scale, and what departs."""
    found = scale(configuration(*overrides).offline_rl)
    return {each.setting: (each.here, each.paper) for each in found}


def test_the_profile_paper_departs_in_its_environments_alone():
    found = settings("profile=paper")
    assert set(found) == SCALE
    assert found["seeds"] == ("5", "5")
    assert found["gradient updates"] == ("1,000,000 (BC), 1,000,000 (BCQ)", "1,000,000")


def test_every_setting_of_the_default_that_is_not_the_paper_s_is_named():
    found = settings("profile=default", "offline_rl.pruning.scope=network")
    code = "not said; its authors' code: "
    assert found["learning rate (BC)"] == ("0.003", f"{code}0.001")
    assert found["learning rate decay (BC)"] == ("yes", f"{code}no")
    assert found["normalize states (BCQ)"] == ("yes", f"{code}no")
    assert found["target samples (BCQ)"] == ("4", f"{code}10")
    assert found["evaluation samples (BCQ)"] == ("10", f"{code}100")
    assert found["scope of pruning"] == ("network", "part")
    assert found["data"][0].startswith("100,000 transitions of this project's experts")
    assert len(found) == 10 + len(SCALE)

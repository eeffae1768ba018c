from pipelines.config.params import configuration
from pipelines.stages.benchmark import cells


def test_policies_are_compared_in_the_environments_that_agents_are_scored_in():
    timed = cells(configuration("profile=default", "offline_rl.evaluation.env_version=v4"))
    params = [getattr(cell.params, "benchmark", cell.params) for cell in timed]
    assert {each.env_version for each in params} == {"v4"}

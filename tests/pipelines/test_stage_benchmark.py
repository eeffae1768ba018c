from pipelines.config.params import configuration
from pipelines.engine.sources import source_digests
from pipelines.stages.deployment import benchmark_cells, benchmarked_agents, exported_agents


def test_agents_of_the_chosen_seeds_are_exported_and_no_others_are_timed():
    seeds = ["offline_rl.sweep.seeds=[0,1,2]", "deployment.benchmark.agents.seeds=[0,1]"]
    config = configuration("profile=default", *seeds, "deployment.export.seeds=[1,2]")
    assert {agent.seed for agent in exported_agents(config)} == {1, 2}
    assert {agent.seed for agent in benchmarked_agents(config)} == {1}
    config = configuration("profile=default", *seeds, "deployment.export.seeds=null")
    assert {agent.seed for agent in exported_agents(config)} == {0, 1, 2}
    assert {agent.seed for agent in benchmarked_agents(config)} == {0, 1}


def test_timings_depend_on_the_adapters_of_their_runtimes_alone():
    runtimes = "singleshot.export.runtimes"
    for cell in benchmark_cells(configuration("profile=smoke", "deployment.benchmark.runtimes=[torch,tvm]")):
        sources = source_digests(cell.task.__module__, *cell.modules).keys()
        assert {f"{runtimes}.torch_eager", f"{runtimes}.tvm"} <= sources
        assert not {f"{runtimes}.openvino", f"{runtimes}.xla"} & sources

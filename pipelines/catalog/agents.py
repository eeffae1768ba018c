"""The sweep of offline-RL agents, for all stages that prune, train and measure them."""

from collections.abc import Iterator
from pathlib import Path

from pipelines.catalog.paths import AGENTS, DATASETS
from pipelines.config.params import Config
from singleshot.pruning.variant import DENSE, variant_name
from singleshot.rl.agents import AgentSpec
from singleshot.rl.algorithm import AlgorithmConfig, module_of
from singleshot.rl.environments import Environment
from tasks.train_agents import TrainingConfig

AGENT_TAGS = ("environment", "algorithm", "pruner", "sparsity", "seed")
"""Tags by which the runs of agents in MLflow are filtered."""


def agents(config: Config) -> Iterator[AgentSpec]:
    """Every agent of the sweep. Sparsity 0 gives one dense agent, whatever the number of pruners."""
    sweep = config.offline_rl.sweep
    sparsities = sorted(set(sweep.sparsities) - {0})
    for environment in config.offline_rl.environments:
        for algorithm in dict.fromkeys(sweep.algorithms):
            for seed in dict.fromkeys(sweep.seeds):
                if 0 in sweep.sparsities:
                    yield AgentSpec(environment, algorithm, DENSE, 0.0, seed)
                for pruner in dict.fromkeys(sweep.pruners):
                    yield from (
                        AgentSpec(environment, algorithm, pruner, sparsity, seed) for sparsity in sparsities
                    )


def name_of(agent: AgentSpec) -> str:
    """An agent's directory below `MASKS` and `AGENTS`, and the name of its runs in MLflow."""
    variant = variant_name(agent.pruner, agent.sparsity)
    return f"{agent.environment}/{agent.algorithm}/{variant}/seed-{agent.seed}"


def tags_of(agent: AgentSpec) -> dict[str, str]:
    """The tags of an agent's runs in MLflow.

    Charts average the runs of one `agent`, that is, over seeds. Legends show some 20 characters of it, so
    what differs comes first.
    """
    variant = variant_name(agent.pruner, agent.sparsity)
    return {
        "agent": f"{agent.algorithm} {variant} {agent.environment}",
        "environment": agent.environment,
        "algorithm": agent.algorithm,
        "pruner": agent.pruner,
        "sparsity": f"{agent.sparsity:g}",
        "seed": str(agent.seed),
    }


def algorithm_config(config: Config, agent: AgentSpec) -> AlgorithmConfig:
    """The hyper-parameters of an agent's algorithm."""
    own: AlgorithmConfig = getattr(config.offline_rl.algorithms, agent.algorithm)
    return own


def modules_of(agent: AgentSpec) -> tuple[str, ...]:
    """The modules that tasks which train, open or export the agent import by name."""
    return (module_of(agent.algorithm),)


def training_config(config: Config, agent: AgentSpec) -> TrainingConfig:
    """How long an agent trains."""
    own: TrainingConfig = getattr(config.offline_rl.training, agent.algorithm)
    return own


def environment_of(config: Config, agent: AgentSpec) -> Environment:
    """Where an agent acts."""
    return config.offline_rl.environments[agent.environment]


def draw_of(config: Config, agent: AgentSpec) -> int | None:
    """The draw of an expert's data that an agent is trained on; None if the source has no draws."""
    data = config.offline_rl.data
    if data.source != "expert":
        return None
    return agent.seed if data.seed is None else data.seed


def dataset_of(config: Config, agent: AgentSpec) -> Path:
    """The file of the transitions that an agent is trained on."""
    draw = draw_of(config, agent)
    directory = DATASETS / agent.environment / ("" if draw is None else f"draw-{draw}")
    return directory / "transitions.safetensors"


def episode_of(agent: AgentSpec) -> Path:
    """The file of an episode of median return in a trained agent's last evaluation."""
    return AGENTS / name_of(agent) / "episode.safetensors"


def model_of(agent: AgentSpec) -> Path:
    """The file of a trained agent."""
    return AGENTS / name_of(agent) / "agent.safetensors"

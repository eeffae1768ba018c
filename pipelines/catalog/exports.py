"""The trained networks that are exported to ONNX, for all stages of deployment."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.catalog import agents, styles
from pipelines.catalog.paths import GRAPHS
from pipelines.config.params import Config
from singleshot.export.onnx_model import Form
from singleshot.export.policies import forms_of
from singleshot.pruning.variant import DENSE
from singleshot.rl.agents import AgentSpec
from tasks.export import graph_name


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network, from which ONNX graphs are exported."""

    cell: str
    """The network's directory below `GRAPHS`, and the name of its runs in MLflow."""
    path: Path
    """The file from which PyTorch loads the network."""
    forms: tuple[Form, ...]
    """The forms in which the network is exported, besides the file with sparse initialisers."""
    tags: Mapping[str, str]
    modules: tuple[str, ...] = ()
    """The modules that a task which loads the network imports by name."""

    def graph(self, form: Form) -> Path:
        """The ONNX file of one form."""
        return GRAPHS / self.cell / graph_name(self.cell, form)


def policy_of(agent: AgentSpec) -> TrainedNetwork:
    """A trained agent's policy. If pruned, it is exported both with its zeros and without its dead units."""
    name, path, modules = agents.name_of(agent), agents.model_of(agent), agents.modules_of(agent)
    return TrainedNetwork(name, path, forms_of(agent), agents.tags_of(agent), modules)


def exported_agents(config: Config) -> Iterator[AgentSpec]:
    """The agents whose policies are exported."""
    seeds = config.deployment.export.seeds
    return (agent for agent in agents.agents(config) if seeds is None or agent.seed in seeds)


def benchmarked_agents(config: Config) -> Iterator[AgentSpec]:
    """The exported agents that are timed."""
    chosen = config.deployment.benchmark.agents
    environments = chosen.environments or tuple(config.offline_rl.environments)[:1]
    return (
        agent
        for agent in exported_agents(config)
        if agent.environment in environments
        and agent.algorithm in chosen.algorithms
        and agent.pruner in {DENSE, *chosen.pruners}
        and agent.sparsity in chosen.sparsities
        and agent.seed in chosen.seeds
    )


def style_network(style: str) -> TrainedNetwork:
    """A trained style's network."""
    return TrainedNetwork(f"styles/{style}", styles.model_of(style), ("dense",), {"style": style})


def classifier(config: Config) -> TrainedNetwork:
    """The ImageNet classifier, whose weights the stage `export` saves beside its graph."""
    cell = f"classifiers/{config.deployment.classifier.architecture}"
    tags = {"architecture": config.deployment.classifier.architecture}
    return TrainedNetwork(cell, GRAPHS / cell / "classifier.safetensors", ("dense",), tags)

"""Trained networks on their way to deployment: what is exported, and where the stages find it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.agents import AGENTS, agents, name_of, tags_of
from pipelines.engine.config import Config
from pipelines.styles import PrunedStyle, model_of
from tasks.deployment.export import graph_name
from tasks.deployment.onnx_model import Form
from tasks.deployment.policies import forms_of
from tasks.offline_rl.agents import DENSE, AgentSpec

GRAPHS = Path("models/onnx")


@dataclass(frozen=True)
class Source:
    """A trained network, which graphs are made of."""

    cell: str
    """Its directory below :data:`GRAPHS`, and its runs' name."""
    path: Path
    """What PyTorch builds it from."""
    forms: tuple[Form, ...]
    """That it is exported in, beside sparse initialisers."""
    tags: Mapping[str, str]

    def graph(self, form: Form) -> Path:
        """The ONNX file of one form."""
        return GRAPHS / self.cell / graph_name(self.cell, form)


def policy_of(agent: AgentSpec) -> Source:
    """A trained agent; a pruned one is exported with its zeros, and without what they make dead."""
    path = AGENTS / name_of(agent) / "agent.safetensors"
    return Source(name_of(agent), path, forms_of(agent), tags_of(agent))


def benchmarked_agents(config: Config) -> Iterator[AgentSpec]:
    """The agents that are timed."""
    chosen = config.deployment.benchmark.agents
    return (
        agent
        for agent in agents(config)
        if agent.task in chosen.tasks
        and agent.algorithm in chosen.algorithms
        and agent.pruner in {DENSE, *chosen.pruners}
        and agent.sparsity in chosen.sparsities
        and agent.seed in chosen.seeds
    )


def style_network(style: str) -> Source:
    """A trained style's network."""
    return Source(f"styles/{style}", model_of(style), ("dense",), {"style": style})


def pruned_style_network(network: PrunedStyle) -> Source:
    """A pruned network of a style."""
    return Source(f"styles/{network.name}", model_of(network.name), ("masked", "compacted"), network.tags)


def classifier(config: Config) -> Source:
    """The ImageNet classifier, whose weights the export leaves beside its graph."""
    cell = f"classifiers/{config.deployment.classifier.architecture}"
    tags = {"architecture": config.deployment.classifier.architecture}
    return Source(cell, GRAPHS / cell / "classifier.safetensors", ("dense",), tags)

"""Trained networks that are exported to ONNX, which the stages of deployment share."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.catalog import agents, styles
from pipelines.catalog.paths import GRAPHS
from pipelines.config.params import Config
from tasks.deployment.export import graph_name
from tasks.deployment.onnx_model import Form
from tasks.deployment.policies import forms_of
from tasks.offline_rl.agents import DENSE, AgentSpec


@dataclass(frozen=True)
class Source:
    """A trained network, from which graphs are made."""

    cell: str
    """Its directory below `GRAPHS`, and the name of its runs."""
    path: Path
    """The file from which PyTorch builds it."""
    forms: tuple[Form, ...]
    """The forms in which it is exported, besides that with sparse initialisers."""
    tags: Mapping[str, str]
    modules: tuple[str, ...] = ()
    """What a task that builds it imports by name."""

    def graph(self, form: Form) -> Path:
        """The ONNX file of one form."""
        return GRAPHS / self.cell / graph_name(self.cell, form)


def policy_of(agent: AgentSpec) -> Source:
    """A trained agent. A pruned one is exported with its zeros, and compacted, without its dead units."""
    name, path, modules = agents.name_of(agent), agents.model_of(agent), agents.modules_of(agent)
    return Source(name, path, forms_of(agent), agents.tags_of(agent), modules)


def benchmarked_agents(config: Config) -> Iterator[AgentSpec]:
    """The agents that are timed."""
    chosen = config.deployment.benchmark.agents
    return (
        agent
        for agent in agents.agents(config)
        if agent.task in chosen.tasks
        and agent.algorithm in chosen.algorithms
        and agent.pruner in {DENSE, *chosen.pruners}
        and agent.sparsity in chosen.sparsities
        and agent.seed in chosen.seeds
    )


def style_network(style: str) -> Source:
    """A trained style's network."""
    return Source(f"styles/{style}", styles.model_of(style), ("dense",), {"style": style})


def pruned_style_network(network: styles.PrunedStyle) -> Source:
    """A pruned network of a style."""
    return Source(
        f"styles/{network.name}", styles.model_of(network.name), ("masked", "compacted"), network.tags
    )


def classifier(config: Config) -> Source:
    """The ImageNet classifier, whose weights the stage `export_onnx` leaves beside its graph."""
    cell = f"classifiers/{config.deployment.classifier.architecture}"
    tags = {"architecture": config.deployment.classifier.architecture}
    return Source(cell, GRAPHS / cell / "classifier.safetensors", ("dense",), tags)

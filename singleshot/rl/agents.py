"""Agents: the specification of an agent within a sweep, its networks and masks, and its file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import safetensors.torch
import torch
from annotated_types import Ge, Lt
from pydantic import PositiveInt, TypeAdapter
from torch import Tensor

from singleshot.errors import UserError, explained, must_be
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.pruning.dynamic import METHODS
from singleshot.pruning.pruner import Parts, of_layers
from singleshot.pruning.variant import DENSE, SMALL, variant_name
from singleshot.rl.actions import ActionBounds
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, algorithm_class, module_of
from singleshot.rl.environments import Environment, environment_in_file
from singleshot.rl.networks import (
    AnyNetwork,
    Architecture,
    DenseNetwork,
    Layers,
    LayerTensors,
    SparseNetwork,
    from_parameters,
    initialize,
    sparse_perceptrons,
)
from singleshot.sparse.packed import read_model

AGENT_FILE = "agent.safetensors"
AGENT_FIX = f"give an agent's {AGENT_FILE}, packed or not, or the folder that holds it"
AgentMasks = dict[str, LayerTensors]
"""Masks by network and layer: bool (out, in), the layout in files, true where a weight is kept."""


@dataclass(frozen=True)
class AgentSpec:
    """One agent of a sweep."""

    environment: str
    """Name of the environment."""
    algorithm: str
    """Name of a module in `algorithms`."""
    pruner: str
    """Name of a pruner or of a dynamic method in `singleshot.pruning`, or `dense` or `small`."""
    sparsity: Annotated[float, Ge(0), Lt(1)]
    """Fraction of weights that the trained agent lacks: 0 if and only if the pruner is `dense`."""
    seed: Annotated[int, Ge(0)]

    def __post_init__(self) -> None:
        module_of(self.algorithm)
        for name, value in {"environment": self.environment, "pruner": self.pruner}.items():
            must_be("a name of one line", value.isprintable(), **{name: value})
        if (self.pruner == DENSE) != (self.sparsity == 0):
            raise UserError(
                f"pruner {self.pruner!r} with sparsity {self.sparsity:g}: sparsity 0 goes with {DENSE!r}, "
                "any other with a pruner"
            )

    @property
    def name(self) -> str:
        """The agent's directory below those of masks and agents, and the name of its runs."""
        variant = variant_name(self.pruner, self.sparsity)
        return f"{self.environment}/{self.algorithm}/{variant}/seed-{self.seed}"

    @property
    def module(self) -> str:
        """The module of the algorithm. Code that trains, opens or exports the agent imports it by name."""
        return module_of(self.algorithm)

    @property
    def tags(self) -> dict[str, str]:
        """The tags by which the agent's runs are filtered.

        Charts average the runs of one `agent`, that is, over seeds. Legends show some 20 characters of it, so
        what differs comes first.
        """
        variant = variant_name(self.pruner, self.sparsity)
        return {
            "agent": f"{variant} {self.algorithm} {self.environment}",
            **{field: str(value) for field, value in asdict(self).items()},
            "sparsity": f"{self.sparsity:g}",
        }

    @property
    def mask_pruner(self) -> str | None:
        """Pruner of the masks with which training begins; None if it begins with all weights."""
        if self.pruner in (DENSE, SMALL):
            return None
        return METHODS[self.pruner].begins_with if self.pruner in METHODS else self.pruner

    @property
    def unpruned(self) -> "AgentSpec":
        """An agent, the same for all agents that may be stacked: of this environment, algorithm and size."""
        if self.pruner == SMALL:
            return replace(self, seed=0)
        return replace(self, pruner=DENSE, sparsity=0.0, seed=0)

    def __str__(self) -> str:
        return f"{self.environment} {self.algorithm} {self.pruner} {self.sparsity:g} seed {self.seed}"


@dataclass(frozen=True)
class Agent:
    """A trained agent, as it is stored in its file. Its networks are stacks of one agent."""

    spec: AgentSpec
    algorithm: Algorithm
    """The algorithm, which turns the networks into a policy."""
    networks: Mapping[str, DenseNetwork]
    masks: AgentMasks
    bounds: ActionBounds | None = None
    """The actions that -1 and 1 of the networks stand for; None for -1 and 1 themselves."""
    environment: Environment | None = None
    """Where the agent acts; None if nobody said."""

    def acting_networks(self) -> dict[str, AnyNetwork]:
        """The networks in the form in which a CPU computes them fastest, as in training."""
        masks = of_layers(lambda mask: mask.T[None], self.masks)
        perceptrons = sparse_perceptrons(self.algorithm.architectures, masks, "cpu", "auto")
        return {
            name: SparseNetwork.of(perceptrons[name], network) if name in perceptrons else network
            for name, network in self.networks.items()
        }

    def save(self, path: Path) -> None:
        """Write the agent as safetensors; equal agents give equal bytes.

        Tensors are named `actor.pi.0.weight` (out, in), `….bias` (out,) and `….mask` (bool). The metadata
        hold specification, configuration and sizes as JSON, from which the policy can be rebuilt.
        """
        tensors = {
            f"{name}.{parameter_name}": parameter[0, 0] if parameter_name.endswith("bias") else parameter[0].T
            for name, network in self.networks.items()
            for parameter_name, parameter in network.parameters().items()
        }
        tensors |= {f"{key}.mask": mask for key, mask in flatten_masks(self.masks).items()}
        # A single key, because safetensors writes several keys in an order that changes from run to run.
        description = {
            "spec": asdict(self.spec),
            "config": asdict(self.algorithm.config),
            "state_size": self.algorithm.state_size,
            "action_size": self.algorithm.action_size,
            "bounds": asdict(self.bounds) if self.bounds else None,
            "environment": asdict(self.environment) if self.environment else None,
        }
        contiguous = {
            # A negative weight becomes -0.0 when it is pruned. Adding 0.0 makes it +0.0 like all other pruned
            # weights: these signs would be a fifth of a packed file (`singleshot.sparse.packed`).
            name: (tensor if tensor.dtype == torch.bool else tensor + 0.0).detach().cpu().contiguous()
            for name, tensor in tensors.items()
        }
        safetensors.torch.save_file(
            contiguous, path, metadata={"agent": json.dumps(description, sort_keys=True)}
        )


def load_agent(path: Path) -> Agent:
    """Read what :meth:`Agent.save` wrote, packed or not, or the `agent.safetensors` in a folder.

    Raises:
        UserError: the file is missing, damaged, or holds no agent.
    """
    path = path / AGENT_FILE if path.is_dir() else path
    file = read_model(path, AGENT_FIX)
    with explained(f"{path}: not an agent's {AGENT_FILE}", AGENT_FIX):
        return agent_of(file)


def agent_of(file: TensorFile) -> Agent:
    """The agent in the content of a file. If there is none, any exception may be raised."""
    tensors, description = file.tensors, json.loads(file.metadata["agent"])
    spec = TypeAdapter(AgentSpec).validate_python(description["spec"])
    config_type = algorithm_class(spec.algorithm).config_type
    config: AlgorithmConfig = TypeAdapter(config_type).validate_python(description["config"])
    sizes = description["state_size"], description["action_size"]
    state_size, action_size = TypeAdapter(tuple[PositiveInt, PositiveInt]).validate_python(sizes)
    algorithm = make_algorithm(spec, config, state_size, action_size)
    networks: dict[str, DenseNetwork] = {}
    masks: dict[str, LayerTensors] = {}
    for name, layers in layers_of(algorithm).items():
        parameters: LayerTensors = {}
        masks[name] = {}
        for layer, (inputs, outputs) in layers.items():
            key, matrix = f"{name}.{layer}", (outputs, inputs)
            weight = _checked(tensors, f"{key}.weight", matrix).float()
            bias = _checked(tensors, f"{key}.bias", (outputs,)).float()
            parameters |= {f"{layer}.weight": weight.T[None].contiguous(), f"{layer}.bias": bias[None, None]}
            masks[name][layer] = _checked(tensors, f"{key}.mask", matrix)
            if weight[~masks[name][layer]].any():
                raise ValueError(f"{key}.weight has others than 0 where its mask prunes")
        networks[name] = from_parameters(parameters)
    bounds = TypeAdapter(ActionBounds | None).validate_python(description["bounds"])
    if bounds and len(bounds.low) != action_size:
        raise ValueError(f"bounds of {len(bounds.low)} coordinates, but actions of {action_size}")
    environment = environment_in_file(description["environment"])
    return Agent(spec, algorithm, networks, masks, bounds, environment)


def _checked(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """A file's tensor of finite numbers, or mask, of this shape."""
    found = tensors[name]
    if found.shape != shape:
        raise ValueError(f"{name} has shape {tuple(found.shape)}, not {shape}")
    right = found.dtype == torch.bool if name.endswith(".mask") else found.is_floating_point()
    if not (right and found.float().isfinite().all()):
        raise ValueError(f"{name} is of {found.dtype}, or has NaN or infinity")
    return found


def make_algorithm(spec: AgentSpec, config: AlgorithmConfig, state_size: int, action_size: int) -> Algorithm:
    """Make the algorithm of `spec` for states and actions of these sizes.

    Raises:
        UserError: `config` belongs to another algorithm.
    """
    algorithm = algorithm_class(spec.algorithm)
    if type(config) is not algorithm.config_type:
        raise UserError(f"{spec}: its configuration is a {type(config).__name__}, another algorithm's")
    if spec.pruner != SMALL:
        return algorithm(config, state_size, action_size)

    class Small(algorithm):  # type: ignore[misc, valid-type]
        @property
        def architectures(self) -> Mapping[str, Architecture]:
            density = 1 - spec.sparsity
            return {name: network.shrunk(density) for name, network in super().architectures.items()}

    return Small(config, state_size, action_size)


def layers_of(algorithm: Algorithm) -> dict[str, Layers]:
    """Numbers of inputs and outputs of each layer, by network."""
    return {name: architecture.layers for name, architecture in algorithm.architectures.items()}


def parts_of(algorithm: Algorithm) -> Parts:
    """The layers of each part, by network."""
    return {name: architecture.parts for name, architecture in algorithm.architectures.items()}


def initial_networks(algorithm: Algorithm, seeds: Sequence[int], draw: int = 0) -> dict[str, DenseNetwork]:
    """An algorithm's networks before pruning, one agent per seed. Another `draw` gives different weights."""
    kind = algorithm.config.initialization
    return {
        name: initialize(name, layers, seeds, draw, kind) for name, layers in layers_of(algorithm).items()
    }


def flatten_masks(masks: Mapping[str, LayerTensors]) -> dict[str, Tensor]:
    """Masks by `network.layer`, as they are named in files."""
    return {f"{name}.{layer}": mask for name, layers in masks.items() for layer, mask in layers.items()}


def dense_masks(algorithm: Algorithm) -> AgentMasks:
    """Masks that keep every weight."""
    return of_layers(lambda shape: torch.ones(shape[::-1], dtype=torch.bool), layers_of(algorithm))


def load_masks(path: Path, algorithm: Algorithm) -> AgentMasks:
    """Read a `masks.safetensors` that was made for `algorithm`'s networks.

    Raises:
        UserError: the file is missing or damaged, or its masks are for other networks.
    """
    tensors = read_tensor_file(path).tensors
    expected = {key: (mask.shape, mask.dtype) for key, mask in flatten_masks(dense_masks(algorithm)).items()}
    if {key: (mask.shape, mask.dtype) for key, mask in tensors.items()} != expected:
        raise UserError(f"{path}: its masks are {sorted(tensors)}, not those of this agent's networks")
    return {
        name: {layer: tensors[f"{name}.{layer}"] for layer in layers}
        for name, layers in layers_of(algorithm).items()
    }

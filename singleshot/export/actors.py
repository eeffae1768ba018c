"""The actor of a BCQ agent, a perceptron with 400 and 300 hidden units, in a packed file of its own."""

import json
from pathlib import Path

from torch import Tensor

from singleshot.errors import UserError
from singleshot.export.network import Network
from singleshot.export.onnx_model import Form, GraphInput
from singleshot.export.policies import forms_of, masked_layers, sequential
from singleshot.io.tensor_file import TensorFile, reading
from singleshot.rl.agents import load_agent
from singleshot.rl.algorithms import bcq
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.sparse.compaction import Layer, compact
from singleshot.sparse.packed import pack, read_packed

INPUTS = 1.0
"""Inputs are drawn from ± this. Actions are within ± 1, and so are most numbers of a state."""


def pack_actor(source: Path) -> bytes:
    """Pack the actor from the `agent.safetensors` of a BCQ agent, with pruned weights as zeros.

    Raises:
        UserError: the file is missing, damaged, or holds no BCQ agent.
    """
    agent = load_agent(source)
    if not isinstance(agent.algorithm.config, BCQConfig):
        raise UserError(f"{source}: {agent.spec} has no actor; name an agent of bcq")
    tensors: dict[str, Tensor] = {}
    for i, layer in enumerate(masked_layers(agent, "actor", bcq.ACTOR)):
        tensors |= {f"{i}.weight": layer.weight + 0.0, f"{i}.bias": layer.bias}  # + 0.0: -0.0 would be kept
    spec = agent.spec
    card = {"environment": spec.environment, "sparsity": spec.sparsity, "forms": forms_of(spec)}
    return pack(TensorFile(tensors, {"actor": json.dumps(card)}))


def open_actor(source: Path, form: Form) -> Network:
    """Open the actor as a perceptron of states and actions, without the final Φ tanh.

    Raises:
        UserError: the file is damaged or not from :func:`pack_actor`, or the actor has no such form.
    """
    model = read_packed(source).model
    with reading(source, "a packed actor", "pack the agent's actor again"):
        if "actor" not in model.metadata:
            raise UserError(
                f"{source}: packed, but no actor; unpack it with `python -m pipelines unpack {source}`"
            )
        return _actor(source, model, form)


def _actor(source: Path, model: TensorFile, form: Form) -> Network:
    card = json.loads(model.metadata["actor"])
    if form not in card["forms"]:
        raise UserError(f"{source}: the actor has no {form} form; ask for {' or '.join(card['forms'])}")
    tensors = model.tensors
    layers = [Layer(tensors[f"{i}.weight"], tensors[f"{i}.bias"]) for i in range(len(bcq.ACTOR))]
    return Network(
        kind="actor",
        form=form,
        module=sequential(compact(layers) if form == "compacted" else layers).eval(),
        inputs=(GraphInput("state_and_action", ("batch", layers[0].weight.shape[1]), -INPUTS, INPUTS),),
        outputs=("perturbation",),
        sparsity=card["sparsity"],
        details={"environment": card["environment"], "algorithm": "bcq"},
    )

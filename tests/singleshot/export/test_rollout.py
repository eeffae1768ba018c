"""Episodes by onnxruntime against episodes by PyTorch.

MuJoCo's dynamics are chaotic, and any two ways of rounding part. Trained HalfCheetahs by PyTorch in float32
and in float64 agree to 1e-4 for 4 to 23 of 1,000 steps, and returns of the same start differ by 7 % (BC) or
by any factor (BCQ: 723 and 6,984); Hopper's agree for 264 to 646 steps and to 0.3 %. With onnxruntime in
place of float64 it is the same: 3 to 28 steps and 263 to 625. What stays is how returns are distributed:
6,154 ± 253 by PyTorch and 6,295 ± 218 by onnxruntime, means of 75 episodes of that BCQ agent (Kolmogorov-
Smirnov p = 0.79).

So returns are compared where episodes are short.
"""

import numpy as np
import onnx
import pytest
import small_graphs
from onnx import helper
from small_networks import make_agent

from singleshot.errors import UserError
from singleshot.export.rollout import play_onnx
from singleshot.io.to_onnx import card_of, to_onnx
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation.play import evaluate
from singleshot.rl.policies import policy_network

pytestmark = pytest.mark.slow
EPISODES = 4


@pytest.fixture(scope="module", params=["bcq", "bc"])
def agent(request):
    return make_agent(request.param, sparsity=0.0)


@pytest.fixture(scope="module")
def path(agent, tmp_path_factory):
    directory = tmp_path_factory.mktemp("agent")
    agent.save(directory / "agent.safetensors")
    network = policy_network(agent, "dense")
    card = card_of(network, "Hopper", "unknown", directory / "agent.safetensors")
    onnx.save(to_onnx(network, card, opset=20), directory / "policy.onnx")
    return directory / "policy.onnx"


def test_returns_are_pytorchs(agent, path):
    expected, _ = evaluate(agent, agent.environment, EPISODES, seed=3)
    # Untrained agents fall within 50 steps, too soon for rounding to grow: 7e-8 here.
    np.testing.assert_allclose(play_onnx(path, episodes=EPISODES, seed=3), expected, rtol=1e-5)
    assert not np.isclose(play_onnx(path, episodes=EPISODES, seed=4), expected, rtol=1e-3).any()


def test_other_sizes_and_what_is_no_policy_are_refused(path, tmp_path):
    with pytest.raises(UserError, match="17 and 6 coordinates, the agent's 11 and 3"):
        play_onnx(path, LOCOMOTION["HalfCheetah"])
    small_graphs.write_style(tmp_path / "graph.onnx", "waves")
    with pytest.raises(UserError, match=r"graph\.onnx: a style, not a policy"):
        play_onnx(tmp_path / "graph.onnx")


def test_an_action_that_is_a_list_of_tensors_is_refused(path, tmp_path):
    graph = onnx.load(path)
    for node in graph.graph.node:
        node.output[:] = ["tensor" if name == "action" else name for name in node.output]
    graph.graph.node.append(helper.make_node("SplitToSequence", ["tensor"], ["action"], keepdims=0))
    (action,) = (output for output in graph.graph.output if output.name == "action")
    action.CopyFrom(helper.make_tensor_sequence_value_info("action", onnx.TensorProto.FLOAT, None))
    onnx.save(graph, tmp_path / "list.onnx")
    with pytest.raises(UserError, match=r"list\.onnx: its action isn't finite or of another size"):
        play_onnx(tmp_path / "list.onnx")

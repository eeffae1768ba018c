import numpy as np
import onnxruntime
import pytest
import torch
from small_networks import save_style

from singleshot.export.model_files import open_network
from singleshot.export.style_graph import style_graph


@pytest.mark.parametrize("size", [(64, 48), (38, 51), (5, 7)], ids=str)
def test_a_graph_computes_what_the_network_does(tmp_path, size):
    path = save_style(tmp_path / "model.safetensors", width=6)
    network = open_network(path).module
    pictures = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))
    graph = style_graph(network, *size).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (stylised,) = session.run(["stylised"], {"pictures": pictures.numpy()})
    with torch.inference_mode():
        exact = network.double()(pictures.double()).numpy()
    assert stylised.shape == exact.shape
    assert exact.std() > 0.01
    assert np.abs(stylised - exact).max() < 1e-5


def test_equal_networks_give_equal_bytes(tmp_path):
    network = open_network(save_style(tmp_path / "model.safetensors")).module
    assert (
        style_graph(network, 20, 24).SerializeToString() == style_graph(network, 20, 24).SerializeToString()
    )

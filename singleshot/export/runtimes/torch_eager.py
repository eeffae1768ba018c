"""PyTorch without a compiler, on the CPU or a GPU."""

from collections.abc import Callable
from typing import Any, cast

import torch

from singleshot.export.model_files import open_network
from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes
from singleshot.io.onnx_model import Form
from singleshot.io.to_onnx import Network

RUNTIMES = {"torch": {"packages": ("torch",)}, "torch-cuda": {"packages": ("torch",)}}


class TorchEager(Runtime):
    """Runs a network's own modules, in float32 throughout."""

    def __init__(self, name: str, streams: int = 1) -> None:
        super().__init__(name, streams)
        self._device = torch.device("cuda" if name == "torch-cuda" else "cpu")

    def unavailable(self) -> str | None:
        """Reason why the runtime can't run here; None if it can."""
        if self._device.type == "cpu" or torch.cuda.is_available():
            return None
        return "PyTorch finds no GPU here" if torch.version.cuda else "this PyTorch is built only for CPUs"

    def version(self) -> str:
        """Version of PyTorch."""
        return torch.__version__

    def device(self) -> str:
        """`cpu`, or the GPU's name."""
        return "cpu" if self._device.type == "cpu" else torch.cuda.get_device_name(self._device)

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:  # noqa: ARG002
        """Move the network to the device."""
        set_threads(threads)
        # Full float32 also on a GPU, where cuDNN's convolutions use TF32 by default.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        network = read_network(model)
        return Prepared(runner(network, network.module.to(self._device), self._device), "float32")


def read_network(model: ModelFiles) -> Network:
    """The network in the form that its graph has."""
    return open_network(model.source, cast(Form, model.form))


def set_threads(threads: int) -> None:
    """Set the number of threads for one operator; operators run one after another."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)


def runner(network: Network, module: Callable[..., Any], device: torch.device) -> Callable[[Arrays], Arrays]:
    """Turn `module`, which computes `network`, into a function of arrays."""
    names, outputs = [each.name for each in network.card.inputs], network.card.outputs

    @torch.inference_mode()
    def run(inputs: Arrays) -> Arrays:
        # Copying the results to the CPU waits until a GPU is done.
        results = module(*(torch.from_numpy(inputs[name]).to(device) for name in names))
        results = (results,) if isinstance(results, torch.Tensor) else results
        return {name: result.cpu().numpy() for name, result in zip(outputs, results, strict=True)}

    return run


ADAPTER = TorchEager

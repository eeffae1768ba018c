"""torch.compile: PyTorch's own compiler, TorchInductor, which writes C++ and calls the system's compiler."""

import os
import shutil

import numpy as np
import torch

from singleshot.export.runtimes.protocol import ModelFiles, Prepared, Runtime, Shapes
from singleshot.export.runtimes.torch_eager import read_network, runner, set_threads

RUNTIMES = {"torch-compile": {"packages": ("torch",), "slow_to_prepare": True}}


class TorchCompile(Runtime):
    """Runs kernels that are compiled for one size and one number of threads."""

    def __init__(self, name: str, streams: int = 1) -> None:
        super().__init__(name, streams)
        # By default, Inductor compiles a program for each instruction set to see whether it runs, which takes
        # 10 s of CPU time in each process. The processor itself tells which sets it has.
        os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
        # C++ kernels are compiled by threads of this process, one for each core. The processes that Inductor
        # starts for Triton's kernels are not needed, and would start while another runtime is timed.
        os.environ["TORCH_WARM_POOL"] = "0"
        torch.compile(torch.neg)  # imports Inductor, or its two seconds would count for the first network

    def unavailable(self) -> str | None:
        """Reason why the runtime can't run here; None if it can."""
        compiler = os.environ.get("CXX", "g++")  # as Inductor chooses it on Linux
        if shutil.which(compiler):
            return None
        return f"there is no C++ compiler {compiler}; install g++, or name another one in CXX"

    def version(self) -> str:
        """Version of PyTorch."""
        return torch.__version__

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile and call the network once, which is when Inductor compiles."""
        set_threads(threads)
        # Compiled code is for certain sizes and threads. Without the reset, other sizes would be compiled
        # once more, for any size.
        torch.compiler.reset()
        network = read_network(model)
        run = runner(network, torch.compile(network.module, dynamic=False), torch.device("cpu"))
        run({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
        return Prepared(run, "float32")


ADAPTER = TorchCompile

"""An adapter of runtimes that misbehave: onnxruntime, but for a fault each."""

import os
import signal
import sys

import numpy as np

from singleshot.export.runtimes.onnx_runtime import OnnxRuntime
from singleshot.export.runtimes.protocol import Prepared

MEGABYTES = 200
"""That `toy-greedy` holds for a moment."""


class ADAPTER(OnnxRuntime):
    def __init__(self, name):
        super().__init__("onnxruntime")
        self.toy = name

    def unavailable(self):
        return "no such accelerator" if self.toy == "toy-missing" else None

    def prepare(self, model, shapes, threads):
        if self.toy == "toy-raises":
            raise ValueError("no operator Foo\nin " + "line " * 100)
        right = super().prepare(model, shapes, threads).run
        calls = 0

        def run(inputs):
            nonlocal calls
            calls += 1
            outputs = right(inputs)
            match self.toy:
                case "toy-wrong":
                    return outputs | {"action": outputs["action"] + np.float32(0.04)}
                case "toy-dies":
                    print("Fatal: bad kernel", file=sys.stderr, flush=True)
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "toy-dies-later" if calls == 20:  # while it is timed
                    os._exit(3)
                case "toy-hangs":
                    signal.pause()
                case "toy-chatters":
                    os.write(1, b"not an answer\n")
                case "toy-greedy" if len(outputs["action"]) == 2:
                    np.ones(MEGABYTES * 125_000).sum()
            return outputs

        return Prepared(run, "float32")

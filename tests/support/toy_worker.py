"""A worker of runtimes that misbehave: onnxruntime, but for a fault each. `python -m toy_worker`."""

import os
import signal
import subprocess
import sys

import numpy as np

from singleshot.export.runtimes.onnx_runtime import OnnxRuntime
from singleshot.export.runtimes.protocol import Prepared
from singleshot.export.worker import main

MEGABYTES = 200
"""That `toy-greedy` holds for a moment."""


class Toy(OnnxRuntime):
    """No fault yet."""

    def __init__(self):
        super().__init__("onnxruntime")

    def prepare(self, model, shapes, threads):
        right = super().prepare(model, shapes, threads).run
        self.calls = 0

        def run(inputs):
            self.calls += 1
            return self.called(right(inputs))

        return Prepared(run, "float32")

    def called(self, outputs):
        return outputs


class Missing(Toy):
    def unavailable(self):
        return "no such accelerator"


class Raises(Toy):
    def prepare(self, model, shapes, threads):
        raise ValueError("no operator Foo\nin " + "line " * 100)


class Wrong(Toy):
    def called(self, outputs):
        return outputs | {"action": outputs["action"] + np.float32(0.04)}


class Dies(Toy):
    def called(self, outputs):
        print("Fatal: bad kernel", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


class DiesLater(Toy):
    """While it is timed."""

    def called(self, outputs):
        if self.calls == 20:
            os._exit(3)
        return outputs


class Hangs(Toy):
    """And so does a process it has started, whose id is then in the file `HANGING_CHILD`."""

    def __init__(self):
        super().__init__()
        self.child = subprocess.Popen(["sleep", "10000"])

    def called(self, outputs):
        if "HANGING_CHILD" in os.environ:
            with open(os.environ["HANGING_CHILD"], "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(f"{os.getpid()} {self.child.pid}")
        while True:
            signal.pause()


class Chatters(Toy):
    def called(self, outputs):
        os.write(1, b'{"error": "not an answer"}\n')
        print("nor this")
        return outputs


class Greedy(Toy):
    """Where the batch is 2."""

    def called(self, outputs):
        if len(outputs["action"]) == 2:
            np.ones(MEGABYTES * 125_000).sum()
        return outputs


TOYS = {
    "toy": Toy,
    "toy-missing": Missing,
    "toy-raises": Raises,
    "toy-wrong": Wrong,
    "toy-dies": Dies,
    "toy-dies-later": DiesLater,
    "toy-hangs": Hangs,
    "toy-chatters": Chatters,
    "toy-greedy": Greedy,
}

if __name__ == "__main__":
    main(lambda name: TOYS[name]())

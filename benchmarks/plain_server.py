"""A plain FastAPI server for a policy: a model of the request, and a call of onnxruntime on one thread.

Start it with `uvicorn --factory benchmarks.plain_server:make_app`, the graph's path in the environment
variable `GRAPH`, and the policy's number of samples in `SAMPLES`. `benchmarks.serving` compares this
project's server with it.
"""

import os

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel


class State(BaseModel):
    """A state."""

    state: list[float]


def make_app() -> FastAPI:
    """Make the application."""
    app, options, generator = FastAPI(), onnxruntime.SessionOptions(), np.random.default_rng()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # more are slower for so small a network
    session = onnxruntime.InferenceSession(os.environ["GRAPH"], options, providers=["CPUExecutionProvider"])
    latents = {each.name: each.shape for each in session.get_inputs()}.get("latents")
    shape = latents and [1, *([int(os.environ["SAMPLES"])] if len(latents) == 3 else []), latents[-1]]

    @app.post("/act")
    async def act(asked: State) -> dict[str, list[float]]:
        inputs = {"state": np.asarray([asked.state], np.float32)}
        if shape:
            inputs["latents"] = generator.standard_normal(shape, np.float32)
        return {"action": session.run(["action"], inputs)[0][0].tolist()}

    return app

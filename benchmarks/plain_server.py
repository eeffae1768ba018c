"""A plain FastAPI server for a policy: a model of the request, and a call of onnxruntime on one thread.

Start it with `uvicorn --factory benchmarks.plain_server:make_app` and the graph's path in the environment
variable `GRAPH`. `benchmarks.serving` compares this project's server with it.
"""

import os

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel


class Inputs(BaseModel):
    """A batch of states and latents."""

    state: list[list[float]]
    latents: list[list[float]] | list[list[list[float]]]


def make_app() -> FastAPI:
    """Make the application."""
    app, options = FastAPI(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # more are slower for so small a network
    session = onnxruntime.InferenceSession(os.environ["GRAPH"], options, providers=["CPUExecutionProvider"])

    @app.post("/act")
    async def act(inputs: Inputs) -> dict[str, list[list[float]]]:
        arrays = {name: np.asarray(values, np.float32) for name, values in inputs.model_dump().items()}
        (action,) = session.run(["action"], arrays)
        return {"action": action.tolist()}

    return app

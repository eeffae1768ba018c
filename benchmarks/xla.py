"""XLA by TensorFlow against XLA by jax.jit, on the CPU: `python -m benchmarks.xla tensorflow` and `… jax`.

The first is run by the interpreter of `tasks.deployment.environment`, the second by one of an environment
with jax (`python3.11 -m venv jax-env && jax-env/bin/pip install jax==0.10.2`). Both take
the same networks written by hand: HalfCheetah's BC as a multilayer perceptron, and a residual block of the
style network with 64 channels at 64 px, channels last. One thread; arrays come from and go to NumPy.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from benchmarks.command import run_main
from benchmarks.paired import heading
from tasks.errors import UserError

SIZES = (29, 750, 750, 6)
CHANNELS, SIDE_PX = 64, 64
SECONDS = 5.0
Array = np.ndarray


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("tensorflow", "jax"))
    name = parser.parse_args().name
    try:
        mlp, block = (_tensorflow if name == "tensorflow" else _jax)()
    except ImportError as error:
        raise UserError(f"{error}; run it by the interpreter that --help names") from error
    rng = np.random.default_rng(0)
    inputs: dict[str, tuple[Callable[[Array], Array], Array]] = {
        "MLP, batch 1": (mlp, rng.normal(size=(1, SIZES[0]))),
        "MLP, batch 256": (mlp, rng.normal(size=(256, SIZES[0]))),
        "residual block": (block, rng.normal(size=(1, SIDE_PX, SIDE_PX, CHANNELS))),
    }
    print(heading(name))
    print("| network | XLA by | compile s | p50 ms | CPU ms | sum of outputs |\n|---|---|---|---|---|---|")
    for network, (run, given) in inputs.items():
        x = given.astype(np.float32)
        started = time.perf_counter()
        total = float(run(x).sum(dtype=np.float64))
        first = time.perf_counter() - started
        wall, cpu = _time(lambda run=run, x=x: run(x))
        print(f"| {network} | {name} | {first:.2f} | {wall:.3f} | {cpu:.3f} | {total:.4f} |", flush=True)


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds, of wall and of CPU."""
    samples = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        samples.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
    walls, cpus = zip(*samples, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def _weights() -> tuple[list[Array], list[Array]]:
    """(in, out) of each layer of the perceptron, and (3, 3, in, out) of both convolutions."""
    rng = np.random.default_rng(1)
    shapes = list(pairwise(SIZES))
    dense = [rng.normal(size=shape) / np.sqrt(shape[0]) for shape in shapes]
    kernels = [rng.normal(size=(3, 3, CHANNELS, CHANNELS)) / np.sqrt(9 * CHANNELS) for _ in range(2)]
    return [w.astype(np.float32) for w in dense], [k.astype(np.float32) for k in kernels]


def _tensorflow() -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    dense, kernels = ([tf.constant(array) for array in arrays] for arrays in _weights())

    @tf.function(jit_compile=True)
    def mlp(x: tf.Tensor) -> tf.Tensor:
        for weight in dense[:-1]:
            x = tf.nn.relu(x @ weight)
        return tf.tanh(x @ dense[-1])

    def convolution(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        x = tf.nn.conv2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT"), kernel, 1, "VALID")
        mean, variance = tf.nn.moments(x, (1, 2), keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    @tf.function(jit_compile=True)
    def block(x: tf.Tensor) -> tf.Tensor:
        return x + convolution(tf.nn.relu(convolution(x, kernels[0])), kernels[1])

    return lambda x: mlp(tf.constant(x)).numpy(), lambda x: block(tf.constant(x)).numpy()


def _jax() -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    import jax
    import jax.numpy as jnp

    dense, kernels = ([jnp.asarray(array) for array in arrays] for arrays in _weights())

    @jax.jit
    def mlp(x: jax.Array) -> jax.Array:
        for weight in dense[:-1]:
            x = jax.nn.relu(x @ weight)
        return jnp.tanh(x @ dense[-1])

    def convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
        layouts = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layouts)
        mean, variance = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5)

    @jax.jit
    def block(x: jax.Array) -> jax.Array:
        return x + convolution(jax.nn.relu(convolution(x, kernels[0])), kernels[1])

    return lambda x: np.asarray(mlp(x)), lambda x: np.asarray(block(x))


if __name__ == "__main__":
    run_main(main)

"""Numbers and claims that the three reports print, each with its place, to be compared with ours.

Where a report has only a curve or a picture, there is no number here.
"""

from dataclasses import dataclass

ARNOB = "S. Y. Arnob, R. Ohib, S. Plis, D. Precup: Single-Shot Pruning for Offline Reinforcement Learning"
HYYPPA = "M. Hyyppä: M2019KE Document, 2019"
SHEN = "Y. Shen, Z. Wang: Style Transfer of Images and Videos, University of Pennsylvania"


@dataclass(frozen=True)
class NetworkSizes:
    """A row of Table 1: our pruner and format, and the paper's megabytes of 10^6 bytes."""

    method: str
    pruner: str
    format: str
    actor: float
    critic: float
    vae: float


# Agents that were trained for Figures 1 and 2 (Arnob et al., section 4).
SWEEP_ALGORITHMS = ("bc", "bcq")
HIGHEST_SPARSITY = 0.95
LOSES = ("bcq", "Hopper")
"""The only agents that lose score at this sparsity: see the claim."""
SWEEP_ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
SWEEP_SEEDS = 5
SWEEP_UPDATES = 1_000_000
RETENTION_CLAIM = (
    "for all the experiments, except for BCQ in Hopper task, the performance is consistent even with 95% "
    "sparse networks"
)
SPARSE_SAVING = 4
"""How many times fewer bytes networks take at 95 % sparsity (section 4.3, and “4x” in the conclusion)."""
TABLE_1 = (
    NetworkSizes("Dense Model", "dense", "dense", 0.5287, 1.04492, 4.7621),
    NetworkSizes("Dense Model Sparse Indexing", "dense", "dense_sparse_indexing", 2.6318, 5.2035, 23.7739),
    NetworkSizes("GraSP (95% sparse)", "grasp", "coo", 0.14099, 0.2768, 1.2122),
    NetworkSizes("SNIP (95% sparse)", "snip", "coo", 0.14297, 0.2824, 1.2303),
)
TABLE_1_ENVIRONMENTS = ("HalfCheetah", "Walker2d")
"""Environments whose networks (states of 17 numbers, actions of 6) have the dense bytes of Table 1, which
names no environment."""

EXPERIMENT = {"wine_bottle.jpg": ("wine bottle", 14.334), "carla_small.jpg": ("tennis ball", 6.421)}
"""The class of each picture (Hyyppä, section 4), with the network's output before any softmax."""


@dataclass(frozen=True)
class Compiler:
    """A compiler that the report describes, its successor, and the runtimes of this project that use it."""

    name: str
    """With the report's section, in brackets."""
    successor: str
    runtimes: tuple[str, ...]


COMPILERS = (
    Compiler("TensorFlow (2.5, 4)", "TensorFlow", ("tensorflow",)),
    Compiler("XLA (3.2)", "XLA, through JAX", ("xla",)),
    Compiler("TVM/NNVM (3.3)", "TVM; NNVM became part of it", ("tvm",)),
    Compiler("nGraph (3.4)", "OpenVINO, which absorbed nGraph", ("openvino-f32", "openvino-bf16")),
)


TABLE_I = {
    256: {"alexnet": 9.15, "vgg": 23.0, "network": 0.020},
    512: {"alexnet": 16.0, "vgg": 78.8, "network": 0.070},
    1024: {"alexnet": 51.4, "vgg": 285.0, "network": 0.172},
}
"""Seconds per picture on a Colab GPU by short side in pixels: of Version 1 by its backbone, and of a trained
network (Version 2)."""
STYLES = ("The Starry Night", "The Scream", "The Great Wave off Kanagawa")
"""Paintings in Figure 7."""
LARGE_PX = (4032, 2480)
"""Width and height of the picture in Figure 8."""

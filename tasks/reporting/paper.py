"""Numbers and claims that the three reports print, each with its place, to be shown beside ours.

Where a report has only a curve or a picture, there is no number here.
"""

from dataclasses import dataclass
from math import nan


@dataclass(frozen=True)
class Report:
    """One of the three reports."""

    name: str
    """Authors, by which captions cite the report."""
    citation: str


ARNOB = Report(
    "Arnob et al.",
    "S. Y. Arnob, R. Ohib, S. Plis, D. Precup: Single-Shot Pruning for Offline Reinforcement Learning, 2021",
)
HYYPPA = Report("Hyyppä", "M. Hyyppä: M2019KE Document, 2019")
SHEN = Report(
    "Shen and Wang", "Y. Shen, Z. Wang: Style Transfer of Images and Videos, University of Pennsylvania"
)


@dataclass(frozen=True)
class NetworkSizes:
    """A row of Table 1: our pruner and format, and the paper's megabytes of 10^6 bytes, if it has any."""

    method: str
    pruner: str
    format: str
    actor: float = nan
    critic: float = nan
    vae: float = nan


# Agents that were trained for Figures 1 and 2 (Arnob et al., section 4).
SWEEP_ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
SWEEP_SEEDS = 5
SWEEP_SPARSITIES = (0.10, 0.95)
"""Lowest and highest sparsity."""
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


@dataclass(frozen=True)
class Classified:
    """The class of a picture (Hyyppä, section 4), with the network's output before any softmax."""

    picture: str
    label: str
    output: float


EXPERIMENT = (
    Classified("wine_bottle.jpg", "wine bottle", 14.333847999572754),
    Classified("carla_small.jpg", "tennis ball", 6.421350002288818),
)


@dataclass(frozen=True)
class Compiler:
    """A compiler that the report describes, its successor, and the runtimes of this project that use it."""

    name: str
    section: str
    successor: str
    runtimes: tuple[str, ...]


COMPILERS = (
    Compiler("TensorFlow", "2.5, 4", "TensorFlow", ("tensorflow",)),
    Compiler("XLA", "3.2", "XLA, through JAX", ("xla",)),
    Compiler("TVM/NNVM", "3.3", "TVM; NNVM became part of it", ("tvm",)),
    Compiler("nGraph", "3.4", "OpenVINO, which absorbed nGraph", ("openvino-f32", "openvino-bf16")),
)


@dataclass(frozen=True)
class Speed:
    """A row of Table I: seconds per picture, on a Colab GPU."""

    size_px: int
    alexnet: float
    vgg: float
    network: float
    """Seconds of Version 2, a trained network."""


TABLE_I = (
    Speed(256, 9.15, 23.0, 0.020),
    Speed(512, 16.0, 78.8, 0.070),
    Speed(1024, 51.4, 285.0, 0.172),
)
ALEXNET_SPEEDUP = 5.0
"""AlexNet over VGG-19 at 512 px, “around 5 times faster” (section V.B)."""
BEST_OPTIMIZER = "lbfgs"
"""“LBFGS has the lowest total loss” (section V.D); SGD “cannot provide a valid visual result”."""
STYLES = ("The Starry Night", "The Scream", "The Great Wave off Kanagawa")
"""Paintings in Figure 7."""
LARGE_PX = (4032, 2480)
"""Width and height of the picture in Figure 8."""

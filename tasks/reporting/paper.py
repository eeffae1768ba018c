"""What the three reports say, as they print it: numbers to stand beside ours, each with its place.

Where a report has a curve or a picture and no number, there is none here either.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """One of the three lines of work."""

    name: str
    """Authors, as captions cite the report."""
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
class Sweep:
    """What was trained for Figures 1 and 2 (Arnob et al., section 4)."""

    tasks: tuple[str, ...] = ("HalfCheetah", "Hopper", "Walker2d")
    seeds: int = 5
    sparsities: tuple[float, float] = (0.10, 0.95)
    """Lowest and highest."""
    updates: int = 1_000_000


@dataclass(frozen=True)
class NetworkSizes:
    """A row of Table 1: megabytes of 10^6 bytes."""

    method: str
    actor: float
    critic: float
    vae: float


SWEEP = Sweep()
RETENTION_CLAIM = (
    "for all the experiments, except for BCQ in Hopper task, the performance is consistent even with 95% "
    "sparse networks"
)
SPARSE_SAVING = 4
"""Times fewer bytes at 95 % sparsity (section 4.3, and the conclusion's “4x”)."""
TABLE_1 = (
    NetworkSizes("Dense Model", 0.5287, 1.04492, 4.7621),
    NetworkSizes("Dense Model Sparse Indexing", 2.6318, 5.2035, 23.7739),
    NetworkSizes("GraSP (95% sparse)", 0.14099, 0.2768, 1.2122),
    NetworkSizes("SNIP (95% sparse)", 0.14297, 0.2824, 1.2303),
)
TABLE_1_TASKS = ("HalfCheetah", "Walker2d")
"""The tasks whose networks (17 numbers of state, 6 of action) have Table 1's dense bytes; it names none."""


@dataclass(frozen=True)
class Classified:
    """A picture's answer (Hyyppä, section 4); the value is the network's output before any softmax."""

    picture: str
    label: str
    output: float


EXPERIMENT = (
    Classified("wine_bottle.jpg", "wine bottle", 14.333847999572754),
    Classified("carla_small.jpg", "tennis ball", 6.421350002288818),
)


@dataclass(frozen=True)
class Compiler:
    """A technology that the report describes, and the runtimes here that carry it on."""

    name: str
    section: str
    successor: str
    runtimes: tuple[str, ...]


COMPILERS = (
    Compiler("TensorFlow", "2.5, 4", "TensorFlow", ("tensorflow",)),
    Compiler("XLA", "3.2", "XLA, by JAX", ("xla",)),
    Compiler("TVM/NNVM", "3.3", "TVM; NNVM became part of it", ("tvm", "tvm-tuned")),
    Compiler("nGraph", "3.4", "OpenVINO, which took nGraph in", ("openvino-f32", "openvino-bf16")),
)


@dataclass(frozen=True)
class Speed:
    """A row of Table I: seconds for a picture, on a GPU of Colab."""

    size_px: int
    alexnet: float
    vgg: float
    network: float
    """Version 2."""


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
"""Of Figure 7."""
LARGE_PX = (4032, 2480)
"""The picture of Figure 8."""

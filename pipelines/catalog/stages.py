"""The stages of dvc.yaml and their steps: what each does, and how MLflow presents a step.

The sentence that describes a stage is written here; the command line and `desc` in dvc.yaml repeat it. The
module imports nothing heavy, so that the command line can list its commands at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.catalog import paths
from pipelines.engine.experiments import Experiment

AGENT = ("environment", "algorithm", "pruner", "sparsity", "seed")

STEPS: Mapping[str, Experiment] = {
    "prepare_data": Experiment(
        "Make each environment's transitions, from rollouts of experts or from Minari's or D4RL's data.",
        "`d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean return of the "
        "episodes in the data.",
        tags=("environment", "source"),
        metrics=("d4rl_score", "return_mean"),
    ),
    "prune": Experiment(
        "Make the masks of every pruned agent of the sweep, before any training.",
        "`layers.csv` has the number of weights that each mask keeps of each layer.",
        tags=AGENT,
        tables=(paths.LAYERS,),
    ),
    "train": Experiment(
        "Train every agent of the sweep under its mask, and score it as it trains.",
        "Steps are updates. `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the "
        "mean return of the episodes played after that update. The charts average over seeds. `scores.csv` "
        "has all evaluations.",
        tags=AGENT,
        metrics=("d4rl_score", "return_mean", "updates_per_second"),
        groups=("agent",),
        tables=(paths.SCORES,),
    ),
    "animate": Experiment(
        "Draw an episode of trained agents in motion: each alone, and dense beside pruned agents.",
        "The episode is one of median return in the last evaluation. A run with a tag `pruner` "
        "shows a single agent.",
        tags=AGENT,
    ),
    "sizes": Experiment(
        "Measure the bytes of every trained agent's networks in each storage format.",
        "The bytes are in `sizes.csv`, where `ratio_to_dense` is the bytes of the dense network divided by "
        "those of the format.",
        tags=AGENT,
        tables=(paths.SIZES,),
    ),
    "quantize": Experiment(
        "Round the values of trained agents to fewer bits, and score the agents again.",
        "`d4rl_score_<values>` and `bytes_<values>`: the score and the size of the packed agent, for each "
        "kind of values, of which `raw` keeps all bits. `quantized.csv` has the returns.",
        tags=AGENT,
        metrics=(
            "d4rl_score_raw",
            "d4rl_score_fp16",
            "d4rl_score_int8",
            "bytes_raw",
            "bytes_fp16",
            "bytes_int8",
        ),
        tables=(paths.QUANTIZED,),
    ),
    "fetch_images": Experiment(
        "Pack the photos that styles are trained on, and draw or fetch the paintings.",
        tags=("source", "style"),
    ),
    "fetch_weights": Experiment(
        "Fetch the weights of VGG-16, VGG-19, AlexNet and LPIPS, and normalise the backbones' activations.",
        "Steps are layers. `mean`: the mean of a layer's activations before normalisation. `clamped`: the "
        "number of channels whose mean activation is close to zero.",
        tags=("backbone",),
    ),
    "make_clip": Experiment("Make the video that is stylised if no other is given.", tags=("photo",)),
    "transfer_style": Experiment(
        "Optimise one picture at a time (Gatys et al. 2016), in studies of backbones, losses and optimisers.",
        "Steps are iterations. The pictures are among each run's artifacts; `studies.csv` has all losses.",
        tags=("study", "backbone", "loss", "optimizer", "style"),
        metrics=("total", "content", "style"),
        tables=(paths.STUDIES,),
    ),
    "prune_style": Experiment(
        "Make the masks of the style networks that are pruned before they are trained.",
        "`layers.csv` has the number of weights that each mask keeps of each layer.",
        tags=("style", "pruner", "sparsity"),
        metrics=("weights_kept",),
    ),
    "train_style": Experiment(
        "Train a network for each style (Johnson et al. 2016), and its pruned variants.",
        "Steps are batches. Previews and the contact sheet are among each run's artifacts.",
        tags=("style", "pruner", "sparsity"),
        metrics=("total_loss", "content_loss", "style_loss", "seconds_per_batch"),
    ),
    "stylize": Experiment(
        "Stylise the sample photos and a video in each trained style.",
        "The photos are among the artifacts.",
        tags=("style", "video"),
        metrics=("seconds_per_image", "frames_per_second"),
    ),
    "measure_quality": Experiment(
        "Measure what stylised pictures keep of photo and painting, and how steady the video is.",
        "Means over photos. `style_ratio`: the fraction of the photo's distance to the painting that is "
        "left. `ssim` and `lpips` compare with the photo. `equals_iterations`: the iterations of "
        "optimisation (Gatys et al. 2016) that reach the same loss.",
        tags=("style",),
        metrics=("style_ratio", "ssim", "lpips", "warping_error_ratio"),
        tables=(paths.QUALITY, paths.ITERATIONS),
    ),
    "measure_speed": Experiment(
        "Time a picture by optimisation and by a trained network, at several sizes.",
        "Steps are side lengths in pixels. `seconds_<backbone>`: the time by optimisation. `speed.csv` has "
        "all times.",
        tags=("style",),
        tables=(paths.SPEED,),
    ),
    "export_onnx": Experiment(
        "Export agents, style networks and an ImageNet classifier to ONNX.",
        "`bytes_<form>` and `parameters_<form>`: the size of the graph. `max_abs_error_<form>`: its largest "
        "difference from PyTorch in float64. Each graph is a model (tab Models). The model registry has the "
        "smallest exact form of each network; the alias `current` is the version in `models/onnx/`.",
        tags=(*AGENT, "style", "architecture"),
        metrics=("bytes_dense", "bytes_masked", "bytes_sparse", "bytes_compacted"),
        tables=(paths.EXPORTS,),
    ),
    "measure_pruned_styles": Experiment(
        "Measure how pruning changes the quality of styles and the speed of their networks.",
        "The names of metrics end in the network's. `style_ratio`: the fraction of the photo's distance to "
        "the painting that is left. `parameters`: the number of parameters of the compacted network. "
        "`seconds`: the time for a picture in onnxruntime. `pruning.csv` has all measurements.",
        tags=("style",),
        tables=(paths.PRUNED_STYLES,),
    ),
    "benchmark": Experiment(
        "Run exported networks on every runtime, and compare their outputs and latencies.",
        "`<runtime>_p50_ms_threads_<n>`: the median latency in milliseconds. Steps are batch sizes or, for "
        "pictures, side lengths in pixels. `timings.csv` has errors and percentiles.",
        tags=(*AGENT, "form", "style", "architecture"),
        metrics=("torch_p50_ms_threads_1", "onnxruntime_p50_ms_threads_1", "openvino-f32_p50_ms_threads_1"),
        tables=(paths.TIMINGS, paths.CLASSIFICATION),
    ),
    "evaluate": Experiment(
        "Estimate how much of the score pruned agents keep, with intervals over environments and seeds.",
        "The estimates are in `statistics.csv`, performance profiles in `profiles.csv`.",
        tables=(paths.STATISTICS, paths.PROFILES),
    ),
    "report": Experiment(
        "Write report/index.html, a page of all results beside the papers', and its charts as SVG files.",
        "The page and the figures are among each run's artifacts.",
    ),
}
"""The steps of all stages by name, in their order. A module of `pipelines.stages` has the step's name."""


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml."""

    about: str
    """What it does, in one sentence."""
    steps: tuple[str, ...]
    """Its steps in their order, by name."""


STAGES: Mapping[str, Stage] = {
    "data": Stage(
        "Make each environment's transitions, from rollouts of experts or from Minari's or D4RL's data.",
        ("prepare_data",),
    ),
    "pictures": Stage(
        "Fetch or make photos, paintings and a video, and fetch the networks that styles are learned with.",
        ("fetch_images", "fetch_weights", "make_clip"),
    ),
    "agents": Stage(
        "Make the masks of every pruned agent of the sweep, then train all agents, and score them.",
        ("prune", "train"),
    ),
    "measure_agents": Stage(
        "Animate trained agents, measure their bytes, and round their values to fewer bits.",
        ("animate", "sizes", "quantize"),
    ),
    "styles": Stage(
        "Transfer styles by optimisation; prune and train style networks, and stylise photos and a video.",
        ("transfer_style", "prune_style", "train_style", "stylize"),
    ),
    "export": Stage("Export agents, style networks and an ImageNet classifier to ONNX.", ("export_onnx",)),
    "measure_styles": Stage(
        "Measure the quality and the speed of style transfer, also of pruned networks.",
        ("measure_quality", "measure_speed", "measure_pruned_styles"),
    ),
    "benchmark": Stage(
        "Run exported networks on every runtime, and compare their outputs and latencies.", ("benchmark",)
    ),
    "report": Stage(
        "Estimate how much of the score pruned agents keep, and write the page of all results.",
        ("evaluate", "report"),
    ),
}
"""The stages with cells by name, in the order of dvc.yaml."""


def stage_of(step: str) -> str:
    """The stage that a step belongs to."""
    return next(name for name, stage in STAGES.items() if step in stage.steps)

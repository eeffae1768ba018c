"""`python -m pipelines COMMAND`: the stages of dvc.yaml, and the tools a user runs by hand."""

import dataclasses
import importlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.engine.fanout import CellsFailedError
from tasks.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tasks.offline_rl.environments import TaskName

app = typer.Typer(
    help="Singleshot: from raw data to pruned, trained, measured networks. `dvc repro` runs the stages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
STAGES, CONFIGURATION, TOOLS = "Stages (run by `dvc repro`)", "Configuration", "Tools"
EXPERTS = Path("experts")


def _run_stage(name: str) -> None:
    from pipelines.engine.stage import open_stage

    try:
        with open_stage(name) as stage:
            importlib.import_module(f"pipelines.stages.{name}").run(stage)
    except KeyboardInterrupt:
        print(
            "\ninterrupted; finished cells and checkpoints are kept, `dvc repro` goes on from them",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None


@app.command("prepare-data", rich_help_panel=STAGES)
def prepare_data() -> None:
    """Make each task's transitions: roll out experts, or read Minari or D4RL data."""
    _run_stage("prepare_data")


@app.command(rich_help_panel=STAGES)
def prune() -> None:
    """Make the masks of every pruned agent of the sweep, before any training."""
    _run_stage("prune")


@app.command(rich_help_panel=STAGES)
def train() -> None:
    """Train and score every agent of the sweep under its mask."""
    _run_stage("train")


@app.command(rich_help_panel=STAGES)
def sizes() -> None:
    """Measure every trained network's bytes in each storage format."""
    _run_stage("sizes")


@app.command("fetch-images", rich_help_panel=STAGES)
def fetch_images() -> None:
    """Pack the photos that styles are trained on, and draw or fetch the paintings."""
    _run_stage("fetch_images")


@app.command("fetch-weights", rich_help_panel=STAGES)
def fetch_weights() -> None:
    """Fetch VGG16, VGG19, AlexNet and LPIPS, and normalise the backbones' activations."""
    _run_stage("fetch_weights")


@app.command("make-clip", rich_help_panel=STAGES)
def make_clip() -> None:
    """Make the video that is stylised where no other is given."""
    _run_stage("make_clip")


@app.command("transfer-style", rich_help_panel=STAGES)
def transfer_style() -> None:
    """Put one photo into one painting's style by optimisation, in every study (Gatys et al.)."""
    _run_stage("transfer_style")


@app.command("train-style", rich_help_panel=STAGES)
def train_style() -> None:
    """Train a network for each style (Johnson et al.)."""
    _run_stage("train_style")


@app.command("stylize-all", rich_help_panel=STAGES)
def stylize_all() -> None:
    """Put photos and a video into every trained style."""
    _run_stage("stylize")


@app.command("measure-quality", rich_help_panel=STAGES)
def measure_quality() -> None:
    """Measure how much of photo and painting the stylised pictures keep, and how steady the video is."""
    _run_stage("measure_quality")


@app.command("measure-speed", rich_help_panel=STAGES)
def measure_speed() -> None:
    """Time a picture by optimisation and by a trained network, at several sizes."""
    _run_stage("measure_speed")


@app.command("export-onnx", rich_help_panel=STAGES)
def export_onnx() -> None:
    """Export every trained network, and the ImageNet classifier, to ONNX."""
    _run_stage("export_onnx")


@app.command(rich_help_panel=STAGES)
def benchmark() -> None:
    """Run exported networks on every runtime: do they compute the same, and how fast?"""
    _run_stage("benchmark")


@app.command(rich_help_panel=STAGES)
def evaluate() -> None:
    """Estimate what pruning leaves of the agents' scores, with intervals over tasks and seeds."""
    _run_stage("evaluate")


@app.command(rich_help_panel=STAGES)
def report() -> None:
    """Draw the figures of the results."""
    _run_stage("report")


@app.command("check-config", rich_help_panel=CONFIGURATION)
def check_config() -> None:
    """Check params.yaml, and that it was composed from conf/ as it is now; list the runtimes there are."""
    from pipelines.engine.config import check
    from pipelines.stages.fetch_images import cells
    from tasks.deployment.runtimes import RUNTIMES, installed_version

    config = check()
    for cell in cells(config.style):
        for path in cell.inputs.values():
            # Now rather than after the stages that come before.
            if not path.exists():
                raise UserError(f"{path}: no such file, for {cell.name}; correct its path in params.yaml")
    ok = Path("build/config.ok")
    ok.parent.mkdir(exist_ok=True)
    # Always the same: that params.yaml changed is told to later stages by its values alone.
    ok.write_text("params.yaml was composed from conf/\n")
    versions = {name: installed_version(name) for name in RUNTIMES}
    ok.with_name("runtimes.json").write_text(json.dumps(versions, indent=1) + "\n")
    print(f"params.yaml: profile {config.profile}, composed from conf/ as it is")


@app.command(rich_help_panel=CONFIGURATION)
def params(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hydra overrides, e.g. `profile=paper`, `executor=local`, `offline_rl.sweep.seeds=[0,1]`."
        ),
    ] = None,
) -> None:
    """Compose conf/ to params.yaml, which `dvc repro` reads."""
    from pipelines.engine.config import compose, load_config

    compose(overrides or [])
    print(f"params.yaml: profile {load_config().profile}; next: dvc repro")


@app.command(rich_help_panel=TOOLS)
def doctor() -> None:
    """Check this installation and what it is configured to use, and say the fix for what is wrong."""
    from pipelines.doctor import print_findings

    if not print_findings():
        raise typer.Exit(1)


@app.command("evaluate-agent", rich_help_panel=TOOLS)
def evaluate_agent(
    agent: Annotated[
        Path,
        typer.Argument(
            help="agent.safetensors or its directory, e.g. models/agents/Hopper/bc/snip-0.95/seed-0."
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy's noise.")] = 0,
    env_version: Annotated[
        Literal["v5", "v4"] | None,
        typer.Option(
            help="Version of the Gymnasium environment.", show_default="the one it was scored in, else v5"
        ),
    ] = None,
    video: Annotated[
        Path | None, typer.Option(help="Also write one episode as an MP4, where MuJoCo can render.")
    ] = None,
) -> None:
    """Play a trained agent: its returns, its D4RL score, and a video if wanted."""
    from tasks.offline_rl.agents import load_agent
    from tasks.offline_rl.evaluation import evaluate, record_video

    if video and not video.absolute().parent.is_dir():
        raise UserError(f"{video}: its folder does not exist; make that first")
    path = agent / "agent.safetensors" if agent.is_dir() else agent
    trained = load_agent(path)
    version = env_version or _scored_in(path.with_name("agent.json"))
    print(f"{trained.spec}, in {trained.spec.task}-{version}")
    _print_returns(trained.spec.task, evaluate(trained, episodes, seed, version))
    if video:
        print(f"{video}: one episode, return {record_video(trained, video, seed, version):.1f}")


def _print_returns(task: "TaskName", returns: "NDArray[np.float64]") -> None:
    from tasks.offline_rl.environments import TASKS, d4rl_score

    for number, value in enumerate(returns):
        print(f"episode {number:3d}   return {value:10.1f}")
    score = d4rl_score(TASKS[task], float(returns.mean()))
    print(f"mean {returns.mean():.1f} ± {returns.std():.1f}, D4RL score {score:.1f}")


def _scored_in(description: Path) -> Literal["v5", "v4"]:
    """The environment version of an agent's training, from what the stage `train` left beside it."""
    if not description.exists():
        return "v5"
    try:
        version = json.loads(description.read_text())["evaluation"]["env_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{description}: not an agent's description ({error}); give --env-version") from error
    if version not in ("v5", "v4"):
        raise UserError(f"{description}: its env_version is {version!r}, not v5 or v4; give --env-version")
    return version


@app.command(rich_help_panel=TOOLS)
def stylize(
    style: Annotated[
        str, typer.Option("--style", "-s", help="Name of a trained style, or a model file (.safetensors).")
    ],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="PATH...",
            help="Pictures, videos, folders of them, glob patterns; - is a picture on standard input.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Directory to write to; - is standard output, for one picture."),
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="PATH", help="More of them.")] = None,
    strength: Annotated[float, typer.Option(min=0, max=1, help="0 is the original, 1 the full style.")] = 1.0,
    preserve_color: Annotated[
        bool, typer.Option("--preserve-color", help="Keep the colours, and take only the strokes.")
    ] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Pictures of one size, or frames, to compute together.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Put your own pictures and videos into a trained style.

    Size, orientation, transparency, colour profile and format of pictures are kept, and frames, times, size
    and sound of videos. Pictures of any size run in bounded memory; videos run in segments on the executor
    that params.yaml names, and go on from there when interrupted.
    """
    from pipelines import stylize_tool

    options = stylize_tool.StylizeOptions(strength, preserve_color, batch_size, force)
    try:
        stylize_tool.stylize(style, [*inputs, *(more or [])], output, options)
    except KeyboardInterrupt:
        print("\ninterrupted; run the same again: finished segments of a video are kept", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command(rich_help_panel=TOOLS)
def act(
    model: Annotated[
        Path,
        typer.Option(
            help="A policy's graph, e.g. models/onnx/Hopper/bc/dense/seed-0/hopper-bc-dense-seed-0.onnx."
        ),
    ],
    task: Annotated[
        Literal["HalfCheetah", "Hopper", "Walker2d"] | None,
        typer.Option(help="What it is to do.", show_default="what it was trained for"),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy's noise.")] = 0,
    env_version: Annotated[
        Literal["v5", "v4"], typer.Option(help="Version of the Gymnasium environment.")
    ] = "v5",
) -> None:
    """Play an exported policy with onnxruntime: its returns and its D4RL score."""
    from tasks.deployment.rollout import load_policy, play_onnx

    policy = load_policy(model, task)
    print(f"{policy.model.card.cell}, {policy.model.card.form}, in {policy.task.name}-{env_version}")
    _print_returns(policy.task.name, play_onnx(model, episodes, seed, env_version))


@app.command(rich_help_panel=TOOLS)
def classify(
    inputs: Annotated[list[str], typer.Argument(metavar="PATH...", help="Pictures, folders, glob patterns.")],
    model: Annotated[
        Path | None,
        typer.Option(help="A classifier's graph.", show_default="the one below models/onnx/classifiers"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Answers for each picture.")] = 5,
) -> None:
    """Say what pictures show: ImageNet's classes, by the exported classifier."""
    from pipelines import classify_tool

    if not classify_tool.classify(inputs, model, top):
        raise typer.Exit(1)


@app.command(rich_help_panel=TOOLS)
def serve(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; 0.0.0.0 is all.", show_default="serving.host of params.yaml"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on.", show_default="serving.port of params.yaml"),
    ] = None,
) -> None:
    """Serve exported networks over HTTP until Ctrl-C, on this machine's Ray or on RAY_ADDRESS's.

    POST /stylize/STYLE and /classify take a picture, /act/TASK a state; GET /docs describes them.
    """
    from pipelines.deployment import GRAPHS
    from pipelines.engine.config import load_config
    from pipelines.serve import serve_forever

    config = load_config()
    serving = dataclasses.replace(
        config.serving, host=host or config.serving.host, port=port or config.serving.port
    )
    serve_forever(serving, config.executor, GRAPHS)


@app.command("train-expert", rich_help_panel=TOOLS)
def train_expert(
    task: Annotated[
        Literal["HalfCheetah", "Hopper", "Walker2d"], typer.Argument(help="What it is to learn.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="The safetensors file to write, with its card beside it.",
            show_default="experts/TASK.safetensors",
        ),
    ] = None,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where the run keeps its state, and goes on from.", show_default="experts/checkpoints/TASK"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the checkpoint directory.")
    ] = False,
    start_from: Annotated[
        Path | None, typer.Option(help="An expert to improve.", show_default="random actions")
    ] = None,
    algorithm: Annotated[
        Literal["TQC", "TD3", "PPO"], typer.Option(help="TQC to begin with, PPO to improve a good policy.")
    ] = "TQC",
    steps: Annotated[int, typer.Option(min=1, help="Environment steps in all.")] = 2_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of networks, exploration and environments.")] = 0,
    steps_per_update: Annotated[int, typer.Option(min=1, help="Environment steps per gradient update.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Transitions per gradient update.")] = 128,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of the actor.")] = 5e-4,
    initial_steps: Annotated[int, typer.Option(min=0, help="Steps before the first update.")] = 10_000,
    critic_warmup: Annotated[
        int, typer.Option(min=0, help="Updates of the critics alone before an expert to improve may change.")
    ] = 20_000,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Environment steps between two checkpoints.")
    ] = 50_000,
) -> None:
    """Train an expert whose rollouts become data; needs `pip install -r requirements-experts.lock`."""
    from tasks.offline_rl import expert_training

    config = expert_training.ExpertConfig(
        task=task,
        output=output or EXPERTS / f"{task.lower()}.safetensors",
        checkpoint_dir=checkpoint_dir or EXPERTS / "checkpoints" / task,
        steps=steps,
        seed=seed,
        algorithm=algorithm,
        start_from=start_from,
        resume=resume,
        steps_per_update=steps_per_update,
        batch_size=batch_size,
        learning_rate=learning_rate,
        initial_steps=initial_steps,
        critic_warmup=critic_warmup,
        checkpoint_every=checkpoint_every,
    )
    returns = expert_training.train_expert(config).card.deterministic
    print(f"{config.output}: mean return {returns.mean:.1f}, D4RL score {returns.d4rl_score:.1f}")


def main() -> None:
    """Run a command; a user's mistake is one line and status 1."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        app()
    except UserError as error:
        sys.exit(f"error: {error}")
    except CellsFailedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

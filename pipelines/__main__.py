"""`python -m pipelines COMMAND`: the stages of dvc.yaml, and the tools a user runs by hand."""

import gc
import importlib
import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
import typer.completion

from pipelines import tools
from pipelines.engine.sweep import CellsFailedError
from tasks.errors import UserError

app = typer.Typer(
    help="Singleshot: from raw data to pruned, trained, measured networks.\n\n"
    "`dvc repro` runs the stages: each one when something it depends on has changed.",
    epilog="`COMMAND --help` says more. Tab completes after `source pipelines/completion.sh` (bash, zsh).",
    no_args_is_help=True,
    add_completion=False,  # its options are for programs with a name of their own; hence completion.sh
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
STAGES, CONFIGURATION = "Stages", "Configuration"


def _run_stage(name: str) -> None:
    # Importing torch, pandas and MLflow sets off collections that each go through all that there is by then:
    # 0.9 of the 3.4 seconds (CPU) that a stage took to open.
    gc.disable()
    from pipelines.engine.stage import open_stage

    try:
        with open_stage(name) as stage:
            run = importlib.import_module(f"pipelines.stages.{name}").run
            gc.freeze()
            gc.enable()
            run(stage)
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


@app.command(rich_help_panel=STAGES)
def quantize() -> None:
    """Round trained agents' values to fewer bits, and score them again."""
    _run_stage("quantize")


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


@app.command("prune-style", rich_help_panel=STAGES)
def prune_style() -> None:
    """Make the masks of styles' networks that are pruned before they are trained."""
    _run_stage("prune_style")


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


@app.command("measure-pruned-styles", rich_help_panel=STAGES)
def measure_pruned_styles() -> None:
    """Measure what pruning leaves of styles, and how much faster their networks get."""
    _run_stage("measure_pruned_styles")


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
    """Write report/index.html: all results on one page, each beside the paper's; and its figures as files."""
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


@app.command(
    rich_help_panel=CONFIGURATION,
    epilog=tools.examples("params profile=smoke executor=local", "params 'offline_rl.sweep.seeds=[0,1,2]'"),
)
def params(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="In place of what conf/ says. docs/configuration.md has all keys, conf/ their values.",
        ),
    ] = None,
) -> None:
    """Compose conf/ to params.yaml, which `dvc repro` reads. What was overridden before is forgotten."""
    from pipelines.engine.config import compose, load_config

    compose(overrides or [])
    print(f"params.yaml: profile {load_config().profile}; next: dvc repro")


app.add_typer(tools.app)


def main() -> None:
    """Run a command; a user's mistake is one line and status 1."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    typer.completion.completion_init()  # type: ignore[attr-defined]  # what add_completion does besides
    try:
        app(complete_var="_PIPELINES_COMPLETE")  # which completion.sh sets
    except UserError as error:
        sys.exit(f"error: {error}")
    except PermissionError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}; change who may read or write it")
    except CellsFailedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

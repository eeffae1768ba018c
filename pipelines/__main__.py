"""`python -m pipelines COMMAND`: the stages of dvc.yaml, and the tools a user runs by hand."""

import importlib
import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.engine.fanout import CellsFailedError
from tasks.errors import UserError

app = typer.Typer(
    help="Singleshot: from raw data to pruned, trained, measured networks. `dvc repro` runs the stages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
STAGES, CONFIGURATION, TOOLS = "Stages (run by `dvc repro`)", "Configuration", "Tools"


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


@app.command(rich_help_panel=STAGES)
def report() -> None:
    """Draw the figures of the results."""
    _run_stage("report")


@app.command("check-config", rich_help_panel=CONFIGURATION)
def check_config() -> None:
    """Check params.yaml, and that it was composed from conf/ as it is now."""
    from pipelines.engine.config import check

    config = check()
    ok = Path("build/config.ok")
    ok.parent.mkdir(exist_ok=True)
    # Always the same: that params.yaml changed is told to later stages by its values alone.
    ok.write_text("params.yaml was composed from conf/\n")
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
        Literal["v5", "v4"], typer.Option(help="Version of the Gymnasium environment.")
    ] = "v5",
    video: Annotated[
        Path | None, typer.Option(help="Also write one episode as an MP4, where MuJoCo can render.")
    ] = None,
) -> None:
    """Play a trained agent: its returns, its D4RL score, and a video if wanted."""
    from tasks.offline_rl.agents import load_agent
    from tasks.offline_rl.environments import TASKS, d4rl_score
    from tasks.offline_rl.evaluation import evaluate, record_video

    trained = load_agent(agent / "agent.safetensors" if agent.is_dir() else agent)
    print(f"{trained.spec}")
    returns = evaluate(trained, episodes, seed, env_version)
    for number, value in enumerate(returns):
        print(f"episode {number:3d}   return {value:10.1f}")
    score = d4rl_score(TASKS[trained.spec.task], float(returns.mean()))
    print(f"mean {returns.mean():.1f} ± {returns.std():.1f}, D4RL score {score:.1f}")
    if video:
        print(f"{video}: one episode, return {record_video(trained, video, seed, env_version):.1f}")


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

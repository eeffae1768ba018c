"""`python -m pipelines COMMAND`: the stages of dvc.yaml, and the tools a user runs by hand."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

try:
    import typer

    from pipelines.engine.disks import disk_full_error, is_disk_full
    from pipelines.engine.dvc_files import keep_private
    from pipelines.engine.run import CellsFailedError
    from pipelines.stages import STAGES
    from singleshot.command.terminal import argument, examples, option, resumable, run
except ModuleNotFoundError as error:
    if str(error.name).split(".")[0] in {"pipelines", "tasks", "singleshot"}:
        raise
    sys.exit(
        f"error: {sys.executable} has no package {error.name}; run `make install`, then use "
        ".venv/bin/python or activate the environment: . .venv/bin/activate"
    )

app = typer.Typer(
    help="Singleshot makes neural networks small before they train, and measures what that costs: its "
    "pipeline, from raw data to the report.\n\n"
    "`dvc repro` runs the stages, each one only if something that it depends on has changed.",
    epilog="`COMMAND --help` says more.",
    no_args_is_help=True,
    add_completion=False,  # it needs a program with its own name
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
C = TypeVar("C", bound=Callable[..., Any])


# The commands that people run come first. The stages, which `dvc repro` runs, come last.


def tool(*commands: str) -> Callable[[C], C]:
    """Add a command that people run by hand (a decorator), whose help ends in examples."""
    told = examples(*(f"python -m pipelines {command}" for command in commands))
    return app.command(rich_help_panel="Tools", epilog=told)


def stage(name: str, command: str = "", panel: str = "Stages") -> Callable[[C], C]:
    """Add the command of a stage of dvc.yaml (a decorator)."""
    return app.command(command or name.replace("_", "-"), help=STAGES[name].about, rich_help_panel=panel)


@tool("params profile=smoke executor=local", "params 'offline_rl.sweep.seeds=[0,1,2]'")
def params(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Overrides a value of conf/. docs/configuration.md lists all keys."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A YAML file of overrides. KEY=VALUE takes precedence."),
    ] = None,
    several: Annotated[
        str, typer.Option("--set", metavar="TEXT", help="Overrides in one string, like SET= of make params.")
    ] = "",
) -> None:
    """Compose conf/ to params.yaml, which `dvc repro` reads. Earlier overrides are dropped."""
    from pipelines.config.overrides import in_file, in_text
    from pipelines.config.params import CONF, compose

    config = compose([*(in_file(file, CONF) if file else []), *(overrides or []), *in_text(several)])
    print(f"params.yaml: profile {config.profile}; next: dvc repro")


@tool()
def doctor() -> None:
    """Check params.yaml, the disk, and the MLflow and Ray that are configured."""
    from pipelines.cli.doctor import print_findings

    if not print_findings():
        raise typer.Exit(1)


@tool("ui", "ui --port 5001")
def ui(port: Annotated[int, option("N", "Port to listen on.", min=1, max=65535)] = 5000) -> None:
    """Serve MLflow's pages on this checkout's runs until Ctrl-C."""
    from pipelines.cli.ui import serve_runs

    serve_runs(port)


@tool()
def serve() -> None:
    """Serve exported networks over HTTP until Ctrl-C, from the cluster at RAY_ADDRESS or from this machine.

    The settings are those of params.yaml. `singleshot serve` needs none.
    """
    from pipelines.cli.serve import serve_networks

    serve_networks()


@tool("study", "study weights-bc-vae")
def study(
    experiments: Annotated[
        list[str] | None, argument("EXPERIMENT", "Experiments of conf/study.yaml; all by default.")
    ] = None,
    output: Annotated[Path, option("DIR", "Directory of the tables.", "--output", "-o")] = Path("docs/study"),
) -> None:
    """Run the experiments behind docs/study, or continue where they were interrupted."""
    from pipelines.cli.study import run_study

    run_study(output, experiments or ())


@stage("packages", panel="Configuration")
def packages() -> None:  # noqa: D103
    from pipelines.cli.packages import list_packages
    from pipelines.config.params import load_config

    list_packages(load_config())


@stage("config", "check-config", panel="Configuration")
def check_config() -> None:  # noqa: D103
    from pipelines.cli.doctor import check_inputs
    from pipelines.config.params import check

    config = check()
    check_inputs(config)
    ok = Path("build/config.ok")
    ok.parent.mkdir(exist_ok=True)
    # Always the same text: later stages depend on the values in params.yaml, not on the file.
    ok.write_text("params.yaml was composed from conf/\n", encoding="utf-8")
    print(f"params.yaml: profile {config.profile}, up to date with conf/")


def run_steps(context: typer.Context) -> None:
    """Run the steps of the stage whose command this is."""
    from pipelines.config.params import load_config
    from pipelines.engine.stage import run_stage

    name = str(context.info_name).replace("-", "_")
    with resumable("finished cells and checkpoints are kept, `dvc repro` continues from them"):
        config = load_config()
        steps = STAGES[name].load()
        run_stage(name, steps, config, config.profile, config.executor, config.tracking)


for name in STAGES:
    if STAGES[name].steps:
        stage(name)(run_steps)


@stage("register")
def register() -> None:  # noqa: D103
    from pipelines.cli.register import register_graphs

    register_graphs()


def main() -> None:
    """Run a command. A user's mistake ends it with one line and status 1."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    if "DVC_STAGE" in os.environ:
        keep_private()
    run(app, _told)


def _told(error: Exception) -> str | None:
    if isinstance(error, CellsFailedError):
        return str(error)
    return f"error: {disk_full_error(error)}" if is_disk_full(error) else None  # also libraries' exceptions


if __name__ == "__main__":
    main()

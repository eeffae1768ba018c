"""`python -m pipelines COMMAND`: the stages of dvc.yaml, and the tools a user runs by hand."""

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import typer.completion

from pipelines.catalog.paths import STAGES, WITH_CELLS
from pipelines.cli import tools
from pipelines.engine.disks import disk_full_error, is_disk_full
from pipelines.engine.dvc_files import keep_private
from pipelines.engine.sweep import CellsFailedError
from singleshot.errors import UserError
from singleshot.secrets import without_secrets

app = typer.Typer(
    help="Singleshot: from raw data to pruned, trained, measured networks.\n\n"
    "`dvc repro` runs the stages: each one when something it depends on has changed.",
    epilog="`COMMAND --help` says more. Tab completes after `source pipelines/completion.sh` (bash, zsh).",
    no_args_is_help=True,
    add_completion=False,  # its options need a program with a name of its own; completion.sh does not
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
CONFIGURATION = "Configuration"


def _add_stage(name: str, module: str) -> None:
    @app.command(name.replace("_", "-"), help=STAGES[name], rich_help_panel="Stages")
    def command() -> None:
        from pipelines.config.params import load_config
        from pipelines.engine.stage import run_stage

        with tools.resumable("finished cells and checkpoints are kept, `dvc repro` goes on from them"):
            config = load_config()
            steps = importlib.import_module(f"pipelines.stages.{module}").STEPS[name]
            run_stage(name, steps, config, config.profile, config.executor, config.tracking)


for name, module in WITH_CELLS.items():
    _add_stage(name, module)


@app.command(help=STAGES["packages"], rich_help_panel=CONFIGURATION)
def packages() -> None:  # noqa: D103
    from pipelines.cli.packages import list_packages

    list_packages()


@app.command(help=STAGES["register"], rich_help_panel="Stages")
def register() -> None:  # noqa: D103
    from pipelines.cli.register import register_graphs

    register_graphs()


@app.command("check-config", help=STAGES["config"], rich_help_panel=CONFIGURATION)
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


@tools.command(
    "params profile=smoke executor=local", "params 'offline_rl.sweep.seeds=[0,1,2]'", panel=CONFIGURATION
)
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
        str, typer.Option("--set", metavar="TEXT", help="Overrides in one text, as in make params SET=.")
    ] = "",
) -> None:
    """Compose conf/ to params.yaml, which `dvc repro` reads. Earlier overrides are dropped."""
    from pipelines.config.overrides import in_file, in_text
    from pipelines.config.params import CONF, compose

    config = compose([*(in_file(file, CONF) if file else []), *(overrides or []), *in_text(several)])
    print(f"params.yaml: profile {config.profile}; next: dvc repro")


app.add_typer(tools.app)


class _WithoutSecrets:
    """A stream of text that leaves out secrets of addresses, whatever is written to it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(without_secrets(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    """Run a command. A user's mistake ends it with one line and status 1."""
    sys.stdout, sys.stderr = map(_WithoutSecrets, (sys.stdout, sys.stderr))
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    typer.completion.completion_init()  # type: ignore[attr-defined]  # as add_completion would
    if "DVC_STAGE" in os.environ:
        keep_private()
    group = typer.main.get_group(app)
    for command in (group, *group.commands.values()):
        for parameter in command.get_params(typer.Context(command)):
            if getattr(parameter, "is_flag", False):  # it takes no value, whose type Typer would show
                parameter.metavar = ""
    try:
        group(complete_var="_PIPELINES_COMPLETE")  # which completion.sh sets
    except UserError as error:
        sys.exit(f"error: {error}")
    except CellsFailedError as error:
        sys.exit(str(error))
    except Exception as error:
        if is_disk_full(error):  # libraries have exceptions of their own for it
            sys.exit(f"error: {disk_full_error(error)}")
        if isinstance(error, OSError) and error.filename:
            sys.exit(f"error: {error.filename}: {error.strerror}")
        raise

"""The commands that a user runs by hand, with their options; other modules do the work.

Commands themselves import the modules that import PyTorch or MLflow, so that `--help` and completion don't
wait.
"""

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from pipelines.catalog.paths import GRAPHS, LEARNED
from singleshot.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from singleshot.rl.environments import Environment

app = typer.Typer()
C = TypeVar("C", bound=Callable[..., Any])


def command(*commands: str, panel: str = "Tools") -> Callable[[C], C]:
    """Add a command (a decorator), whose help ends in examples."""
    lines = "\n".join(f"python -m pipelines {command}" for command in commands)
    epilog = f"Examples:\n```text\n{lines}\n```" if commands else None
    return app.command(rich_help_panel=panel, epilog=epilog)


def option(metavar: str | None, about: str, *names: str, **more: Any) -> Any:
    """An option with a value, named after its parameter unless `names` are given."""
    return typer.Option(*names, metavar=metavar, help=about, **more)


def argument(metavar: str, about: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=about)


EnvironmentId = Annotated[
    str | None, option("ID", "Gymnasium's id of the environment, e.g. Hopper-v4.", show_default="its own")
]
Episodes = Annotated[int, option("N", "Episodes to play.", min=1)]
NoiseSeed = Annotated[int, option("N", "Seed of the policy's noise.", min=0)]
PACKED = "The file to write, which must not exist yet; by default in the working directory."


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """If the user interrupts the context, say how to go on, and exit with a shell's status for SIGINT."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted; {how}", file=sys.stderr)
        raise typer.Exit(130) from None


@command()
def doctor() -> None:
    """Check params.yaml, the disk, and the MLflow and Ray that are configured."""
    from pipelines.cli.doctor import print_findings

    if not print_findings():
        raise typer.Exit(1)


@command("evaluate-agent models/agents/HalfCheetah/bc/snip-0.95/seed-0")
def evaluate_agent(
    agent: Annotated[Path, argument("AGENT", "An agent's agent.safetensors, or its directory.")],
    episodes: Episodes = 10,
    seed: NoiseSeed = 0,
    environment: EnvironmentId = None,
    video: Annotated[Path | None, option("FILE.mp4", "Write a video of an episode of median return.")] = None,
    renderer: Annotated[
        Literal["drawing", "mujoco"],
        option(None, "The video's renderer; MuJoCo's needs OpenGL."),
    ] = "drawing",
) -> None:
    """Play a trained agent: print its returns and D4RL score, and write a video if wanted.

    Its scores in training are printed as well, if the agent's scores.csv lies beside it.
    """
    if video and (video.suffix.lower() != ".mp4" or video.exists() or not video.absolute().parent.is_dir()):
        raise UserError(f"{video}: give --video a new name that ends in .mp4, in a folder that exists")
    import pandas

    from singleshot.rl.agents import load_agent
    from singleshot.rl.evaluation.play import evaluate
    from singleshot.rl.evaluation.video import write_drawing, write_rendering
    from tasks.export import score_of

    trained = load_agent(agent)
    where = _where(environment, trained.environment)
    print(f"{trained.spec}, in {where.id}")
    returns, episode = evaluate(trained, where, episodes, seed)
    _print_returns(where, returns)
    evaluations = (agent if agent.is_dir() else agent.parent) / "scores.csv"
    if evaluations.is_file() and not (rows := pandas.read_csv(evaluations)).empty:
        print(f"in training: {score_of(rows, trained.environment)}")
    if video:
        with tempfile.TemporaryDirectory(dir=video.absolute().parent) as directory:
            partial = Path(directory) / video.name  # so that an interrupt leaves no half of a video
            if renderer == "mujoco":
                write_rendering(partial, episode)
            else:
                write_drawing(partial, episode, str(trained.spec))
            partial.replace(video)
        print(f"{video}: an episode with a return of {episode.rewards.sum():.1f}, the median")


def _where(given: str | None, own: "Environment | None") -> "Environment":
    from pipelines.catalog.agents import as_configured
    from singleshot.rl.environments import Environment, FileEnvironment

    own = as_configured(own) or Environment(None)
    if not given:
        return own
    if isinstance(own, FileEnvironment):
        dataclasses.replace(own, id=given.rpartition(":")[2]).check()
    return Environment(given, own.kwargs, own.time_limit, own.reference_returns)


def _print_returns(environment: "Environment", returns: "NDArray[np.float64]") -> None:
    for number, value in enumerate(returns):
        print(f"episode {number:3d}   return {value:10.1f}")
    if len(returns) > 1:
        spread = f"± {returns.std():.1f} (standard deviation over {len(returns)} episodes)"
        print(f"mean return {returns.mean():.1f} {spread}")
    if environment.reference_returns:
        scores = environment.score(returns)
        spread = f" ± {scores.std():.1f}" if len(scores) > 1 else ""
        print(f"D4RL score {scores.mean():.1f}{spread} (0 is a random policy, 100 D4RL's expert)")


@command(
    "stylize -s swirls -i photo.jpg holiday/ film.mp4 -o out",
    "stylize -s waves -i photo.jpg -o out --strength 0.6 --stroke 2",
    "stylize -s swirls:0.7 -s waves:0.3 -i photo.jpg -o out",
    "stylize -s waves -i - -o - < photo.jpg > out.jpg",
)
def stylize(
    styles: Annotated[
        list[str],
        option(
            "STYLE",
            "A trained style or its model file; several, as STYLE:SHARE, are blended.",
            "--style",
            "-s",
        ),
    ],
    inputs: Annotated[
        list[str],
        option("PATH...", "Pictures, videos, folders, glob patterns; - is standard input.", "--input", "-i"),
    ],
    output: Annotated[Path, option("DIR", "Directory to write to; - is standard output.", "--output", "-o")],
    more: Annotated[list[str] | None, argument("PATH", "More inputs.")] = None,
    strength: Annotated[float, option("X", "0 is the original, 1 the full style.", min=0, max=1)] = 1.0,
    stroke: Annotated[
        float,
        option("X", "Size of strokes; 1 is that of a preview whose long side has 768 px.", min=0.05, max=20),
    ] = 1.0,
    preserve_color: Annotated[bool, option(None, "Keep the original's colours.", "--preserve-color")] = False,
    mask: Annotated[
        Path | None, option("PICTURE", "The style goes where this picture, scaled to each, is white.")
    ] = None,
    invert_mask: Annotated[bool, option(None, "Black takes the style, not white.", "--invert-mask")] = False,
    keep_faces: Annotated[bool, option(None, "Leave faces that look at the camera.", "--keep-faces")] = False,
    batch_size: Annotated[int, option("N", "Pictures of one size, or frames, at a time.", min=1)] = 1,
    runtime: Annotated[
        Literal["torch", "openvino-f32", "openvino-bf16", "onnxruntime"] | None,
        option(None, "Runtime for videos.", show_default="OpenVINO, else onnxruntime, else PyTorch"),
    ] = None,
    force: Annotated[bool, option(None, "Overwrite existing files.", "--force")] = False,
) -> None:
    """Stylise your own pictures and videos in a trained style.

    Pictures keep their size, orientation, transparency, colours, metadata and format, animated ones too;
    videos keep their frames, timing, size, sound, subtitles and chapters. What can't be kept is said.
    Strokes are as large in a large picture as in its preview, and never finer in a small one than with 1.
    What is fine in the original stays sharp. A mask's grey takes the style in part.
    Pictures of any size take bounded memory. Videos run on all cores, or on the cluster that params.yaml or
    RAY_ADDRESS names; an interrupted video goes on from its last segment.
    """
    from pipelines.cli.stylize import StylizeOptions, stylize_inputs
    from singleshot.style.apply.regions import read_mask
    from singleshot.style.apply.stylize import StylizeSettings

    if invert_mask and mask is None:
        raise UserError("--invert-mask: there is no mask; give --mask")
    where = read_mask(mask, invert=invert_mask) if mask else None
    settings = StylizeSettings(strength, preserve_color, stroke=stroke, mask=where, keep_faces=keep_faces)
    options = StylizeOptions(settings, batch_size, force, runtime)
    with resumable("run the same command again: finished segments of a video are kept"):
        stylize_inputs(styles, [*inputs, *(more or [])], output, options)


@command("learn-style painting.jpg", "learn-style painting.jpg --photos holiday/ --minutes 60")
def learn_style(
    painting: Annotated[Path, argument("PAINTING", "A picture file.")],
    photos: Annotated[Path | None, option("DIR", "Folder of photos.", show_default="params.yaml's")] = None,
    name: Annotated[str | None, option("NAME", "Name of the style.", show_default="the painting's")] = None,
    minutes: Annotated[float, option("N", "Training time on this machine, in minutes.", min=0.1)] = 20,
) -> None:
    """Learn a style from your own painting, in the time you have.

    Pictures and network are as large as the time allows, also when the machine's load changes. A preview is
    renewed every minute. You may interrupt the command: the same one goes on. The model is written to
    styles/NAME/, with its card and contact sheet.
    """
    from pipelines.cli.learn_style import learn_style as learn

    with resumable("the same command goes on from the last checkpoint, a minute old at most"):
        learn(painting, photos, name, 60 * minutes)


@command("act --model models/onnx/HalfCheetah/bc/dense/seed-0/*.onnx")
def act(
    model: Annotated[Path, option("FILE.onnx", "ONNX graph of a policy, from models/onnx.")],
    environment: EnvironmentId = None,
    episodes: Episodes = 10,
    seed: NoiseSeed = 0,
) -> None:
    """Play an exported policy, and print its returns and D4RL score."""
    from singleshot.export.rollout import load_policy, play_onnx

    policy = load_policy(model)
    where = _where(environment, policy.environment)
    print(f"{policy.model.card.cell}, {policy.model.card.form}, in {where.id}")
    _print_returns(where, play_onnx(model, where, episodes, seed))
    if score := policy.model.card.score:
        print(f"in training: {score}")


@command(
    "pack models/agents/HalfCheetah/bc/snip-0.95/seed-0/agent.safetensors -o cheetah.packed",
    "pack models/styles/swirls/model.safetensors --values fp16 -o swirls.packed",
)
def pack(
    file: Annotated[Path, argument("FILE", "An agent's or a style's safetensors file.")],
    values: Annotated[
        Literal["raw", "exponents", "fp16", "int8"],
        option(None, "raw and exponents (smaller, slower) keep every bit; fp16 and int8 round weights."),
    ] = "raw",
    output: Annotated[
        Path | None, option("OUT", PACKED, "--output", "-o", show_default="FILE's name with .packed")
    ] = None,
) -> None:
    """Write a model file in as few bytes as its masks and values need, with a checksum."""
    from pipelines.cli.pack import pack_file

    pack_file(file, values, output)


@command("unpack hopper.packed -o agent.safetensors")
def unpack(
    file: Annotated[Path, argument("FILE", "A packed file.")],
    output: Annotated[
        Path | None, option("OUT", PACKED, "--output", "-o", show_default="FILE's name with .safetensors")
    ] = None,
) -> None:
    """Write the model file that was packed: the same bytes, if its values are raw or exponents."""
    from pipelines.cli.pack import unpack_file

    unpack_file(file, output)


@command("inspect hopper.packed")
def inspect(
    file: Annotated[Path, argument("FILE", "A packed file, or a model's safetensors file.")],
) -> None:
    """List the tensors of a model file: the weights that each keeps, and the bytes of its mask and values."""
    from pipelines.cli.pack import inspect_file

    inspect_file(file)


@command("serve --port 8080")
def serve(
    host: Annotated[
        str | None,
        option("HOST", "Address to listen on; 0.0.0.0 is all of them.", show_default="serving.host"),
    ] = None,
    port: Annotated[
        int | None, option("N", "Port to listen on.", min=1, max=65535, show_default="serving.port")
    ] = None,
    root_path: Annotated[
        str | None,
        option("PATH", "Where a proxy publishes it, such as /singleshot.", show_default="serving.root_path"),
    ] = None,
) -> None:
    """Serve exported networks over HTTP until Ctrl-C, on this machine or on the cluster at RAY_ADDRESS.

    The networks are those below models/onnx, which the stage export writes, and the styles from
    learn-style. A web page lets you try them. POST /stylize/STYLE and /classify take a picture,
    /act/ENVIRONMENT takes a state; GET /docs describes the API, GET /metrics is for Prometheus. Defaults are
    the settings of params.yaml.
    """
    print("starting: reads the networks below models/onnx, then starts its processes …", flush=True)
    from pipelines.config.params import load_config
    from pipelines.serving.models import learned_graphs
    from pipelines.serving.server import serve_forever

    config = load_config()
    given = {"host": host, "port": port, "root_path": root_path}
    own = {name: value for name, value in given.items() if value is not None}
    serving = dataclasses.replace(config.serving, **own)  # type: ignore[arg-type]
    learned = learned_graphs(LEARNED, Path("build/serve"), config.deployment.export.opset)
    serve_forever(serving, config.executor, GRAPHS, learned)


@command("ui", "ui --port 5001")
def ui(
    port: Annotated[int, option("N", "Port to listen on.", min=1, max=65535)] = 5000,
) -> None:
    """Serve MLflow's pages of this checkout's runs until Ctrl-C."""
    from pipelines.cli.ui import serve_runs

    serve_runs(port)


@command("study", "study weights-bc-vae")
def study(
    experiments: Annotated[
        list[str] | None, argument("EXPERIMENT", "Experiments of conf/study.yaml; by default all.")
    ] = None,
    output: Annotated[Path, option("DIR", "Directory of the tables.", "--output", "-o")] = Path("docs/study"),
) -> None:
    """Run the experiments behind docs/study, or go on where they were interrupted."""
    from pipelines.cli.study import run_study

    run_study(output, experiments or ())

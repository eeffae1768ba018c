"""`singleshot COMMAND`: styles for pictures and films, and agents, without the pipeline.

Commands themselves import the modules that import PyTorch, so that `--help` and completion don't wait.
"""

from collections.abc import Callable
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

import singleshot
from singleshot.command.terminal import argument, examples, must_be_new, must_exist, option, resumable, run
from singleshot.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from singleshot.rl.environments import Environment

app = typer.Typer(
    help="Singleshot makes neural networks small before they train, and measures what that costs.\n\n"
    "These commands play, pack and serve small networks, and style pictures and films. "
    "`singleshot.prune` makes your own network small, in Python.",
    epilog="`COMMAND --help` says more. In a checkout, `python -m pipelines --help` has the pipeline's.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"singleshot {singleshot.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, option(None, "Print the version.", "--version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options without a command."""


C = TypeVar("C", bound=Callable[..., Any])


def command(*commands: str) -> Callable[[C], C]:
    """Add a command (a decorator), whose help ends in examples."""
    return app.command(epilog=examples(*(f"singleshot {command}" for command in commands)))


EnvironmentId = Annotated[
    str | None, option("ID", "Gymnasium's id of the environment, e.g. Hopper-v4.", show_default="its own")
]
Episodes = Annotated[int, option("N", "Episodes to play.", min=1)]
NoiseSeed = Annotated[int, option("N", "Seed of the policy's noise.", min=0)]
PACKED = "The file to write, which must not exist yet; by default in the working directory."


@command(
    "stylize --style waves photo.jpg",
    "stylize --style starry-night photo.jpg holiday/ film.mp4 --output out",
    "stylize --style starry-night:0.7 --style waves:0.3 photo.jpg --strength 0.6 --stroke 2",
    "stylize --style waves - --output - < photo.jpg > out.jpg",
)
def stylize(
    styles: Annotated[
        list[str],
        option(
            "STYLE",
            "A style's name or model file. Several are blended, each as STYLE:SHARE.",
            "--style",
            "-s",
        ),
    ],
    inputs: Annotated[
        list[str], argument("PATH...", "Pictures, videos, folders or patterns; - is standard input.")
    ],
    output: Annotated[
        Path,
        option(
            "PATH", "Folder to write to, or file of a single result; - is standard output.", "--output", "-o"
        ),
    ] = Path("stylized"),
    strength: Annotated[float, option("X", "0 is the original, 1 the full style.", min=0, max=1)] = 1.0,
    stroke: Annotated[
        float,
        option("X", "Size of strokes; 1 is that of a preview whose long side has 768 px.", min=0.05, max=20),
    ] = 1.0,
    preserve_color: Annotated[bool, option(None, "Keep the original's colours.", "--preserve-color")] = False,
    mask: Annotated[
        Path | None, option("PICTURE", "Put the style where this picture, scaled to each, is white.")
    ] = None,
    invert_mask: Annotated[bool, option(None, "Put it where it is black instead.", "--invert-mask")] = False,
    keep_faces: Annotated[bool, option(None, "Leave faces as they are.", "--keep-faces")] = False,
    batch_size: Annotated[int, option("N", "Pictures of one size, or frames, at a time.", min=1)] = 1,
    runtime: Annotated[
        Literal["torch", "openvino-f32", "openvino-bf16", "onnxruntime"] | None,
        option(None, "Runtime for videos.", show_default="OpenVINO, else onnxruntime, else PyTorch"),
    ] = None,
    force: Annotated[bool, option(None, "Overwrite existing files.", "--force")] = False,
) -> None:
    """Stylise pictures and videos.

    A style's name is one that comes with the package, one of the pipeline's below models/styles, or one that
    learn-style has made below styles.

    Pictures keep their size, orientation, transparency, colours, metadata and format, even animated ones.
    Videos keep their frames, timing, size, sound, subtitles and chapters. A message says what can't be kept.
    Strokes are as large in a large picture as in its preview, and never finer in a small one than with 1.
    Fine details of the original stay sharp. Where a mask is grey, the style is partly applied.
    Pictures of any size take bounded memory. After an interruption, the same command continues, even within a
    video. It keeps results of the same input, style and settings, which a file .stylized beside them records.
    """
    from singleshot.command.styles import read_shares

    if invert_mask and mask is None:
        raise UserError("--invert-mask: there is no mask; give --mask")
    shares = read_shares(styles)
    must_exist(mask, *(Path(path) for path in inputs if path != "-" and not has_magic(path)))
    from singleshot.command.stylize import StylizeOptions, stylize_inputs
    from singleshot.style.apply.regions import read_mask
    from singleshot.style.apply.stylize import StylizeSettings

    where = read_mask(mask, invert=invert_mask) if mask else None
    settings = StylizeSettings(strength, preserve_color, stroke=stroke, mask=where, keep_faces=keep_faces)
    options = StylizeOptions(settings, batch_size, force, runtime)
    with resumable("run the same command again: what is finished stays, even parts of a video"):
        stylize_inputs(shares, inputs, output, options)


@command("styles", "styles --output styles.jpg")
def styles(
    output: Annotated[
        Path | None, option("FILE.jpg", "Write a sheet with a photo in each style.", "--output", "-o")
    ] = None,
) -> None:
    """List the styles: those that come with the package, the pipeline's, and your own."""
    from singleshot.command.styles import draw_styles, list_styles

    must_be_new(output, "--output", ".jpg", ".jpeg")
    list_styles()
    if output:
        draw_styles(output)


@command("learn-style painting.jpg", "learn-style painting.jpg --photos holiday/ --minutes 60")
def learn_style(
    painting: Annotated[Path, argument("PAINTING", "A picture file.")],
    photos: Annotated[Path | None, option("DIR", "Folder of photos.", show_default="from packages")] = None,
    name: Annotated[str | None, option("NAME", "Name of the style.", show_default="the painting's")] = None,
    minutes: Annotated[float, option("N", "Total training time, in minutes.", min=0.1)] = 20,
) -> None:
    """Learn a style from your own painting, in the time you have.

    Pictures and network are as large as the time allows, even if the machine's load changes. A preview is
    renewed every minute. You may interrupt the command. The same command continues, also with more minutes
    later. The model is written to styles/NAME/, with its card and contact sheet.
    """
    must_exist(painting, photos)
    from singleshot.command.learn_style import learn_style as learn

    with resumable("the same command continues from the last checkpoint, at most a minute old"):
        learn(painting, photos, name, minutes)


@command(
    "evaluate halfcheetah-snip", "evaluate models/agents/HalfCheetah/bc/snip-0.95/seed-0 --video run.mp4"
)
def evaluate(
    agent: Annotated[
        str,
        argument("AGENT", "halfcheetah-snip, which comes with the package, or an agent's file or directory."),
    ],
    episodes: Episodes = 10,
    seed: NoiseSeed = 0,
    environment: EnvironmentId = None,
    video: Annotated[Path | None, option("FILE.mp4", "Write a video of an episode of median return.")] = None,
) -> None:
    """Play a trained agent: print its returns and D4RL score, and optionally write a video."""
    must_be_new(video, "--video", ".mp4")
    from singleshot.rl import shipped

    if not (file := shipped.FILES.get(agent, Path(agent))).exists():
        fix = did_you_mean(agent.lower(), shipped.FILES, f"shipped is {', '.join(shipped.FILES)}")
        raise UserError(f"{agent}: no such file or folder; {fix}")
    from singleshot.rl.agents import load_agent
    from singleshot.rl.evaluation import play

    if video:  # before the agent plays for nothing
        from singleshot.io.whole_file import whole_file
        from singleshot.rl.evaluation.drawing import write_drawing
    trained = load_agent(file)
    where = _where(environment, trained.environment)
    print(f"{trained.spec}, in {where.id}")
    returns, episode = play.evaluate(trained, where, episodes, seed)
    _print_returns(where, returns)
    if video:
        with whole_file(video) as partial:
            write_drawing(partial, episode, str(trained.spec))
        print(f"{video}: an episode with a return of {episode.rewards.sum():.1f}, the median")


def _where(given: str | None, own: "Environment | None") -> "Environment":
    from singleshot.rl.environments import Environment

    own = own or Environment(None)
    if not given:
        return own
    if own.kwargs:
        print(f"{given} is made without the arguments that the file gives: {', '.join(own.kwargs)}")
    return Environment(given, {}, own.time_limit, own.reference_returns)


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


@command("act models/onnx/HalfCheetah/bc/dense/seed-0/halfcheetah-bc-dense-seed-0.onnx")
def act(
    model: Annotated[Path, argument("FILE.onnx", "A policy's ONNX graph, such as those below models/onnx.")],
    environment: EnvironmentId = None,
    episodes: Episodes = 10,
    seed: NoiseSeed = 0,
) -> None:
    """Play an exported policy, and print its returns and D4RL score."""
    must_exist(model)
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
    must_exist(file)
    from singleshot.command.pack import pack_file

    pack_file(file, values, output)


@command("unpack hopper.packed -o agent.safetensors")
def unpack(
    file: Annotated[Path, argument("FILE", "A packed file.")],
    output: Annotated[
        Path | None, option("OUT", PACKED, "--output", "-o", show_default="FILE's name with .safetensors")
    ] = None,
) -> None:
    """Write the model file that was packed: the same bytes, if its values are raw or exponents."""
    must_exist(file)
    from singleshot.command.pack import unpack_file

    unpack_file(file, output)


@command("inspect hopper.packed")
def inspect(file: Annotated[Path, argument("FILE", "A packed file, or a model's safetensors file.")]) -> None:
    """List the tensors of a model file: the weights that each keeps, and the bytes of its mask and values."""
    must_exist(file)
    from singleshot.command.pack import inspect_file

    inspect_file(file)


@command("serve", "serve --port 8080")
def serve(
    host: Annotated[str, option("HOST", "Address to listen on; 0.0.0.0 means all.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on.", min=1, max=65535)] = 8000,
    root_path: Annotated[str, option("PATH", "Where a proxy publishes it, e.g. /singleshot.")] = "",
    names: Annotated[
        list[str] | None, option("HOST", "Host name of that proxy, e.g. example.org.", "--name")
    ] = None,
    workers: Annotated[int, option("N", "Processes, each with all networks.", min=1)] = 2,
) -> None:
    """Serve networks over HTTP on this machine until Ctrl-C.

    The networks are the styles and the agent that come with the package, learn-style's styles, and the graphs
    that the pipeline exports below models/onnx. A web page lets you try them. POST /stylize/STYLE and
    /classify take a picture, /act/ENVIRONMENT takes a state. GET /docs describes the API; GET /metrics is for
    Prometheus. `python -m pipelines serve` serves them from a cluster, with the settings of params.yaml.
    """
    print("starting: reading the networks, then starting the processes …", flush=True)
    from singleshot.io.folders import GRAPHS
    from singleshot.serving.config import ServingConfig
    from singleshot.serving.models import made_graphs
    from singleshot.serving.server import serve_forever

    serve_forever(ServingConfig(host, port, root_path, tuple(names or ()), workers), GRAPHS, made_graphs())


def main() -> None:
    """Run a command. A user's mistake ends it with one line and status 1."""
    run(app)

"""README's pictures, from the results of a run: `python -m benchmarks.pictures`.

Writes agents.webp and styles.jpg, and beside them pictures.json: the parameters of the run that made them,
and the digests of the code that draws and of the networks that styles begin with. A test compares that record
with the profile default. Code that trains is not in it, as most edits leave the pictures as they are. Needs
the stages agents and styles.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from benchmarks.command import check_inputs, run_main
from pipelines.config.params import Config, load_config
from pipelines.stages import AGENTS, STYLIZED, TRANSFERS, painting
from singleshot.io.whole_file import sha256_of
from singleshot.pruning.variant import DENSE, percentage
from singleshot.rl.agents import AgentSpec
from singleshot.rl.evaluation import drawing
from singleshot.rl.evaluation.drawing import Caption, SideBySide
from singleshot.rl.evaluation.episode import load_episode
from tasks.reporting.look import OTHER, PRUNERS, name

ANIMATION, STYLES, RECORD = "agents.webp", "styles.jpg", "pictures.json"
LANES = (DENSE, "small", "snip", "random")
"""The dense agent, and beside it what is compared with it."""
SECONDS, SPEED = 20, 2
"""HalfCheetahs drift apart for so many seconds, shown in half the time."""
LANE = (320, 181)
"""Width and height of an agent's lane, in pixels."""
COLUMNS = ("The painting", "A photo", "by a network, at once", "by optimisation, slowly")
ROW, GAP, HEADING = 230, 6, 36
"""Height of a row of styles, the space between pictures, and the height of their headings, in pixels."""


def main() -> None:
    """Draw the pictures of the run in this checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs"), help="folder of the pictures")
    output: Path = parser.parse_args().output
    config = load_config()
    lanes, rows = agents_shown(config), list(styles_shown(config))
    check_inputs(*map(episode_of, lanes), stages="agents")
    check_inputs(*(path for row in rows for path in row), stages="styles")
    output.mkdir(parents=True, exist_ok=True)
    _draw_agents(lanes, output / ANIMATION)
    _draw_styles(rows, output / STYLES)
    digests = {file: sha256_of(output / file) for file in (ANIMATION, STYLES)}
    record = {"made_from": made_from(config), "sha256": digests}
    (output / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{output / ANIMATION}, {output / STYLES} and {output / RECORD}, of the profile {config.profile}")


def made_from(config: Config) -> Mapping[str, Any]:
    """What the pictures of a run depend on, as JSON holds it: its parameters, and files of this project."""
    lane, offline_rl, style = agents_shown(config)[0], config.offline_rl, config.style
    shown = style.training.styles[:2]
    starts = [file for each in shown for file in style.start_of(each).values()]
    values = {
        "agents": [str(agent) for agent in agents_shown(config)],
        "environment": asdict(offline_rl.environment_of(lane)),
        "algorithm": asdict(offline_rl.algorithm_of(lane)),
        "training": asdict(offline_rl.training_of(lane)),
        "data": asdict(offline_rl.data),
        "pruning": asdict(offline_rl.pruning),
        "evaluation": asdict(offline_rl.evaluation),
        "styles": [asdict(style.training_of(each)) for each in shown],
        "paintings": asdict(style.paintings),
        "transfer": asdict(style.transfer),
        "stylize": asdict(style.stylize),
        "files": {path.name: sha256_of(path) for path in (Path(__file__), Path(drawing.__file__), *starts)},
    }
    read: Mapping[str, Any] = json.loads(json.dumps(values, default=str))
    return read


def episode_of(agent: AgentSpec) -> Path:
    """The file of an episode of median return in a trained agent's last evaluation."""
    return AGENTS / agent.name / "episode.safetensors"


def agents_shown(config: Config) -> list[AgentSpec]:
    """Those of `LANES`: the first environment, algorithm and seed, at the highest sparsity of the sweep."""
    sweep = config.offline_rl.sweep
    first = next(config.offline_rl.agents())
    chosen = {
        agent.pruner: agent
        for agent in config.offline_rl.agents()
        if (agent.environment, agent.algorithm, agent.seed)
        == (first.environment, first.algorithm, first.seed)
        and agent.sparsity in {0.0, max(sweep.sparsities)}
    }
    return [chosen[pruner] for pruner in LANES if pruner in chosen]


def styles_shown(config: Config) -> Iterator[Sequence[Path]]:
    """The pictures of each row, in the order of `COLUMNS`; the photo is the one that was optimised."""
    large = (each for each in config.style.transfers() if each.study == "paintings")
    optimised = {each.style: TRANSFERS / each.name for each in large}
    photo = f"{config.style.transfer.content}.jpg"
    for style in config.style.training.styles[:2]:
        network, best = STYLIZED / style / "photos" / photo, optimised[style]
        yield painting(style), best / "content.png", network, best / "picture.png"


def _draw_agents(shown: Sequence[AgentSpec], path: Path) -> None:
    captions = [
        Caption(
            DENSE if agent.pruner == DENSE else f"{name(agent.pruner)}, {percentage(agent.sparsity)}% pruned",
            PRUNERS.get(agent.pruner, OTHER),
        )
        for agent in shown
    ]
    scene = SideBySide([load_episode(episode_of(agent)) for agent in shown], captions, *LANE)
    first, *rest = map(Image.fromarray, scene.frames(SECONDS))
    milliseconds = round(1000 / scene.frames_per_second)
    first.save(
        path,
        save_all=True,
        append_images=rest[SPEED - 1 :: SPEED],
        duration=milliseconds,
        loop=0,
        quality=55,
        method=4,
    )


def _draw_styles(rows: Sequence[Sequence[Path]], path: Path) -> None:
    lines = [[_scaled(picture) for picture in row] for row in rows]
    widths = [max(picture.width for picture in column) for column in zip(*lines, strict=True)]
    lefts = [sum(widths[:i]) + GAP * i for i in range(len(widths))]
    sheet = Image.new(
        "RGB", (sum(widths) + GAP * (len(widths) - 1), HEADING + len(lines) * (ROW + GAP) - GAP), "white"
    )
    write = ImageDraw.Draw(sheet)
    for left, width, heading in zip(lefts, widths, COLUMNS, strict=True):
        write.text((left + width / 2, HEADING / 2), heading, "black", font_size=HEADING / 2, anchor="mm")
    for i, line in enumerate(lines):
        for left, picture in zip(lefts, line, strict=True):
            sheet.paste(picture, (left, HEADING + i * (ROW + GAP)))
    sheet.save(path, quality=88)


def _scaled(path: Path) -> Image.Image:
    with Image.open(path) as opened:
        return opened.convert("RGB").resize(
            (round(ROW * opened.width / opened.height), ROW), Image.Resampling.LANCZOS
        )


if __name__ == "__main__":
    run_main(main)

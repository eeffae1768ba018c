"""Style transfer: photos before and after, and Shen and Wang's table and figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

import pandas
import torch
from PIL import Image

from singleshot.io.images import encode_jpeg
from singleshot.style.video.reader import read_frames
from tasks.reporting import paper, results
from tasks.reporting.look import SERIES, Chart, Figure, Key, Panel, data_uri, picture
from tasks.reporting.results import Results
from tasks.reporting.words import Row, count, listing, number, percent

STYLIZED = "results/style/stylized/*"
NETWORK, PHOTO = "johnson", "photo"
MEASURES = {
    "style ratio: VGG-16": "style_ratio",
    "VGG-19": "style_ratio_vgg19",
    "AlexNet": "style_ratio_alexnet",
    "SSIM": "ssim",
    "LPIPS": "lpips",
}
LABELS = {
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "alexnet": "AlexNet",
    "mse": "MSE",
    "l1": "L1",
    "smooth_l1": "smooth L1",
    "huber": "Huber",
    "lbfgs": "L-BFGS",
    "adam": "Adam",
    "sgd": "SGD",
}
STUDIES = ("backbones", "losses", "optimizers", "paintings")
SETTINGS = ["backbone", "loss", "optimizer", "style"]
"""Columns of `studies.csv` that tell a study's pictures apart."""
LOSSES = Chart(
    "lines",
    "iteration (evaluations of loss and gradient)",
    "total loss",
    "Total loss over iterations.",
    log="y",
)


@dataclass(frozen=True)
class Optimised:
    """A picture of Version 1 (optimised), with its inputs and the history of its losses."""

    label: str
    """The settings that differ within the study; it says so if the loss diverged."""
    diverged: bool
    history: pandas.DataFrame
    photo: str
    """The name of the photo."""
    painting: str
    """The name of the painting."""
    content: Panel
    style: Panel
    picture: Panel


def pictures_of_studies(found: Results) -> dict[str, list[Optimised]]:
    """The pictures of each study by Gatys et al.'s optimisation, as far as there are any."""
    return {study: list(pictures_of(found, study)) for study in STUDIES}


def pictures_of(found: Results, study: str) -> list[Optimised]:
    """The pictures of a study, in the order of `studies.csv`."""
    studies = found.table(results.STUDIES)
    rows = studies[studies["study"] == study]
    labelled = [column for column in SETTINGS if rows[column].nunique() > 1] or SETTINGS[:1]
    pictures = []
    for names, history in rows.groupby(SETTINGS, sort=False):
        directory = f"results/style/gatys/{study}/{'-'.join(names)}"
        if f"{directory}/summary.json" in found.files:
            (summary,) = found.records(f"{directory}/summary.json")
            photo, painting = summary["params"]["content"], summary["params"]["style"]
            label = ", ".join(LABELS.get(name, name) for name in history[labelled].iloc[0])
            label += " (diverged)" * summary["diverged"]
            made = f"The photo, stylised by optimisation: {label}."
            panels = (
                picture(found.files[f"{directory}/content.png"], f"Photo {photo}.", "the photo"),
                picture(
                    found.files[f"{directory}/style.png"],
                    f"Painting {painting}.",
                    f"the painting: {painting}",
                ),
                picture(found.files[f"{directory}/picture.png"], made, label),
            )
            pictures.append(Optimised(label, summary["diverged"], history, photo, painting, *panels))
    return pictures


def size_of(pictures: Sequence[Optimised]) -> str:
    """The short sides of pictures in words, e.g. `512 px`."""
    sizes = sorted({int(size) for each in pictures for size in each.history["size_px"]})
    return f"{', '.join(map(str, sizes))} px"


def _of_each_style(found: Results, pattern: str, alt: str, short_side: int) -> list[Panel]:
    """A panel for each trained style, whose name stands for the pattern's star and the text's braces."""
    place = pattern.split("/").index("*")
    styles = {file.split("/")[place]: path for file, path in found.find(pattern).items()}
    return [picture(path, alt.format(style), style, short_side) for style, path in styles.items()]


def before_and_after(found: Results) -> Figure:
    """Rows of the painting, a photo and the photo in its style, a panel for each trained style."""
    files = f"{STYLIZED}/photos/before_after.jpg"
    alt = "Rows of the painting, a photo and the same in style {}."
    return Figure(_of_each_style(found, files, alt, 640), kind="sheet")


def films(found: Results) -> Figure:
    """A film, and the same in each trained style."""
    panels = []
    for name, path in (found.find("examples/clip.mp4") | found.find(f"{STYLIZED}/clip.mp4")).items():
        title = name.split("/")[3] if name.startswith("results/") else "the film"
        still = torch.from_numpy(next(read_frames(path))).permute(2, 0, 1) / 255
        poster, video = data_uri("image/jpeg", encode_jpeg(still)), data_uri("video/mp4", path.read_bytes())
        panels.append(Panel(poster, f"Moving: {title}.", title, video))
    return Figure(panels, kind="row", columns=len(panels))


def large_pictures(found: Results) -> Figure:
    """A large picture in each style, scaled down, and beside it the middle in full size."""
    halves = "Middle of the photo (left) and of the picture in style {} (right)."
    whole = _of_each_style(found, f"{STYLIZED}/large/picture.jpg", "A large photo in style {}.", 480)
    middle = _of_each_style(found, f"{STYLIZED}/large/detail.jpg", halves, 512)
    middle = [replace(each, title="its middle: the photo, and the result") for each in middle]
    return Figure([each for pair in zip(whole, middle, strict=False) for each in pair], kind="row", columns=2)


def large_size(found: Results) -> tuple[int, int]:
    """Width and height of the first large picture."""
    return Image.open(next(iter(found.find(f"{STYLIZED}/large/picture.jpg").values()))).size


def distances(found: Results) -> list[str]:
    """How far each trained network's photos are from the painting, as AlexNet judges."""
    photos = _of_photos(found)
    ratio = photos[photos["method"] == NETWORK].groupby("style")["style_ratio_alexnet"].mean()
    return [f"{percent(value)} ({style})" for style, value in ratio.items()]


def _of_photos(found: Results) -> pandas.DataFrame:
    """Rows of photos, not of videos: only photos have a row for the untouched picture."""
    quality = found.table(results.QUALITY)
    photos = set(quality.loc[quality["method"] == PHOTO, "image"])
    return quality[quality["image"].isin(photos)]


def quality(found: Results) -> list[Row]:
    """Style ratio, SSIM and LPIPS of each method, means over photos."""
    return [
        {"style": str(style), "picture": _method(str(method)), "photos": f"{len(own)}"}
        | {words: number(own[column].mean()) for words, column in MEASURES.items()}
        for (style, method), own in _of_photos(found).groupby(["style", "method"], sort=False)
    ]


def _method(method: str) -> str:
    kind, _, backbone = method.partition("-")
    optimised = f"by optimisation, {LABELS.get(backbone, backbone)}"
    return {PHOTO: "untouched photo", NETWORK: "by a network", "gatys": optimised}.get(kind, method)


def total_loss(pictures: Sequence[Optimised]) -> Figure:
    """Total loss over iterations, of the optimisations that did not diverge."""
    converged = [each for each in pictures if not each.diverged]
    # With alternating dashes, equal curves (such as those of smooth L1 and Huber) are both visible.
    keys = {
        each.label: Key(each.label, SERIES[i % len(SERIES)], bool(i % 2)) for i, each in enumerate(converged)
    }
    rows = [each.history.assign(series=each.label) for each in converged]
    if not rows:
        return Figure([])
    return LOSSES.figure(pandas.concat(rows).rename(columns={"iteration": "x", "total_loss": "y"}), keys)


def results_beside_inputs(pictures: Sequence[Optimised]) -> Figure:
    """The painting, the photo and the results."""
    inputs = [pictures[0].style, pictures[0].content]
    return Figure([*inputs, *(each.picture for each in pictures)], kind="picture")


def both_versions(found: Results, pictures: Sequence[Optimised]) -> Figure:
    """Paintings, one photo, and the photo in their styles by optimisation and by a network."""
    rows = []
    for each in pictures:
        stylised = f"results/style/stylized/{each.painting}/photos/{each.photo}.jpg"
        if network := found.files.get(stylised):
            slow = replace(each.picture, title="optimised")
            fast = picture(network, "The photo, stylised by a network.", "by a network")
            rows += [each.style, each.content, slow, fast]
    return Figure(rows, kind="row", columns=4)


def paintings_and_results(pictures: Sequence[Optimised]) -> Figure:
    """Each painting, the photo, and the photo in its style."""
    rows = []
    for each in pictures:
        rows += [each.style, each.content, replace(each.picture, title="by optimisation")]
    return Figure(rows, kind="row", columns=3)


def table_i(speed: pandas.DataFrame) -> list[Row]:
    """Table I: seconds per picture beside the report's, and how many times as long as Version 2 they are."""
    rows = []
    for size, own in speed.fillna({"backbone": "network"}).groupby("size_px"):
        seconds = own.sort_values(["version", "backbone"]).set_index("backbone")["seconds_per_image"]
        printed = paper.TABLE_I.get(size, {})
        for backbone, taken in seconds.items():
            theirs = printed.get("vgg" if backbone.startswith("vgg") else backbone, nan)
            of_network = (taken / seconds.get("network", nan), theirs / printed.get("network", nan))
            rows.append(
                {
                    "px": f"{size}",
                    "method": f"Version 1, {LABELS[backbone]}" if backbone in LABELS else "Version 2",
                    "ours, s": number(taken),
                    "paper, s": number(theirs),
                    "ours / paper": number(taken / theirs),
                    "× Version 2, ours": number(of_network[0]),
                    "× Version 2, paper": number(of_network[1]),
                }
            )
    return rows


def devices(speed: pandas.DataFrame) -> str:
    """What the seconds were measured on."""
    threads = listing([count(n, "thread") for n in sorted(speed["threads"].unique())])
    return f"{', '.join(sorted(speed['device'].astype(str).unique()))} with {threads}"

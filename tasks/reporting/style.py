"""Style transfer: photos before and after, and Shen and Wang's table and figures."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

import pandas
from PIL import Image

from tasks.reporting import paper, results
from tasks.reporting.look import SERIES, Chart, Figure, Key, Panel, picture
from tasks.reporting.results import Results
from tasks.reporting.words import NOT_GIVEN, Row, count, listing, number, written_as

GATYS = "results/style/gatys"
STYLIZED = "results/style/stylized/*"
NETWORK, PHOTO = "johnson", "photo"
MEASURES = {
    "style ratio: VGG-16": "style_ratio",
    "VGG-19": "style_ratio_vgg19",
    "AlexNet": "style_ratio_alexnet",
    "SSIM": "ssim",
    "LPIPS": "lpips",
}
JUDGE, JUDGED = "style_ratio_alexnet", "gatys-alexnet"
"""The column that compares networks and optimised pictures, and the method that optimised for that column."""
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
VARIED = {"backbones": "backbone", "losses": "loss", "optimizers": "optimizer", "paintings": "style"}
"""The column of `studies.csv` that each study varies."""
LOSSES = Chart(
    "lines",
    "iteration (evaluations of loss and gradient)",
    "total loss",
    "Total loss over iterations.",
    log="y",
)
SECONDS = Chart("bars", "seconds", alt="Seconds of optimisation.")


@dataclass(frozen=True)
class Optimised:
    """A picture of Version 1 (optimised), with its inputs and the history of its losses."""

    label: str
    """The setting that the study varies, and any other setting that differs."""
    history: pandas.DataFrame
    files: Mapping[str, Path]
    """The `picture`, and its inputs `content` and `style`."""
    summary: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The label, which says so if the loss diverged."""
        return f"{self.label} (diverged)" if self.summary["diverged"] else self.label

    @property
    def photo(self) -> str:
        """The name of the photo."""
        return str(self.summary["params"]["content"])

    @property
    def painting(self) -> str:
        """The name of the painting."""
        return str(self.summary["params"]["style"])

    def panels(self, *names: str, **titles: str) -> list[Panel]:
        """Panels of its files."""
        words = {"content": f"Photo {self.photo}.", "style": f"Painting {self.painting}."}
        words["picture"] = f"The photo, stylised by optimisation: {self.title}."
        usual = {"content": "photo", "style": "painting", "picture": self.title}
        return [picture(self.files[name], words[name], titles.get(name, usual[name])) for name in names]


def pictures_of(found: Results, study: str) -> list[Optimised]:
    """The pictures of a study by Gatys et al.'s optimisation, without those that lack a file."""
    studies = found.table(results.STUDIES)
    rows, columns = studies[studies["study"] == study], ["backbone", "loss", "optimizer", "style"]
    labelled = [column for column in columns if column == VARIED[study] or rows[column].nunique() > 1]
    pictures = []
    for names, history in rows.groupby(columns, sort=False):
        directory = f"{GATYS}/{study}/{'-'.join(names)}"
        kinds = ("picture", "content", "style")
        files = {each: path for each in kinds if (path := found.files.get(f"{directory}/{each}.png"))}
        summary = found.files.get(f"{directory}/summary.json")
        if summary and len(files) == len(kinds):
            label = ", ".join(LABELS.get(name, name) for name in history[labelled].iloc[0])
            pictures.append(Optimised(label, history, files, json.loads(summary.read_text("utf-8"))))
    return pictures


def pictures_of_studies(found: Results) -> dict[str, list[Optimised]]:
    """The pictures of each study."""
    return {study: pictures_of(found, study) for study in VARIED}


def size_of(pictures: Sequence[Optimised]) -> str:
    """The short sides of pictures in words, e.g. `512 px`."""
    sizes = sorted({int(size) for each in pictures for size in each.history["size_px"]})
    return f"{', '.join(map(str, sizes))} px"


def _style(path: str) -> str:
    """The style in a path `results/style/stylized/<style>/…` or `models/styles/<style>/…`."""
    return path.split("/")[2 if path.startswith("models") else 3]


def before_and_after(found: Results) -> Figure:
    """Photos beside their stylised versions, a panel for each trained style."""
    panels = [
        picture(path, f"Photos beside the same in style {_style(sheet)}.", f"style {_style(sheet)}", 640)
        for sheet, path in found.find(f"{STYLIZED}/photos/before_after.jpg").items()
    ]
    return Figure(panels, kind="picture")


def styles(found: Results) -> list[str]:
    """The styles that have photos before and after."""
    return [_style(sheet) for sheet in found.find(f"{STYLIZED}/photos/before_after.jpg")]


def network_distances(found: Results) -> list[str]:
    """How far each trained network's photos are from the painting, as AlexNet judges."""
    ratio = _distances(found)
    known = [style for style in styles(found) if (style, NETWORK) in ratio.index]
    return [f"{ratio[style, NETWORK]:.0%} ({style})" for style in known]


def optimised_distances(found: Results) -> str:
    """How far pictures are that were optimised one by one, but for those that the judge made; "" if none."""
    ratio = _distances(found)
    methods = ratio.index.get_level_values("method")
    single = ratio[[method.startswith("gatys-") and method != JUDGED for method in methods]]
    bounds = dict.fromkeys(f"{each:.0%}" for each in (single.min(), single.max())) if len(single) else ()
    return " to ".join(bounds)


def _distances(found: Results) -> pandas.Series:
    return _of_photos(found).groupby(["style", "method"])[JUDGE].mean()


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
    optimised = f"optimised (Version 1), {LABELS.get(backbone, backbone)}"
    return {PHOTO: "untouched photo", NETWORK: "network (Version 2)", "gatys": optimised}.get(kind, method)


def checkpoints(found: Results) -> Figure:
    """One photo, stylised by all checkpoints of each network's training."""
    panels = [
        picture(
            path,
            f"One photo, stylised by each checkpoint of style {_style(sheet)}.",
            f"style {_style(sheet)}",
            480,
        )
        for sheet, path in found.find("models/styles/*/contact_sheet.jpg").items()
    ]
    return Figure(panels, kind="picture")


def total_loss(pictures: Sequence[Optimised]) -> Figure:
    """Total loss over iterations, of the optimisations that did not diverge."""
    converged = [each for each in pictures if not each.summary["diverged"]]
    # With alternating dashes, equal curves (such as those of smooth L1 and Huber) are both visible.
    keys = {
        each.label: Key(each.label, SERIES[i % len(SERIES)], bool(i % 2)) for i, each in enumerate(converged)
    }
    rows = [each.history.assign(series=each.label) for each in converged]
    if not rows:
        return Figure([])
    return LOSSES.figure(pandas.concat(rows).rename(columns={"iteration": "x", "total_loss": "y"}), keys)


def seconds(pictures: Sequence[Optimised]) -> Figure:
    """Seconds of optimisation, with the number of iterations."""
    last = pandas.DataFrame([each.history.iloc[-1] for each in pictures])
    labels = [f"{number(row.seconds)} s, {row.iteration} iterations" for row in last.itertuples()]
    rows = last.assign(x=last["seconds"], y=[each.label for each in pictures], series="", label=labels)
    return SECONDS.figure(rows, {"": Key("", SERIES[0])})


def results_beside_inputs(pictures: Sequence[Optimised]) -> Figure:
    """The photo, the painting and the results."""
    made = [panel for each in pictures for panel in each.panels("picture")]
    return Figure([*pictures[0].panels("content", "style"), *made], kind="picture")


def both_versions(found: Results, pictures: Sequence[Optimised]) -> Figure:
    """One photo, a painting, and the photo in its style by optimisation and by a network."""
    for each in pictures:
        stylised = f"results/style/stylized/{each.painting}/photos/{each.photo}.jpg"
        if network := found.files.get(stylised):
            made = each.panels("content", "style", "picture", picture=f"Version 1, {each.label}")
            fast = picture(network, "The photo, stylised by a network.", "Version 2")
            return Figure([*made, fast], kind="picture")
    return Figure([])


def paintings_and_results(pictures: Sequence[Optimised]) -> Figure:
    """A photo, and each painting with the photo in its style."""
    panels = [panel for each in pictures[:1] for panel in each.panels("content")]
    for each in pictures:
        titles = {"style": f"painting {each.painting}", "picture": f"in style {each.painting}"}
        panels += each.panels("style", "picture", **titles)
    return Figure(panels, kind="picture")


def large_pictures(found: Results) -> Figure:
    """A large picture in each style, scaled down, beside its middle in full size."""
    panels = []
    for sheet, path in found.find(f"{STYLIZED}/large/picture.jpg").items():
        style, detail = _style(sheet), found.files[sheet.replace("picture.jpg", "detail.jpg")]
        middle = f"Middle of the photo (left) and of the picture in style {style} (right)."
        panels += [
            picture(path, f"A large photo in style {style}.", f"style {style}, scaled down", 480),
            picture(detail, middle, "detail, full size: half photo, half style", 512),
        ]
    return Figure(panels, kind="picture")


def large_size(found: Results) -> tuple[int, int]:
    """Width and height of the first large picture."""
    return Image.open(next(iter(found.find(f"{STYLIZED}/large/picture.jpg").values()))).size


def table_i(speed: pandas.DataFrame) -> list[Row]:
    """Table I: seconds per picture beside the report's, and how many times as fast Version 2 is."""
    rows = []
    for size, own in speed.fillna({"backbone": ""}).groupby("size_px"):
        printed = _printed(size)
        by_backbone = own.sort_values(["version", "backbone"]).set_index("backbone")["seconds_per_image"]
        ours = by_backbone.to_dict()
        for backbone, taken in ours.items():
            method = f"Version 1, {LABELS.get(backbone, backbone)}" if backbone else "Version 2"
            theirs = printed.get(backbone, nan)
            rows.append((f"{size}", method, number(taken), number(theirs), number(taken / theirs)))
        network = ours.pop("")
        for backbone, taken in ours.items():
            gain, theirs = taken / network, printed.get(backbone, nan) / printed.get("", nan)
            method = f"speedup over {LABELS.get(backbone, backbone)}"
            rows.append((f"{size}", method, _times(gain), _times(theirs), number(gain / theirs)))
    head = ("px", "method", "ours, s", "paper, s", "ours / paper")
    return [dict(zip(head, row, strict=True)) for row in rows]


def _printed(size_px: int) -> Mapping[str, float]:
    """The report's seconds by backbone, with an empty name for Version 2; none for other sizes than its."""
    for row in paper.TABLE_I:
        if row.size_px == size_px:
            return {"alexnet": row.alexnet, "vgg16": row.vgg, "vgg19": row.vgg, "": row.network}
    return {}


def _times(gain: float) -> str:
    return f"{number(gain)}×" if isfinite(gain) else NOT_GIVEN


def devices(speed: pandas.DataFrame) -> str:
    """What the seconds were measured on."""
    threads = listing([count(n, "thread") for n in sorted(speed["threads"].unique())])
    return f"{', '.join(sorted(speed['device'].astype(str).unique()))} with {threads}"


def findings(studies: Mapping[str, Sequence[Optimised]]) -> list[Row]:
    """The findings of the report's studies, beside those of ours."""
    rows = [*_pace_of_backbones(studies["backbones"]), *_lowest_losses(studies["optimizers"])]
    return [dict(zip(("section", "the report", "here"), row, strict=True)) for row in rows]


def _pace_of_backbones(pictures: Sequence[Optimised]) -> Iterator[tuple[str, str, str]]:
    pace = {}
    for each in pictures:
        first, last = each.history.iloc[0], each.history.iloc[-1]
        pace[first["backbone"]] = (last["seconds"] - first["seconds"]) / (
            last["iteration"] - first["iteration"]
        )
    if {"vgg19", "alexnet"} <= set(pace):
        gain = pace["vgg19"] / pace["alexnet"]
        ratio = number(gain / paper.ALEXNET_SPEEDUP, 2)
        here = f"{number(gain, 2)} times as fast at {size_of(pictures)}; ours / paper {ratio}"
        yield "V.B", f"AlexNet is around {paper.ALEXNET_SPEEDUP:g} times faster than VGG-19 at 512 px", here


def _lowest_losses(pictures: Sequence[Optimised]) -> Iterator[tuple[str, str, str]]:
    diverged = [each.label for each in pictures if each.summary["diverged"]]
    converged = {
        each.label: each.history["total_loss"].iloc[-1] for each in pictures if each.label not in diverged
    }
    if len(pictures) > 1 and converged:
        best = listing(written_as(min(converged.values()), converged))
        losses = ", ".join(f"{label} {number(loss)}" for label, loss in converged.items())
        yield "V.D", f"{LABELS[paper.BEST_OPTIMIZER]} has the lowest total loss", f"lowest: {best}; {losses}"
        fluctuates = "SGD fluctuates at an extremely high loss and gives no valid picture"
        yield "V.D", fluctuates, f"diverged: {listing(diverged) if diverged else 'none'}"

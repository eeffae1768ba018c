"""Style transfer: photos before and after, and Shen and Wang's table and figures."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite, nan

import pandas
from PIL import Image

from tasks.reporting import paper, result_tables
from tasks.reporting.look import Figure, Key, Panel, chart, picture
from tasks.reporting.results import Results
from tasks.reporting.style_figures import (
    LABELS,
    VARIED,
    Optimised,
    optimised,
    plot_histories,
    plot_seconds,
    size_of,
)
from tasks.reporting.words import NOT_GIVEN, Row, count, listing, number, written_as

GATYS = "results/style/gatys"
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
STYLIZED = "results/style/stylized/*"


def pictures_of(found: Results, study: str) -> list[Optimised]:
    """The pictures of a study by Gatys et al.'s optimisation, without those that lack a file."""
    rows = found.table(result_tables.STUDIES)
    return optimised(
        rows[rows["study"] == study],
        VARIED[study],
        lambda name: found.files.get(f"{GATYS}/{study}/{name}"),
    )


def pictures_of_studies(found: Results) -> dict[str, list[Optimised]]:
    """The pictures of each study."""
    return {study: pictures_of(found, study) for study in VARIED}


def before_and_after(found: Results) -> Figure:
    """Photos beside their stylised versions, a panel for each trained style."""
    panels = [
        picture(path, f"Photos beside the same in style {_style(sheet)}.", f"style {_style(sheet)}", 640)
        for sheet, path in found.find(f"{STYLIZED}/photos/before_after.jpg").items()
    ]
    return Figure(panels, kind="picture")


def _style(path: str) -> str:
    """The style in a path `results/style/stylized/<style>/…` or `models/styles/<style>/…`."""
    return path.split("/")[2 if path.startswith("models") else 3]


def styles(found: Results) -> list[str]:
    """The styles that have photos before and after."""
    return [_style(sheet) for sheet in found.find(f"{STYLIZED}/photos/before_after.jpg")]


def network_distances(found: Results) -> list[str]:
    """How far each trained network's photos are from the painting, as AlexNet judges."""
    ratio = _distances(found)
    return [
        f"{_share(ratio[style, NETWORK])} ({style})"
        for style in styles(found)
        if (style, NETWORK) in ratio.index
    ]


def optimised_distances(found: Results) -> str:
    """How far pictures are that were optimised one by one, but for those that the judge made; "" if none."""
    ratio = _distances(found)
    methods = ratio.index.get_level_values("method")
    single = ratio[[method.startswith("gatys-") and method != JUDGED for method in methods]]
    return _span(single) if len(single) else ""


def _distances(found: Results) -> pandas.Series:
    return _of_photos(found).groupby(["style", "method"])[JUDGE].mean()


def _share(ratio: float) -> str:
    return f"{ratio:.0%}"


def _span(values: pandas.Series) -> str:
    low, high = _share(values.min()), _share(values.max())
    return low if low == high else f"{low} to {high}"


def _of_photos(found: Results) -> pandas.DataFrame:
    """Rows of photos, not of videos: only photos have a row for the untouched picture."""
    quality = found.table(result_tables.QUALITY)
    photos = set(quality.loc[quality["method"] == PHOTO, "image"])
    return quality[quality["image"].isin(photos)]


def quality(found: Results) -> list[Row]:
    """Style ratio, SSIM and LPIPS of each method, means over photos."""
    return [
        {
            "style": str(style),
            "picture": _method(str(method)),
            "photos": f"{len(own)}",
            **{words: number(own[column].mean()) for words, column in MEASURES.items()},
        }
        for (style, method), own in _of_photos(found).groupby(["style", "method"], sort=False)
    ]


def _method(method: str) -> str:
    kind, _, backbone = method.partition("-")
    names = {
        PHOTO: "untouched photo",
        NETWORK: "network (Version 2)",
        "gatys": f"optimised (Version 1), {LABELS.get(backbone, backbone)}",
    }
    return names.get(kind, method)


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


def total_loss(what: str, pictures: Sequence[Optimised]) -> Figure:
    """Chart: total loss over iterations."""
    panel = chart(partial(plot_histories, pictures=pictures), f"{what} over iterations, logarithmic.")
    return Figure([panel], [Key(each.title, each.colour, each.diverged) for each in pictures])


def seconds(what: str, pictures: Sequence[Optimised]) -> Figure:
    """Chart: seconds of optimisation."""
    return Figure([chart(partial(plot_seconds, pictures=pictures), f"{what}.")])


def results_beside_inputs(_what: str, pictures: Sequence[Optimised]) -> Figure:
    """The photo, the painting and the results."""
    made = [
        picture(each.picture, f"The result of optimisation with {each.label}.", each.title)
        for each in pictures
    ]
    return Figure([*_inputs(pictures[0]), *made], kind="picture")


def both_versions(found: Results, pictures: Sequence[Optimised]) -> Figure:
    """One photo, a painting, and the photo in its style by optimisation and by a network."""
    for each in pictures:
        if network := found.files.get(f"results/style/stylized/{_painting(each)}/photos/{_photo(each)}.jpg"):
            made = picture(each.picture, "The photo, stylised by optimisation.", f"Version 1, {each.label}")
            fast = picture(network, "The photo, stylised by a network.", "Version 2")
            return Figure([*_inputs(each), made, fast], kind="picture")
    return Figure([])


def _photo(each: Optimised) -> str:
    return str(each.summary["params"]["content"])


def _painting(each: Optimised) -> str:
    return str(each.summary["params"]["style"])


def _inputs(of: Optimised, painting: str = "painting") -> list[Panel]:
    """The photo and the painting of a picture."""
    return [
        picture(of.content, f"Photo {_photo(of)}.", "photo"),
        picture(of.style, f"Painting {_painting(of)}.", painting),
    ]


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
    head = ("px", "", "ours, s", "paper, s", "ours / paper")
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


def extrapolated_iterations(speed: pandas.DataFrame) -> int:
    """The number of Version 1's iterations, if their seconds are extrapolated from a few; else 0."""
    optimising = speed[speed["version"] == 1]
    return int(optimising["iterations"].max()) if optimising["extrapolated"].astype(bool).any() else 0


def paintings_and_results(pictures: Sequence[Optimised]) -> Figure:
    """A photo, and each painting with the photo in its style."""
    panels = [_inputs(each)[0] for each in pictures[:1]]
    for each in pictures:
        style = _painting(each)
        panels.append(_inputs(each, f"painting {style}")[1])
        panels.append(picture(each.picture, f"The photo in style {style}.", f"in style {style}"))
    return Figure(panels, kind="picture")


def large_pictures(found: Results) -> Figure:
    """A large picture in each style, scaled down, beside its middle in full size."""
    panels = []
    for name, path in found.find(f"{STYLIZED}/large/picture.jpg").items():
        style, detail = _style(name), found.files[name.replace("picture.jpg", "detail.jpg")]
        middle = f"Middle of the photo and of the picture in style {style}."
        panels += [
            picture(path, f"A large photo in style {style}.", f"style {style}, scaled down", 480),
            picture(detail, middle, "detail, full size", 512),
        ]
    return Figure(panels, kind="picture")


def large_size(found: Results) -> tuple[int, int]:
    """Width and height of the first large picture."""
    return Image.open(next(iter(found.find(f"{STYLIZED}/large/picture.jpg").values()))).size


def findings(studies: Mapping[str, Sequence[Optimised]]) -> list[Row]:
    """The findings of the report's studies, beside those of ours."""
    rows = [
        *_backbones_finding(studies["backbones"]),
        *_losses_finding(studies["losses"]),
        *_optimizers_finding(studies["optimizers"]),
    ]
    return [dict(zip(("section", "the report", "here"), row, strict=True)) for row in rows]


def _backbones_finding(pictures: Sequence[Optimised]) -> Iterator[tuple[str, str, str]]:
    pace = {each.history["backbone"].iloc[0]: _seconds_per_iteration(each) for each in pictures}
    if {"vgg19", "alexnet"} <= set(pace):
        gain = pace["vgg19"] / pace["alexnet"]
        ratio = number(gain / paper.ALEXNET_SPEEDUP, 2)
        here = f"{number(gain, 2)} times as fast at {size_of(pictures)}; ours / paper {ratio}"
        yield "V.B", f"AlexNet is around {paper.ALEXNET_SPEEDUP:g} times faster than VGG-19 at 512 px", here


def _losses_finding(pictures: Sequence[Optimised]) -> Iterator[tuple[str, str, str]]:
    if len(pictures) > 1:
        pace = sorted((_seconds_per_iteration(each), each.label) for each in pictures)
        here = "seconds per iteration: " + ", ".join(f"{label} {number(seconds)}" for seconds, label in pace)
        yield "V.C", "Huber and MSE take less time than L1 and smooth L1", here


def _optimizers_finding(pictures: Sequence[Optimised]) -> Iterator[tuple[str, str, str]]:
    converged = {each.label: each.history["total_loss"].iloc[-1] for each in pictures if not each.diverged}
    if len(pictures) > 1 and converged:
        best = written_as(min(converged.values()), converged)
        here = f"{listing(best)} {'has' if len(best) == 1 else 'have'} the lowest: " + ", ".join(
            f"{label} {number(loss)}" for label, loss in converged.items()
        )
        yield "V.D", f"{LABELS[paper.BEST_OPTIMIZER]} has the lowest total loss", here
    for each in pictures:
        if each.history["optimizer"].iloc[0] == "sgd":
            last = each.history.iloc[-1]
            outcome = "diverged" if each.diverged else "did not diverge"
            here = f"{outcome}: {number(last['total_loss'])} after {count(last['iteration'], 'iteration')}"
            yield "V.D", "SGD fluctuates at an extremely high loss and gives no valid picture", here


def _seconds_per_iteration(each: Optimised) -> float:
    first, last = each.history.iloc[0], each.history.iloc[-1]
    return float((last["seconds"] - first["seconds"]) / (last["iteration"] - first["iteration"]))

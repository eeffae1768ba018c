"""What the styles look like, and Shen and Wang's Table I and Figures 1 to 8."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas

from tasks.reporting import paper, results
from tasks.reporting.blocks import (
    Block,
    Figure,
    Key,
    NotRun,
    Panel,
    Section,
    Table,
    Text,
    count,
    listing,
    number,
    percent,
    written_as,
)
from tasks.reporting.look import SERIES, chart, picture
from tasks.reporting.results import Results
from tasks.reporting.section_pruned_styles import pruned_styles
from tasks.reporting.style_figures import LABELS, VARIED, histories_of, plot_histories, plot_seconds

GATYS = "results/style/gatys"
NETWORK, PHOTO = "johnson", "photo"
RATIOS = ("style_ratio", "style_ratio_vgg19", "style_ratio_alexnet")
JUDGE, JUDGED = "style_ratio_alexnet", "gatys-alexnet"
"""The column that compares networks and optimised pictures, and the method that optimised for that column."""
BEFORE_AFTER = "before_after.jpg"
TO_STYLIZE = "The stage stylize writes results/style/stylized/; to get it, run dvc repro stylize"
STUDIED = {"backbones": "backbone", "losses": "loss function", "optimizers": "optimiser"}


@dataclass(frozen=True)
class Optimised:
    """A picture of Version 1 (optimised), with its inputs and the history of its losses."""

    label: str
    colour: str
    history: pandas.DataFrame
    picture: Path
    content: Path
    style: Path
    summary: dict[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether the loss diverged."""
        return bool(self.summary["diverged"])

    @property
    def title(self) -> str:
        """The label, which says so if the loss diverged."""
        return f"{self.label} (diverged)" if self.diverged else self.label

    @property
    def style_name(self) -> str:
        """Name of the painting."""
        return str(self.summary["params"]["style"])

    @property
    def content_name(self) -> str:
        """Name of the photo."""
        return str(self.summary["params"]["content"])


def optimised(found: Results, study: str) -> list[Optimised]:
    """The pictures of a study, in the order of its table, without those that lack a file."""
    rows = found.table(results.STUDIES)
    rows = rows[rows["study"] == study]
    pictures: list[Optimised] = []
    for directory, label, history in histories_of(rows, VARIED[study]):
        paths = [
            found.files.get(f"{GATYS}/{study}/{directory}/{file}")
            for file in ("picture.png", "content.png", "style.png", "summary.json")
        ]
        colour = SERIES[len(pictures) % len(SERIES)]
        if None not in paths:
            shown, content, style, summary = (path for path in paths if path)
            pictures.append(
                Optimised(label, colour, history, shown, content, style, json.loads(summary.read_text()))
            )
    return pictures


def what_do_the_styles_look_like(found: Results) -> Section:
    """Section `styles`: photos before and after each network, and measurements of them."""
    title = "What do the styles look like?"
    sheets = found.find(f"results/style/stylized/*/photos/{BEFORE_AFTER}")
    if not sheets:
        missing = NotRun("Photos in each trained style", TO_STYLIZE)
        measured = [*_quality(found), *pruned_styles(found)]
        return Section("styles", title, "Not known: no photo was stylised.", [missing, *measured])
    figure = Figure(
        "Photos before (left) and after stylisation by a trained network (right)",
        before_and_after(found),
        panel="picture",
        data=results.QUALITY.path,
    )
    names = [_style(sheet) for sheet in sheets]
    return Section(
        "styles",
        title,
        _distance(found, names),
        [figure, *_quality(found), *pruned_styles(found)],
        _contact_sheets(found),
    )


def before_and_after(found: Results) -> list[Panel]:
    """Photos beside their stylised versions, a panel for each trained style."""
    sheets = found.find(f"results/style/stylized/*/photos/{BEFORE_AFTER}")
    return [
        picture(path, f"Photos beside the same in style {_style(sheet)}.", f"style {_style(sheet)}", 640)
        for sheet, path in sheets.items()
    ]


def style_ratios(found: Results) -> pandas.Series:
    """Share of the squared distance to the painting that networks leave, by `JUDGE`: each photo and style."""
    quality = _of_photos(found)
    return quality.loc[quality["method"] == NETWORK, JUDGE]


def _style(path: str) -> str:
    """The style in a path `results/style/stylized/<style>/…` or `models/styles/<style>/…`."""
    return path.split("/")[2 if path.startswith("models") else 3]


def _distance(found: Results, styles: Sequence[str]) -> str:
    quality = _of_photos(found)
    ratio = quality.groupby(["style", "method"])[JUDGE].mean()
    named = [style for style in styles if (style, NETWORK) in ratio.index]
    if not named:
        return f"See below: {listing(styles)}. How close they come to their paintings was not measured."
    networks = listing([f"{percent(ratio[style, NETWORK])} ({style})" for style in named])
    methods = ratio.index.get_level_values("method")
    single = ratio[[method.startswith("gatys-") and method != JUDGED for method in methods]]
    beside = f"; optimising single pictures leaves {_span(single)}" if len(single) else ""
    return (
        "Distance to the painting's style is measured with AlexNet, which made none of these pictures. Of a "
        f"photo's squared distance, the trained networks leave {networks}{beside}; 0 % would be the "
        "painting's own style, 100 % the photo's."
    )


def _span(values: pandas.Series) -> str:
    low, high = percent(values.min()), percent(values.max())
    return low if low == high else f"{low[:-2]} to {high}"


def _of_photos(found: Results) -> pandas.DataFrame:
    """Rows of photos, not of videos: only photos have a row for the untouched picture."""
    quality = found.table(results.QUALITY)
    photos = set(quality.loc[quality["method"] == PHOTO, "image"])
    return quality[quality["image"].isin(photos)]


def _quality(found: Results) -> Iterator[Block]:
    quality = _of_photos(found)
    if quality.empty:
        yield results.not_run("Distance to the style, likeness to the photo", results.QUALITY)
        return
    rows = [
        (
            str(style),
            _method(str(method)),
            f"{len(own)}",
            *(number(own[column].mean()) for column in (*RATIOS, "ssim", "lpips")),
        )
        for (style, method), own in quality.groupby(["style", "method"], sort=False)
    ]
    judges = ("style ratio: VGG-16", "VGG-19", "AlexNet")
    head = ("style", "picture", "photos", *judges, "SSIM", "LPIPS")
    yield Table(
        "Means over photos. Style ratio: the share of the photo's squared distance to the painting that is "
        "left, by the Gram matrices of three backbones. Networks were trained with those of VGG-16, pictures "
        "optimised with those of the backbone named: a backbone favours the pictures that it made. SSIM (1 "
        "is the photo) and LPIPS (0 is the photo): how much of the photo is left",
        head,
        rows,
        numbers=head[2:],
        data=results.QUALITY.path,
    )


def _method(method: str) -> str:
    kind, _, backbone = method.partition("-")
    names = {
        PHOTO: "untouched photo",
        NETWORK: "network (Version 2)",
        "gatys": f"optimised (Version 1), {LABELS.get(backbone, backbone)}",
    }
    return names.get(kind, method)


def _contact_sheets(found: Results) -> list[Block]:
    sheets = found.find("models/styles/*/contact_sheet.jpg")
    panels = [
        picture(
            path,
            f"One photo, stylised by each checkpoint of style {_style(sheet)}.",
            f"style {_style(sheet)}",
            480,
        )
        for sheet, path in sheets.items()
    ]
    return (
        [Figure("One photo, stylised by all checkpoints of a network's training", panels, panel="picture")]
        if panels
        else []
    )


def shen(found: Results) -> Section:
    """Section `shen`: Table I and Figures 1 to 8."""
    studies = {study: optimised(found, study) for study in VARIED}
    blocks = [
        _versions(found, studies["backbones"]),
        _table_i(found),
        _history("Figure 2", "backbones", studies["backbones"]),
        _pictures("Figure 3", "backbones", studies["backbones"]),
        _seconds(studies["losses"]),
        _history("Figure 5", "optimizers", studies["optimizers"]),
        _pictures("Figure 6", "optimizers", studies["optimizers"]),
        _paintings([each for pictures in studies.values() for each in pictures]),
        _large(found),
        _findings(studies),
    ]
    details = [
        _history("section V.C", "losses", studies["losses"]),
        _pictures("section V.C", "losses", studies["losses"]),
    ]
    return Section(
        "shen",
        "Style transfer: Shen and Wang’s table and figures",
        paper.SHEN.citation + ".",
        blocks,
        details,
    )


def _of(place: str) -> str:
    return f"{paper.SHEN.name}, {place}"


def _missing(what: str, place: str) -> NotRun:
    return results.not_run(what, results.STUDIES, _of(place))


def _versions(found: Results, pictures: Sequence[Optimised]) -> Block:
    for each in pictures:
        after = f"results/style/stylized/{each.style_name}/photos/{each.content_name}.jpg"
        if after in found.files:
            panels = [
                *_inputs(each),
                picture(each.picture, "The photo, stylised by optimisation.", f"Version 1, {each.label}"),
                picture(found.files[after], "The photo, stylised by a network.", "Version 2"),
            ]
            return Figure(
                "One photo and painting, with both versions",
                panels,
                of=_of("Figure 1"),
                panel="picture",
                data=results.STUDIES.path,
            )
    return _missing("One photo and painting, with both versions", "Figure 1")


def _inputs(of: Optimised, painting: str = "painting") -> list[Panel]:
    """The photo and the painting of a picture."""
    return [
        picture(of.content, f"Photo {of.content_name}.", "photo"),
        picture(of.style, f"Painting {of.style_name}.", painting),
    ]


def _table_i(found: Results) -> Block:
    speed = found.table(results.SPEED)
    what = "Seconds per picture"
    if speed.empty:
        return results.not_run(what, results.SPEED, _of("Table I"))
    printed = {
        row.size_px: {("1", "alexnet"): row.alexnet, ("1", "vgg"): row.vgg, ("2", ""): row.network}
        for row in paper.TABLE_I
    }
    rows = []
    for size, own in speed.groupby("size_px"):
        theirs = printed.get(size, {})
        seconds = {_method_of(row): row.seconds_per_image for row in own.itertuples()}
        for method, ours in sorted(seconds.items()):
            beside = theirs.get(
                (method[0], "vgg" if method[1].startswith("vgg") else method[1]), float("nan")
            )
            words = f"Version 1, {LABELS.get(method[1], method[1])}" if method[1] else "Version 2"
            rows.append((f"{size}", words, number(ours), number(beside), number(ours / beside)))
        for method, ours in sorted(seconds.items()):
            if method[1] and ("2", "") in seconds:
                beside = _ratio(theirs, ("1", "vgg" if method[1].startswith("vgg") else method[1]))
                gain = ours / seconds["2", ""]
                rows.append(
                    (
                        f"{size}",
                        f"speedup over {LABELS.get(method[1], method[1])}",
                        f"{number(gain)}×",
                        f"{number(beside)}×" if beside == beside else "–",
                        number(gain / beside),
                    )
                )
    head = ("px", "", "ours", "paper", "ours / paper")
    return Table(
        f"{what}, and how many times as fast Version 2 is. {_conditions(speed)}; the paper's were measured "
        "on a Colab GPU",
        head,
        rows,
        _of("Table I"),
        head[2:],
        data=results.SPEED.path,
    )


def _method_of(row: Any) -> tuple[str, str]:
    return str(row.version), row.backbone if isinstance(row.backbone, str) else ""


def _ratio(theirs: dict[tuple[str, str], float], method: tuple[str, str]) -> float:
    return theirs[method] / theirs["2", ""] if theirs else float("nan")


def _conditions(speed: pandas.DataFrame) -> str:
    devices = ", ".join(sorted(speed["device"].astype(str).unique()))
    threads = listing([count(n, "thread") for n in sorted(speed["threads"].unique())])
    optimising = speed[speed["version"] == 1]
    ours = f"Ours were measured on {devices} with {threads}"
    if optimising["extrapolated"].astype(bool).any():
        ours += f", Version 1's for {optimising['iterations'].max():.0f} iterations, extrapolated from a few"
    return ours


def _history(place: str, study: str, pictures: Sequence[Optimised]) -> Block:
    what = f"Total loss by {STUDIED[study]}"
    if not pictures:
        return _missing(what, place)
    draw = partial(
        plot_histories,
        histories={each.label: each.history for each in pictures},
        diverged=[each.label for each in pictures if each.diverged],
    )
    panel = chart(draw, f"{what} over iterations, logarithmic.", "", (5.2, 2.8))
    keys = [Key(each.title, each.colour, each.diverged) for each in pictures]
    return Figure(
        f"{what}, {_size(pictures)}", [panel], keys, _of(place), panel="wide", data=results.STUDIES.path
    )


def _size(pictures: Sequence[Optimised]) -> str:
    sizes = sorted({int(size) for each in pictures for size in each.history["size_px"]})
    return f"{', '.join(map(str, sizes))} px"


def _pictures(place: str, study: str, pictures: Sequence[Optimised]) -> Block:
    what = f"Pictures by {STUDIED[study]}"
    if not pictures:
        return _missing(what, place)
    panels = _inputs(pictures[0])
    for each in pictures:
        panels.append(picture(each.picture, f"The result of optimisation with {each.label}.", each.title))
    return Figure(
        f"{what}, {_size(pictures)}", panels, of=_of(place), panel="picture", data=results.STUDIES.path
    )


def _seconds(pictures: Sequence[Optimised]) -> Block:
    what = "Seconds of optimisation by loss function"
    if not pictures:
        return _missing(what, "Figure 4")
    draw = partial(plot_seconds, histories={each.label: each.history for each in pictures})
    panel = chart(draw, f"{what}.", "", (4.6, 2.2))
    return Figure(
        f"{what}, {_size(pictures)}", [panel], of=_of("Figure 4"), panel="wide", data=results.STUDIES.path
    )


def _paintings(pictures: Sequence[Optimised]) -> Block:
    what = "Version 1: a photo, paintings and the results"
    by_style = {each.style_name: each for each in reversed(pictures) if not each.diverged}
    if not by_style:
        return _missing(what, "Figure 7")
    panels = []
    for style, each in sorted(by_style.items()):
        panels += _inputs(each, f"painting {style}")
        panels.append(picture(each.picture, f"The photo in style {style}.", f"in style {style}"))
    caption = f"{what}: {count(len(by_style), 'painting')}; the report has {listing(paper.STYLES)}"
    return Figure(caption, panels, of=_of("Figure 7"), panel="picture", data=results.STUDIES.path)


def _large(found: Results) -> Block:
    photos = {
        name: path
        for name, path in found.find("results/style/stylized/*/photos/*.jpg").items()
        if not name.endswith(BEFORE_AFTER)
    }
    what = "Version 2: photos in each style"
    if not photos:
        return NotRun(what, TO_STYLIZE, _of("Figure 8"))
    panels = [
        picture(
            path, f"{Path(name).stem} in style {_style(name)}.", f"{Path(name).stem}, {_style(name)}", 320
        )
        for name, path in photos.items()
    ]
    width, height = paper.LARGE_PX
    caption = (
        f"{what}, scaled down for this page. The report's picture has {width} × {height} px; python -m "
        "pipelines stylize keeps any size"
    )
    return Figure(caption, panels, of=_of("Figure 8"), panel="picture", data=results.STUDIES.path)


def _findings(studies: dict[str, list[Optimised]]) -> Table | Text:
    """The findings of the report's studies, beside those of ours."""
    rows = [
        *_backbones_finding(studies["backbones"]),
        *_losses_finding(studies["losses"]),
        *_optimizers_finding(studies["optimizers"]),
    ]
    if not rows:
        return Text(
            "The report's findings on backbones, losses and optimisers (sections V.B to V.D) were not "
            "tested here."
        )
    return Table(
        "Findings of the report's studies, beside those of this run",
        ("section", "the report", "here"),
        rows,
        _of("sections V.B to V.D"),
        data=results.STUDIES.path,
    )


def _backbones_finding(pictures: Sequence[Optimised]) -> Iterator[tuple[str, str, str]]:
    pace = {each.history["backbone"].iloc[0]: _seconds_per_iteration(each) for each in pictures}
    if {"vgg19", "alexnet"} <= set(pace):
        gain = pace["vgg19"] / pace["alexnet"]
        ratio = number(gain / paper.ALEXNET_SPEEDUP, 2)
        here = f"{number(gain, 2)} times as fast at {_size(pictures)}; ours / paper {ratio}"
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

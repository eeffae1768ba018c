"""What the styles look like, and Shen and Wang's Table I and Figures 1 to 8."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite, nan

import pandas
from PIL import Image

from tasks.reporting import paper, results
from tasks.reporting.blocks import (
    NOT_GIVEN,
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
    written_as,
)
from tasks.reporting.look import chart, picture
from tasks.reporting.results import Results
from tasks.reporting.section_pruned_styles import pruned_styles
from tasks.reporting.style_figures import (
    LABELS,
    VARIED,
    Optimised,
    optimised,
    plot_histories,
    plot_seconds,
    size_of,
)

GATYS = "results/style/gatys"
NETWORK, PHOTO = "johnson", "photo"
RATIOS = ("style_ratio", "style_ratio_vgg19", "style_ratio_alexnet")
JUDGE, JUDGED = "style_ratio_alexnet", "gatys-alexnet"
"""The column that compares networks and optimised pictures, and the method that optimised for that column."""
STYLIZED = "results/style/stylized/*/photos"
LARGE = "results/style/stylized/*/large"
BEFORE_AFTER = f"{STYLIZED}/before_after.jpg"
TO_STYLIZE = "The stage styles writes results/style/stylized/; to get it, run dvc repro styles"


def pictures_of(found: Results, study: str) -> list[Optimised]:
    """The pictures of a study by Gatys et al.'s optimisation, without those that lack a file."""
    rows = found.table(results.STUDIES)
    return optimised(
        rows[rows["study"] == study],
        VARIED[study],
        lambda name: found.files.get(f"{GATYS}/{study}/{name}"),
    )


def what_do_the_styles_look_like(found: Results) -> Section:
    """Section `styles`: photos before and after each network, and measurements of them."""
    title = "What do the styles look like?"
    measured = [*_quality(found), *pruned_styles(found)]
    panels = before_and_after(found)
    if not panels:
        missing = NotRun("Photos in each trained style", TO_STYLIZE)
        return Section("styles", title, "Not known: no photo was stylised.", [missing, *measured])
    figure = Figure(
        "Photos before (left) and after stylisation by a trained network (right)",
        panels,
        panel="picture",
        data=results.QUALITY.path,
    )
    return Section("styles", title, _distance(found), [figure, *measured], _contact_sheets(found))


def before_and_after(found: Results) -> list[Panel]:
    """Photos beside their stylised versions, a panel for each trained style."""
    return [
        picture(path, f"Photos beside the same in style {_style(sheet)}.", f"style {_style(sheet)}", 640)
        for sheet, path in found.find(BEFORE_AFTER).items()
    ]


def _style(path: str) -> str:
    """The style in a path `results/style/stylized/<style>/…` or `models/styles/<style>/…`."""
    return path.split("/")[2 if path.startswith("models") else 3]


def _distance(found: Results) -> str:
    styles = [_style(sheet) for sheet in found.find(BEFORE_AFTER)]
    ratio = _of_photos(found).groupby(["style", "method"])[JUDGE].mean()
    named = [style for style in styles if (style, NETWORK) in ratio.index]
    if not named:
        return f"See below: {listing(styles)}. How close they come to their paintings was not measured."
    networks = listing([f"{_share(ratio[style, NETWORK])} ({style})" for style in named])
    methods = ratio.index.get_level_values("method")
    single = ratio[[method.startswith("gatys-") and method != JUDGED for method in methods]]
    beside = f"; pictures that were optimised one by one reach {_span(single)}" if len(single) else ""
    return (
        "AlexNet, which made none of these pictures, judges how close they come to their painting: 100 is "
        f"the untouched photo, 0 the painting's own style. The trained networks reach {networks}{beside}."
    )


def _share(ratio: float) -> str:
    return f"{100 * ratio:.0f}"


def _span(values: pandas.Series) -> str:
    low, high = _share(values.min()), _share(values.max())
    return low if low == high else f"{low} to {high}"


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
    studies = {study: pictures_of(found, study) for study in VARIED}
    backbones, losses, optimizers, paintings = studies.values()
    blocks = [
        _versions(found, backbones),
        _table_i(found),
        _study("Figure 2", "Total loss by backbone", backbones, _loss_chart, "chart", _legend(backbones)),
        _study("Figure 3", "Pictures by backbone", backbones, _results_beside_inputs, "picture"),
        _study("Figure 4", "Seconds of optimisation by loss function", losses, _seconds_chart, "chart"),
        _study("Figure 5", "Total loss by optimiser", optimizers, _loss_chart, "chart", _legend(optimizers)),
        _study("Figure 6", "Pictures by optimiser", optimizers, _results_beside_inputs, "picture"),
        _paintings(paintings),
        _large(found),
        _findings(backbones, losses, optimizers),
    ]
    details = [
        _study("section V.C", "Total loss by loss function", losses, _loss_chart, "chart", _legend(losses)),
        _study("section V.C", "Pictures by loss function", losses, _results_beside_inputs, "picture"),
    ]
    title = "Style transfer: Shen and Wang’s table and figures"
    return Section("shen", title, paper.SHEN.citation + ".", blocks, details)


def _of(place: str) -> str:
    return f"{paper.SHEN.name}, {place}"


def _missing(what: str, place: str) -> NotRun:
    return results.not_run(what, results.STUDIES, _of(place))


def _study(
    place: str,
    what: str,
    pictures: Sequence[Optimised],
    draw: Callable[[str, Sequence[Optimised]], list[Panel]],
    panel: str,
    legend: Sequence[Key] = (),
) -> Block:
    """A figure of one study, whose panels `draw` makes; `what` it shows is its caption."""
    if not pictures:
        return _missing(what, place)
    caption, panels = f"{what}, {size_of(pictures)}", draw(what, pictures)
    return Figure(caption, panels, legend, _of(place), panel=panel, data=results.STUDIES.path)


def _loss_chart(what: str, pictures: Sequence[Optimised]) -> list[Panel]:
    draw = partial(plot_histories, pictures=pictures)
    return [chart(draw, f"{what} over iterations, logarithmic.", "")]


def _legend(pictures: Sequence[Optimised]) -> list[Key]:
    return [Key(each.title, each.colour, each.diverged) for each in pictures]


def _seconds_chart(what: str, pictures: Sequence[Optimised]) -> list[Panel]:
    return [chart(partial(plot_seconds, pictures=pictures), f"{what}.", "")]


def _results_beside_inputs(_what: str, pictures: Sequence[Optimised]) -> list[Panel]:
    made = [
        picture(each.picture, f"The result of optimisation with {each.label}.", each.title)
        for each in pictures
    ]
    return [*_inputs(pictures[0]), *made]


def _versions(found: Results, pictures: Sequence[Optimised]) -> Block:
    what = "One photo and painting, with both versions"
    for each in pictures:
        if network := found.files.get(f"results/style/stylized/{_painting(each)}/photos/{_photo(each)}.jpg"):
            panels = [
                *_inputs(each),
                picture(each.picture, "The photo, stylised by optimisation.", f"Version 1, {each.label}"),
                picture(network, "The photo, stylised by a network.", "Version 2"),
            ]
            return Figure(what, panels, of=_of("Figure 1"), panel="picture", data=results.STUDIES.path)
    return _missing(what, "Figure 1")


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


def _table_i(found: Results) -> Block:
    speed = found.table(results.SPEED).fillna({"backbone": ""})
    what = "Seconds per picture"
    if speed.empty:
        return results.not_run(what, results.SPEED, _of("Table I"))
    rows = []
    for size, own in speed.groupby("size_px"):
        printed = _printed(size)
        by_backbone = own.sort_values(["version", "backbone"]).set_index("backbone")["seconds_per_image"]
        seconds = by_backbone.to_dict()
        for backbone, ours in seconds.items():
            method = f"Version 1, {LABELS.get(backbone, backbone)}" if backbone else "Version 2"
            theirs = printed.get(backbone, nan)
            rows.append((f"{size}", method, number(ours), number(theirs), number(ours / theirs)))
        network = seconds.pop("")
        for backbone, ours in seconds.items():
            gain, theirs = ours / network, printed.get(backbone, nan) / printed.get("", nan)
            method = f"speedup over {LABELS.get(backbone, backbone)}"
            rows.append((f"{size}", method, _times(gain), _times(theirs), number(gain / theirs)))
    head = ("px", "", "ours, s", "paper, s", "ours / paper")
    return Table(
        f"{what}, and how many times as fast Version 2 is. {_conditions(speed)}; the paper's were measured "
        "on a Colab GPU",
        head,
        rows,
        _of("Table I"),
        head[2:],
        data=results.SPEED.path,
    )


def _printed(size_px: int) -> Mapping[str, float]:
    """The report's seconds by backbone, with an empty name for Version 2; none for other sizes than its."""
    for row in paper.TABLE_I:
        if row.size_px == size_px:
            return {"alexnet": row.alexnet, "vgg16": row.vgg, "vgg19": row.vgg, "": row.network}
    return {}


def _times(gain: float) -> str:
    return f"{number(gain)}×" if isfinite(gain) else NOT_GIVEN


def _conditions(speed: pandas.DataFrame) -> str:
    devices = ", ".join(sorted(speed["device"].astype(str).unique()))
    threads = listing([count(n, "thread") for n in sorted(speed["threads"].unique())])
    optimising = speed[speed["version"] == 1]
    ours = f"Ours were measured on {devices} with {threads}"
    if optimising["extrapolated"].astype(bool).any():
        ours += f", Version 1's for {optimising['iterations'].max():.0f} iterations, extrapolated from a few"
    return ours


def _paintings(pictures: Sequence[Optimised]) -> Block:
    what = "Version 1: a photo, paintings and the results"
    if not pictures:
        return _missing(what, "Figure 7")
    photo, _ = _inputs(pictures[0])
    panels = [photo]
    for each in pictures:
        style = _painting(each)
        panels.append(_inputs(each, f"painting {style}")[1])
        panels.append(picture(each.picture, f"The photo in style {style}.", f"in style {style}"))
    caption = (
        f"{what}: {count(len(pictures), 'painting')}, {size_of(pictures)}; the report has "
        f"{listing(paper.STYLES)}"
    )
    return Figure(caption, panels, of=_of("Figure 7"), panel="picture", data=results.STUDIES.path)


def _large(found: Results) -> Block:
    what = "Version 2: a large picture in each style"
    pictures = found.find(f"{LARGE}/picture.jpg")
    if not pictures:
        return NotRun(what, TO_STYLIZE, _of("Figure 8"))
    panels = []
    for name, path in pictures.items():
        style, detail = _style(name), found.files[name.replace("picture.jpg", "detail.jpg")]
        panels += [
            picture(path, f"A large photo in style {style}.", f"style {style}, scaled down", 480),
            picture(
                detail, f"Middle of the photo and of the picture in style {style}.", "detail, full size", 512
            ),
        ]
    width, height = Image.open(next(iter(pictures.values()))).size
    caption = (
        f"{what}, {width} × {height} px, with strokes as large as in its preview. The report's picture has "
        f"{' × '.join(map(str, paper.LARGE_PX))} px"
    )
    return Figure(caption, panels, of=_of("Figure 8"), panel="picture")


def _findings(
    backbones: Sequence[Optimised], losses: Sequence[Optimised], optimizers: Sequence[Optimised]
) -> Table | Text:
    """The findings of the report's studies, beside those of ours."""
    rows = [*_backbones_finding(backbones), *_losses_finding(losses), *_optimizers_finding(optimizers)]
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

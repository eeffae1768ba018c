"""Style networks that were pruned before training: part of the section on styles."""

from collections.abc import Iterator
from functools import partial

import pandas

from tasks.reporting import results
from tasks.reporting.blocks import (
    Block,
    Figure,
    NotRun,
    Table,
    Text,
    count,
    exact_percent,
    listing,
    number,
    percent,
    written_as,
)
from tasks.reporting.look import DENSE, chart, name, picture, pruner_keys
from tasks.reporting.results import Results
from tasks.reporting.section_pruning import SEVERAL
from tasks.reporting.style_figures import PRUNED_MEASURES, network_label, plot_pruned, variant


def pruned_styles(found: Results) -> Iterator[Block]:
    """For each style a paragraph on the finding, charts and pictures; then a table."""
    rows = found.table(results.PRUNED_STYLES)
    if rows.empty:
        yield _none(found)
        return
    for style, own in rows.groupby("style", sort=False):
        yield Text(_finding(str(style), own))
        if own["sparsity"].nunique() >= SEVERAL:
            yield _charts(str(style), own)
        yield from _pictures(found, str(style), own)
    yield _table(rows)


def _none(found: Results) -> NotRun:
    what = "Style networks that were pruned before training"
    if results.PRUNED_STYLES.path not in found.files:
        return results.not_run(what, results.PRUNED_STYLES)
    to_have = (
        "put styles into style.pruning.styles and pruners into style.pruning.sparsities, then run make repro"
    )
    return NotRun(what, f"The configuration prunes none; to get them, {to_have}")


def _finding(style: str, rows: pandas.DataFrame) -> str:
    dense, pruned = rows[rows["pruner"] == DENSE].iloc[0], rows[rows["pruner"] != DENSE]
    steps = []
    for sparsity, own in pruned.groupby("sparsity"):
        each = [
            f"{name(row['pruner'])} {_leaves(row)}" for _, row in own.sort_values("style_ratio").iterrows()
        ]
        steps.append(f"with {exact_percent(sparsity)} of the weights pruned, {listing(each)}")
    seconds = pruned["onnxruntime_compacted_seconds"]
    fastest = pruned.loc[seconds.idxmin()]
    alone = len(written_as(seconds.min(), seconds.to_dict(), 2)) == 1
    rank = "the fastest of these" if alone else "as fast as any of these"
    return (
        f"Networks of style {style}, pruned before training. Of the photo's distance to the painting, the "
        f"dense one leaves {_leaves(dense)}; {'; '.join(steps)}. Without the channels that pruning made "
        f"useless, {network_label(fastest)} is {rank}: it has "
        f"{percent(fastest['channels_kept'] / fastest['channels_total'])} of the channels, "
        f"{percent(fastest['parameters'] / dense['parameters'])} of the parameters, and takes "
        f"{number(fastest['onnxruntime_compacted_seconds'], 2)} s for a picture of {dense['size_px']} px, in "
        f"onnxruntime on {count(dense['threads'], 'thread')}; the dense one takes "
        f"{number(dense['onnxruntime_seconds'], 2)} s."
    )


def _leaves(row: pandas.Series) -> str:
    return f"{percent(row['style_ratio'])} (content loss {number(row['content_loss'], 2)})"


def _charts(style: str, rows: pandas.DataFrame) -> Figure:
    panels = [
        chart(partial(plot_pruned, rows=rows, column=column), f"{label} against sparsity, by pruner.", label)
        for column, label in PRUNED_MEASURES.items()
    ]
    return Figure(
        f"Measures of style {style}'s networks against sparsity; the dense network is at 0",
        panels,
        pruner_keys(rows.loc[rows["pruner"] != DENSE, "pruner"]),
        data=results.PRUNED_STYLES.path,
    )


def _pictures(found: Results, style: str, rows: pandas.DataFrame) -> Iterator[Figure]:
    shown = {"photo": "photo"} | {network_label(row): variant(row) for _, row in rows.iterrows()}
    files = {label: f"results/style/pruned/{style}/{stem}.png" for label, stem in shown.items()}
    panels = [
        picture(found.files[file], f"One photo: {label}.", label)
        for label, file in files.items()
        if file in found.files
    ]
    if panels:
        yield Figure(
            f"One photo, stylised by pruned networks of style {style}",
            panels,
            panel="picture",
            data=results.PRUNED_STYLES.path,
        )


def _table(rows: pandas.DataFrame) -> Table:
    kept, measures = ("weights kept", "channels kept"), ("style ratio", "content loss", "SSIM", "LPIPS")
    seconds = ("PyTorch: zeros, compacted (s)", "onnxruntime: zeros, compacted (s)")
    head = ("style", "network", *kept, *measures, *seconds)
    lines = [
        (
            str(row["style"]),
            network_label(row),
            f"{row['weights_kept']:,}",
            f"{row['channels_kept']} of {row['channels_total']}",
            *(number(row[column]) for column in ("style_ratio", "content_loss", "ssim", "lpips")),
            *(
                f"{number(row[f'{runtime}_seconds'], 2)}, {number(row[f'{runtime}_compacted_seconds'], 2)}"
                for runtime in ("torch", "onnxruntime")
            ),
        )
        for _, row in rows.iterrows()
    ]
    sizes = listing([f"{size} px" for size in sorted(set(rows["size_px"]))])
    return Table(
        f"Style networks, pruned before training: means over photos; seconds are medians for {sizes}",
        head,
        lines,
        numbers=head[2:],
        data=results.PRUNED_STYLES.path,
    )

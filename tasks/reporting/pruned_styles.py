"""Style networks that were pruned before training."""

from collections.abc import Iterator
from functools import partial

import pandas

from singleshot.pruning.variant import DENSE
from tasks.reporting.look import Figure, chart, name, picture, pruner_keys
from tasks.reporting.results import Results
from tasks.reporting.style_figures import PRUNED_MEASURES, network_label, plot_pruned, variant
from tasks.reporting.words import Row, listing, number, percent, written_as

MEASURES = {
    "style ratio: VGG-16": "style_ratio",
    "AlexNet": "style_ratio_alexnet",
    "content loss": "content_loss",
    "SSIM": "ssim",
    "LPIPS": "lpips",
}


def dense(rows: pandas.DataFrame) -> pandas.Series:
    """The row of a style's dense network."""
    return rows[rows["pruner"] == DENSE].iloc[0]


def distances(rows: pandas.DataFrame) -> Iterator[tuple[float, str]]:
    """For each sparsity, what the networks of each pruner leave of the photo's distance to the painting."""
    for sparsity, own in rows[rows["pruner"] != DENSE].groupby("sparsity"):
        best_first = own.sort_values("style_ratio_alexnet").iterrows()
        yield sparsity, listing(f"{name(row['pruner'])} {leaves(row)}" for _, row in best_first)


def leaves(row: pandas.Series) -> str:
    """What a network leaves of the photo's distance to the painting, as AlexNet sees it."""
    return f"{percent(row['style_ratio_alexnet'])} (content loss {number(row['content_loss'], 2)})"


def fastest(rows: pandas.DataFrame) -> pandas.Series:
    """The row of the pruned network that takes the fewest seconds without its useless channels."""
    return rows.loc[rows.loc[rows["pruner"] != DENSE, "onnxruntime_compacted_seconds"].idxmin()]


def alone(rows: pandas.DataFrame) -> bool:
    """Whether no other network's seconds are written like those of the :func:`fastest`."""
    seconds = rows.loc[rows["pruner"] != DENSE, "onnxruntime_compacted_seconds"]
    return len(written_as(seconds.min(), seconds.to_dict(), 2)) == 1


def against_sparsity(rows: pandas.DataFrame) -> Figure:
    """Charts: measures of a style's networks against sparsity."""
    panels = [
        chart(partial(plot_pruned, rows=rows, column=column), f"{label} against sparsity, by pruner.", label)
        for column, label in PRUNED_MEASURES.items()
    ]
    return Figure(panels, pruner_keys(rows.loc[rows["pruner"] != DENSE, "pruner"]))


def pictures(found: Results, style: str, rows: pandas.DataFrame) -> Figure:
    """One photo, stylised by each network of a style."""
    shown = {"photo": "photo"} | {network_label(row): variant(row) for _, row in rows.iterrows()}
    files = {label: f"results/style/pruned/{style}/{stem}.png" for label, stem in shown.items()}
    panels = [
        picture(found.files[file], f"One photo: {label}.", label)
        for label, file in files.items()
        if file in found.files
    ]
    return Figure(panels, kind="picture")


def networks(rows: pandas.DataFrame) -> list[Row]:
    """What each network keeps and leaves, and its seconds."""
    return [
        {
            "style": str(row["style"]),
            "network": network_label(row),
            "weights kept": f"{row['weights_kept']:,}",
            "channels kept": f"{row['channels_kept']} of {row['channels_total']}",
            **{words: number(row[column]) for words, column in MEASURES.items()},
            **{
                f"{words}: zeros, compacted (s)": f"{number(row[f'{runtime}_seconds'], 2)}, "
                f"{number(row[f'{runtime}_compacted_seconds'], 2)}"
                for runtime, words in {"torch": "PyTorch", "onnxruntime": "onnxruntime"}.items()
            },
        }
        for _, row in rows.iterrows()
    ]

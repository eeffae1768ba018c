"""Graphs of the styles that `learn-style` trained."""

from pathlib import Path

from pipelines.config.params import load_config
from pipelines.engine.provenance import git_commit
from singleshot.io.hashing import sha256_of
from singleshot.io.whole_file import whole_file


def learned_graphs(styles: Path, graphs: Path) -> list[Path]:
    """The graphs of all networks below `styles`, which are made and kept below `graphs` where missing.

    Raises:
        UserError: a network's file is damaged.
    """
    sources = {
        graphs / f"{sha256_of(path)}.onnx": path for path in sorted(styles.glob("*/model.safetensors"))
    }
    for graph, source in sources.items():
        if not graph.exists():
            _export(source, graph)
    return list(sources)


def _export(source: Path, graph: Path) -> None:
    import onnx

    from singleshot.export.model_files import open_style
    from singleshot.export.to_onnx import card_of, to_onnx

    print(f"{source.parent}: exported as ONNX, once", flush=True)
    network = open_style(source, "dense")
    card = card_of(network, f"styles/{source.parent.name}", git_commit(), source)
    with whole_file(graph) as partial:
        onnx.save(to_onnx(network, card, load_config().deployment.export.opset), partial)

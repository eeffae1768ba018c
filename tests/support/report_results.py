"""A small run's result files by hand, with numbers of every kind that the page shows; and their page."""

import html
import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import torch

from singleshot.io.images import encode_jpeg, encode_png
from singleshot.job import Job
from singleshot.rl.evaluation.drawing import write_video
from tasks.reporting import page, results

LOCOMOTION, SEEDS, UPDATES = ("HalfCheetah", "Hopper"), (0, 1), (500, 1000)
VARIANTS = (("dense", 0.0), ("snip", 0.9), ("snip", 0.95), ("grasp", 0.95))
AGENT = "HalfCheetah/bcq/snip-0.95/seed-0"
RUNTIMES = {"torch": "float32", "onnxruntime": "float32", "openvino-bf16": "bfloat16"}
NETWORKS = {"actor": 529_000, "critic": 1_046_000, "vae": 4_763_000}
STUDIES = {
    "backbones": [(backbone, "mse", "lbfgs", "swirls") for backbone in ("vgg19", "alexnet")],
    "losses": [("vgg19", loss, "lbfgs", "swirls") for loss in ("mse", "l1", "smooth_l1", "huber")],
    "optimizers": [("vgg16", "mse", optimizer, "swirls") for optimizer in ("lbfgs", "adam", "sgd")],
    "paintings": [("vgg19", "mse", "lbfgs", style) for style in ("swirls", "waves", "mosaic")],
}
NOISE = torch.from_numpy(np.random.default_rng(0).random((3, 30, 40), dtype=np.float32))
JPEG = (
    "results/style/stylized/swirls/photos/chelsea.jpg",
    "results/style/stylized/swirls/photos/before_after.jpg",
    "results/style/stylized/swirls/large/picture.jpg",
    "results/style/stylized/swirls/large/detail.jpg",
    *(f"results/offline_rl/animations/{each}/bcq/still.jpg" for each in LOCOMOTION),
)


def tables(seeds):
    """Rows of each table, with those columns that the page reads."""
    variants = [(i, *each) for i, each in enumerate(VARIANTS)]
    yield results.SCORES, "environment algorithm pruner sparsity seed update d4rl_score", (
        (environment, "bcq", pruner, sparsity, seed, update, update / 20 - 10 * sparsity + seed)
        for environment, (pruner, sparsity), seed, update in product(LOCOMOTION, VARIANTS, seeds, UPDATES)
    )  # fmt: skip
    far = 1 if len(seeds) > 2 else np.nan
    yield results.STATISTICS, (
        "environment algorithm pruner sparsity seeds score_mean score_min score_max score_iqm score_iqm_low "
        "score_iqm_high retention retention_low retention_high evaluations score_spread"
    ), (
        (environment, "bcq", pruner, sparsity, len(seeds), score, score - 4, score + 4, score,
         score - 3 * far, score + 3 * far, score / 50, score / 50 - far / 10, score / 50 + far / 10, 2, 1.5)
        for environment, (i, pruner, sparsity) in product((*LOCOMOTION, "all"), variants)
        for score in (50 - 7.5 * i,)
    )  # fmt: skip
    layers = ("environment", "algorithm", "network", "part", "layer", "pruner", "sparsity", "seed")
    yield results.LAYERS, " ".join((*layers, "weights_total", "weights_kept")), (
        (environment, "bcq", "actor", "actor", layer, *variant, seed, total, kept + 100 * seed * (kept > 0))
        for environment, seed, variant in product(LOCOMOTION, SEEDS, VARIANTS[1:])
        for layer, total, kept in (("pi.0", 9200, 400), ("pi.1", 120000, 0))
    )  # fmt: skip
    yield results.SIZES, "model network pruner sparsity seed format bytes entropy_bound_bytes", (
        ("HalfCheetah/bcq", network, pruner, sparsity, 0, name, round(size * n), round(1.1 * left * n))
        for (network, n), (pruner, sparsity) in product(NETWORKS.items(), VARIANTS)
        for left in (1 - sparsity,)
        for name, size in {
            "dense": 1, "dense_sparse_indexing": 5, "coo": 5 * left, "csr_int32": 2 * left,
            "packed_raw": 1.05 * left, "packed_exponents": 0.9 * left, "packed_int8": 0.3 * left,
        }.items()
    )  # fmt: skip
    yield results.QUANTIZED, "environment algorithm pruner sparsity seed values bytes d4rl_score", (
        (environment, "bcq", "snip", 0.95, seed, values, size + 2000 * seed, 60 + 4 * seed - lost)
        for environment, seed in product(LOCOMOTION, SEEDS)
        for values, size, lost in (("raw", 370_000, 0), ("fp16", 200_000, 1), ("int8", 125_000, 10))
    )  # fmt: skip
    yield results.STUDIES, "study backbone loss optimizer style size_px iteration total_loss seconds", (
        (study, *names, 96, iteration, 100 * (i + 1) / (1 + iteration), (i + 1) * 0.5 * iteration)
        for study, variants in STUDIES.items()
        for i, names in enumerate(variants)
        for iteration in range(5)
    )  # fmt: skip
    yield results.SPEED, "version backbone size_px device seconds_per_image threads", (
        (version, backbone, size, "cpu", seconds, 1)
        for size, network, vgg, alexnet in ((256, 0.1, 250.0, 50.0), (48, 0.01, 40.0, 8.0))
        for version, backbone, seconds in ((2, None, network), (1, "vgg19", vgg), (1, "alexnet", alexnet))
    )  # fmt: skip
    ratios = "style_ratio style_ratio_vgg19 style_ratio_alexnet"
    yield results.QUALITY, f"style method image {ratios} ssim lpips", (
        ("swirls", "photo", "chelsea", 1.0, 1.0, 1.0, 1.0, 0.0),
        ("swirls", "johnson", "chelsea", 0.31, 0.4, 0.62, 0.4, 0.5),
        ("swirls", "gatys-vgg19", "chelsea", 0.4, 0.12, 0.58, 0.35, 0.6),
        ("swirls", "johnson", "clip.mp4", 0.9, 0.9, 0.9, 0.4, 0.5),  # a video: in no mean of photos
    )  # fmt: skip
    policies = [
        (AGENT, form, batch, None, share * batch)
        for (form, share), batch in product((("masked", 1.0), ("compacted", 0.5)), (1, 256))
    ]
    timed = [
        (*network, p50 / (1 + i), runtime, precision, 1, "ok", None, "1.0", 1e-6)
        for *network, p50 in [*policies, ("styles/swirls", "dense", 1, 256, 120.0)]
        for i, (runtime, precision) in enumerate(RUNTIMES.items())
    ]
    missing = (AGENT, "masked", 1, None, None, "tvm", None, 1, "unavailable", "not installed", None, None)
    yield results.TIMINGS, (
        "model form batch size_px p50_ms runtime precision threads status reason version max_rel_error"
    ), [*timed, missing]  # fmt: skip
    answers = [
        ("chelsea", how, runtime, "ok", rank, first if rank == 1 else f"class {rank}", 0.375 / rank, True)
        for runtime, (how, first), rank in product(
            RUNTIMES, (("right", "tiger cat"), ("reported", "Egyptian cat")), range(1, 6)
        )
    ]
    yield results.CLASSIFICATION, (
        "photo preprocessing runtime status rank label probability same_top5_as_torch"
    ), [*answers, (None, None, "tvm", "unavailable", None, None, None, None)]  # fmt: skip


def write_results(root: Path, seeds: tuple[int, ...] = SEEDS) -> Path:
    """Write one of each file below `root`; equal bytes each time."""
    for source, columns, rows in tables(seeds):
        path = root / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(rows, columns=columns.split()).reindex(columns=source.columns).to_csv(
            path, index=False
        )
        assert set(columns.split()) <= set(source.columns)
    for path in JPEG:
        _write(root / path, encode_jpeg(NOISE))
    for environment in LOCOMOTION:
        motion = root / f"results/offline_rl/animations/{environment}/bcq/animation.mp4"
        motion.write_bytes(f"{environment} in motion".encode())
    for film in ("examples/clip.mp4", "results/style/stylized/swirls/clip.mp4"):
        (root / film).parent.mkdir(parents=True, exist_ok=True)
        write_video(root / film, (np.full((48, 64, 3), 50 * i, np.uint8) for i in range(3)), 20)
    for study, variants in STUDIES.items():
        for names in variants:
            directory = root / "results/style/gatys" / study / "-".join(names)
            for picture in ("picture", "content", "style"):
                _write(directory / f"{picture}.png", encode_png(NOISE))
            summary = {"params": {"style": names[-1], "content": "chelsea"}, "diverged": "sgd" in names}
            _write(directory / "summary.json", json.dumps(summary).encode())
    for step, cells in (("train", 16), ("benchmark", 4)):
        machine = {"processor": "A processor", "instructions": "AVX2", "cores": 2, "memory_gb": 23.5}
        record = {
            "stage": step, "cells": cells, "seconds": 90.0, "commits": ["0123456789abcdef"],
            "first": "2026-01-02T03:04:05Z", "last": "2026-01-02T03:14:05Z",
            "machines": [machine | {"gpu": None}], "packages": {"python": "3.11.7", "torch": "2.13.0"},
        }  # fmt: skip
        _write(root / f"results/provenance/{step}/{step}.json", json.dumps(record).encode())
    return root


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def find(root: Path) -> dict[str, Path]:
    """The page's inputs among them."""
    found = (path for pattern in results.FILES for path in sorted(root.glob(pattern)))
    return {path.relative_to(root).as_posix(): path for path in found}


def draw(root, output, profile="small"):
    """The page and the metrics of the files below `root`."""
    output.mkdir(parents=True)
    inputs = {"templates": Path(page.__file__).with_name("templates"), **find(root)}
    (metrics,) = page.draw_page([Job(page.PageParams(profile), inputs, output)])
    return (output / "index.html").read_text(), metrics.values


def shown(markup):
    """The text of a part of the page, as a browser shows it: spaces and ends of lines are one space."""
    plain = html.unescape(re.sub(r"(?s)<(style|script).*?</\1>|<[^>]*>", "", markup))
    return re.sub(r"[ \n]+", " ", plain).strip()


def rows_of(text, *head):
    """The rows of the page's table whose first columns are `head`."""
    tables = [
        [[shown(cell) for cell in re.findall(r"(?s)<t[hd]\b.*?</t[hd]>", row)] for row in table.split("<tr>")]
        for table in re.findall(r"(?s)<table>.*?</table>", text)
    ]
    (found,) = (table for table in tables if table[1][: len(head)] == list(head))
    return found[2:]

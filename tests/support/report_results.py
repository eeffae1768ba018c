"""A small run's result files, with numbers of every kind that the page shows, by hand."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import torch

from singleshot.io.images import encode_jpeg, encode_png
from tasks.reporting import results

LOCOMOTION, SEEDS, UPDATES = ("HalfCheetah", "Hopper"), (0, 1), (500, 1000)
VARIANTS = (("dense", 0.0), ("snip", 0.9), ("snip", 0.95), ("grasp", 0.95))
AGENT = "HalfCheetah/bcq/snip-0.95/seed-0"
RUNTIMES = {"torch": "float32", "onnxruntime": "float32", "openvino-bf16": "bfloat16"}

COLUMNS = {
    results.SCORES: "environment, algorithm, pruner, sparsity, seed, update, d4rl_score",
    results.STATISTICS: "environment, algorithm, pruner, sparsity, seeds, score_mean, score_min, score_max, "
    "score_iqm, score_iqm_low, score_iqm_high, retention, retention_low, retention_high, evaluations, "
    "score_spread",
    results.PROFILES: "algorithm, pruner, sparsity, score, fraction, fraction_low, fraction_high",
    results.LAYERS: "environment, algorithm, network, part, layer, pruner, sparsity, seed, weights_total, "
    "weights_kept",
    results.SIZES: "model, network, pruner, sparsity, seed, format, bytes, entropy_bound_bytes",
    results.QUANTIZED: "environment, algorithm, pruner, sparsity, seed, values, bytes, d4rl_score",
    results.STUDIES: "study, backbone, loss, optimizer, style, size_px, iteration, total_loss, seconds",
    results.SPEED: "version, backbone, size_px, device, seconds_per_image, iterations, extrapolated, threads",
    results.QUALITY: "style, method, image, style_ratio, style_ratio_vgg19, style_ratio_alexnet, ssim, "
    "lpips, warping_error_ratio",
    results.TIMINGS: "model, runtime, threads, batch, size_px, p50_ms, p99_ms, status, reason, precision, "
    "version, form, max_rel_error, same_choices",
    results.EXPORTS: "model, kind, form, sparse_initializers, bytes",
    results.CLASSIFICATION: "photo, preprocessing, runtime, status, reason, rank, label, "
    "probability, same_top5_as_torch",
}
"""Those columns of each table that the page reads."""


def write_results(root: Path, seeds: tuple[int, ...] = SEEDS) -> Path:
    """Write one of each file below `root`; equal bytes each time."""
    for source, rows in {
        results.SCORES: _scores(seeds),
        results.STATISTICS: _statistics(seeds),
        results.PROFILES: _profiles(),
        results.LAYERS: _layers(),
        results.SIZES: _sizes(),
        results.QUANTIZED: _quantized(),
        results.STUDIES: _studies(root),
        results.SPEED: _speed(),
        results.QUALITY: _quality(),
        results.TIMINGS: _timings(),
        results.EXPORTS: _exports(),
        results.CLASSIFICATION: _classification(),
    }.items():
        path = root / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(rows, columns=COLUMNS[source].split(", ")).to_csv(path, index=False)
    for name in ("chelsea", "before_after"):
        _write(root / f"results/style/stylized/swirls/photos/{name}.jpg", encode_jpeg(_noise(30, 40)))
    for name in ("picture", "detail"):
        _write(root / f"results/style/stylized/swirls/large/{name}.jpg", encode_jpeg(_noise(30, 40)))
    _write(root / "models/styles/swirls/contact_sheet.jpg", encode_jpeg(_noise(30, 40)))
    for environment in LOCOMOTION:
        motion = root / f"results/offline_rl/animations/{environment}/bcq"
        _write(motion / "still.jpg", encode_jpeg(_noise(30, 40)))
        _write(motion / "animation.mp4", f"{environment} in motion".encode())
    for record, cells in {"agents/train": 16, "benchmark/benchmark": 4}.items():
        step = record.split("/")[1]
        _write(root / f"results/provenance/{record}.json", json.dumps(_record(step, cells)).encode())
    return root


def find(root: Path) -> dict[str, Path]:
    """The page's inputs among them."""
    return {
        path.relative_to(root).as_posix(): path
        for pattern in results.FILES
        for path in sorted(root.glob(pattern))
    }


def _scores(seeds):
    for environment, (pruner, sparsity), seed, update in product(LOCOMOTION, VARIANTS, seeds, UPDATES):
        yield environment, "bcq", pruner, sparsity, seed, update, update / 20 - 10 * sparsity + seed


def _statistics(seeds):
    bounded = len(seeds) > 2
    for environment in (*LOCOMOTION, "all"):
        for i, (pruner, sparsity) in enumerate(VARIANTS):
            score, kept = 50 - 7.5 * i, (50 - 7.5 * i) / 50
            low_high = (score - 3, score + 3) if bounded else (None, None)
            kept_low_high = (kept - 0.1, kept + 0.1) if bounded else (None, None)
            runs = (len(seeds), score, score - 4, score + 4)
            yield environment, "bcq", pruner, sparsity, *runs, score, *low_high, kept, *kept_low_high, 2, 1.5


def _profiles():
    for pruner, sparsity in VARIANTS:
        for score in (0, 25, 50):
            yield "bcq", pruner, sparsity, score, 1 - score / 100, None, None


def _layers():
    for environment in LOCOMOTION:
        for seed in SEEDS:
            for pruner, sparsity in VARIANTS[1:]:
                yield (
                    environment,
                    "bcq",
                    "actor",
                    "actor",
                    "pi.0",
                    pruner,
                    sparsity,
                    seed,
                    9200,
                    400 + 100 * seed,
                )
                yield environment, "bcq", "actor", "actor", "pi.1", pruner, sparsity, seed, 120000, 0


def _sizes():
    networks = {"actor": 529_000, "critic": 1_046_000, "vae": 4_763_000}
    for (network, dense), (pruner, sparsity) in product(networks.items(), VARIANTS):
        left = 1 - sparsity
        stored = {
            "dense": dense,
            "dense_sparse_indexing": 5 * dense,
            "coo": 5 * dense * left,
            "csr_int32": 2 * dense * left,
            "packed_raw": dense * left * 1.05,
            "packed_exponents": dense * left * 0.9,
            "packed_int8": dense * left * 0.3,
        }
        for name, size in stored.items():
            agent = ("HalfCheetah/bcq", network, pruner, sparsity, 0)
            yield *agent, name, round(size), round(dense * left * 1.1)


def _quantized():
    for environment, seed in product(LOCOMOTION, SEEDS):
        for values, size, lost in (("raw", 370_000, 0), ("fp16", 200_000, 1), ("int8", 125_000, 10)):
            yield environment, "bcq", "snip", 0.95, seed, values, size + 2000 * seed, 60 + 4 * seed - lost


def _studies(root):
    runs = {
        "backbones": [(backbone, "mse", "lbfgs", "swirls") for backbone in ("vgg19", "alexnet")],
        "losses": [("vgg19", loss, "lbfgs", "swirls") for loss in ("mse", "l1", "smooth_l1", "huber")],
        "optimizers": [("vgg16", "mse", optimizer, "swirls") for optimizer in ("lbfgs", "adam", "sgd")],
        "paintings": [("vgg19", "mse", "lbfgs", style) for style in ("swirls", "waves", "mosaic")],
    }
    for study, variants in runs.items():
        for i, names in enumerate(variants):
            directory = root / "results/style/gatys" / study / "-".join(names)
            for picture in ("picture", "content", "style"):
                _write(directory / f"{picture}.png", encode_png(_noise(24, 32)))
            diverged = "sgd" in names
            summary = {"params": {"style": names[-1], "content": "chelsea"}, "diverged": diverged}
            _write(directory / "summary.json", json.dumps(summary).encode())
            for iteration in range(2 if diverged else 5):
                loss = 10.0 ** (2 + 20 * iteration) if diverged else 100 * (i + 1) / (1 + iteration)
                yield study, *names, 96, iteration, loss, (i + 1) * 0.5 * iteration


def _speed():
    for size, network, vgg, alexnet in ((256, 0.1, 250.0, 50.0), (48, 0.01, 40.0, 8.0)):
        yield 2, None, size, "cpu", network, None, False, 1
        yield 1, "vgg19", size, "cpu", vgg, 500, True, 1
        yield 1, "alexnet", size, "cpu", alexnet, 500, True, 1


def _quality():
    yield "swirls", "photo", "chelsea", 1.0, 1.0, 1.0, 1.0, 0.0, None
    yield "swirls", "johnson", "chelsea", 0.31, 0.4, 0.62, 0.4, 0.5, None
    yield "swirls", "gatys-vgg19", "chelsea", 0.4, 0.12, 0.58, 0.35, 0.6, None
    yield "swirls", "johnson", "clip.mp4", 0.9, 0.9, 0.9, 0.4, 0.5, 1.5  # a video: in no mean of photos


def _timings():
    for (form, share), batch in product((("masked", 1.0), ("compacted", 0.5)), (1, 256)):
        for i, (runtime, precision) in enumerate(RUNTIMES.items()):
            p50 = share * batch / (1 + i)
            result = (p50, 2 * p50, "ok", None, precision, "1.0", form, 1e-6, 1.0)
            yield AGENT, runtime, 1, batch, None, *result
        yield (
            AGENT,
            "tvm",
            1,
            batch,
            None,
            None,
            None,
            "unavailable",
            "not installed",
            None,
            None,
            form,
            None,
            None,
        )
    for i, (runtime, precision) in enumerate(RUNTIMES.items()):
        result = (120.0 / (1 + i), 130.0, "ok", None, precision, "1.0", "dense", 1e-5, None)
        yield "styles/swirls", runtime, 1, 1, 256, *result


def _exports():
    files = {
        ("dense", False): 2e6,
        ("masked", False): 2e6,
        ("masked", True): 5e5,
        ("compacted", False): 1.25e6,
    }
    for (form, sparse), size in files.items():
        yield AGENT, "policy", form, sparse, int(size)


def _classification():
    answers = (("right", "tiger cat"), ("reported", "Egyptian cat"))
    for runtime, (how, first), rank in product(RUNTIMES, answers, range(1, 6)):
        label = first if rank == 1 else f"class {rank}"
        yield "chelsea", how, runtime, "ok", None, rank, label, 0.375 / rank, True
    yield None, None, "tvm", "unavailable", "not installed", None, None, None, None


def _record(stage, cells):
    machine = {
        "processor": "A processor", "instructions": "AVX2", "cores": 2, "memory_gb": 23.5, "gpu": None,
        "cells": cells,
    }  # fmt: skip
    return {
        "stage": stage, "profile": "small", "cells": cells, "seconds": 90.0, "commits": ["0123456789abcdef"],
        "first": "2026-01-02T03:04:05Z", "last": "2026-01-02T03:14:05Z", "machines": [machine],
        "packages": {"python": "3.11.7", "torch": "2.13.0"},
    }  # fmt: skip


def _noise(height, width):
    return torch.from_numpy(np.random.default_rng(0).random((3, height, width), dtype=np.float32))


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

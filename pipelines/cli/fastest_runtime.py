"""The runtime that `stylize` uses for videos, chosen once on a machine and kept in the user's cache.

Another measurement might choose another runtime, with which a video's bytes would differ. So a choice is kept
for each kind of processor, versions of the packages and architecture of a network, until its file is removed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from pipelines.engine.provenance import instructions, processor
from singleshot.export.measure_stylizers import SIDE_PX, Measured, measure_stylizers
from singleshot.export.runtimes import installed_version
from singleshot.export.stylizers import STYLIZERS, StylizerName
from singleshot.io.hashing import sha256_of_value
from singleshot.io.whole_file import whole_file
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.model_file import load_model


def fastest_runtime(model: Path, settings: StylizeSettings, threads: int) -> StylizerName:
    """The runtime for the network in the file `model`; measures all, and prints that, if none is kept."""
    key = {"machine": machine(), "network": _architecture(model), "precision": settings.precision}
    digest = sha256_of_value(key)
    path = _directory() / f"{digest[:16]}.json"
    if kept := _read(path):
        return kept["runtime"]
    print(f"which runtime is the fastest here? {', '.join(STYLIZERS)}: ", end="", flush=True)
    measured = measure_stylizers(model, settings, threads)
    speeds = {name: each.frames_per_second for name, each in measured.items() if each.frames_per_second}
    runtime = max(speeds, key=lambda name: speeds[name])
    choice = json.dumps(key | {"runtime": runtime, "frames_per_second": speeds}, indent=1)
    print(f"{_summary(measured, runtime)}; {_keep(path, choice)}")
    return runtime


def _keep(path: Path, choice: str) -> str:
    """Write the file, if that is possible; returns whether it was, in words."""
    try:
        with whole_file(path) as file:
            file.write_text(f"{choice}\n", encoding="utf-8")
    except OSError as error:
        return f"{path} can't keep that ({error.strerror}); set XDG_CACHE_HOME to a writable directory"
    return f"{path} keeps that"


def _summary(measured: Mapping[StylizerName, Measured], runtime: StylizerName) -> str:
    others = [
        f"{name} {each.frames_per_second:.3g}" if each.frames_per_second else f"not {name}: {each.reason}"
        for name, each in measured.items()
        if name != runtime
    ]
    speed = measured[runtime].frames_per_second
    return f"{runtime} ({speed:.3g} frames of {SIDE_PX}x{SIDE_PX} a second; {'; '.join(others)})"


def _directory() -> Path:
    return user_cache_path("singleshot") / "stylizers"


def machine() -> dict[str, Any]:
    """The processor and the package versions for which a choice holds."""
    versions = {name: installed_version(name) for name in STYLIZERS}
    return {"processor": processor(), "instructions": instructions(), "versions": versions}


def _architecture(model: Path) -> list[list[int]]:
    """The shapes of a network's weights."""
    return [list(weights.shape) for weights in load_model(model)[0].parameters()]


def _read(path: Path) -> dict[str, Any] | None:
    """The contents of a file; None if there is no such file, or it is damaged."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        return kept if kept["runtime"] in STYLIZERS and kept["machine"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

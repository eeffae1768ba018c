"""The model registry in MLflow follows the networks in `models/onnx`: their smallest exact forms."""

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pandas

from pipelines.config.params import load_config
from pipelines.engine.tracking import Experiment, TrackingConfig, tracking, tracking_uri
from pipelines.stages import GRAPHS, QUALITY, TIMINGS
from pipelines.stages import STAGES
from singleshot.io.onnx_model import GraphCard, read_card
from singleshot.io.whole_file import sha256_of
from singleshot.pruning.variant import percentage
from singleshot.secrets import without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

REGISTERED = Path("build/registered.json")
FORMS = ("dense", "compacted")
"""The smallest exact form of a network that was never pruned, and of a pruned one."""
CURRENT = "current"
TABLE = "| | |\n|---|---|\n"
"""Beginning of the descriptions that are written here; a person's own stay."""


def register_graphs() -> None:
    """Point the alias `current` of each network's registered model to its version, and describe it.

    A version is known by the SHA-256 of its file. One that MLflow does not have, or has without its files, is
    logged.
    """
    from mlflow import MlflowClient

    config, versions = load_config(), {}
    experiment = Experiment(STAGES["register"].about)
    with tracking(config.tracking, "register", config.profile, experiment) as tracker:
        client = MlflowClient()
        for path in sorted(GRAPHS.rglob("*.onnx")):
            card = read_card(path)
            if card.form not in FORMS:
                continue
            name = card.cell.replace("/", "-")  # MLflow allows no slashes
            versions[name] = register(client, path, name, tracker.run_id)
            written = client.get_registered_model(name).description or TABLE
            if written.startswith(TABLE) and written != (own := describe(card, path, config.tracking)):
                client.update_registered_model(name, own)
    REGISTERED.parent.mkdir(exist_ok=True)
    REGISTERED.write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    print(f"MLflow's registry has the {len(versions)} networks of {GRAPHS}")


def register(client: "MlflowClient", path: Path, name: str, run_id: str) -> str:
    """Point the alias `current` of a registered model to the version of a graph, and return this version."""
    digest = sha256_of(path)
    version = _version(client, name, digest) or _log(client, path, name, digest, run_id)
    client.set_registered_model_alias(name, CURRENT, version)
    return version


def _version(client: "MlflowClient", name: str, digest: str) -> str | None:
    from mlflow.exceptions import MlflowException
    from mlflow.models import get_model_info

    for found in client.search_model_versions(f"name = '{name}' and tags.sha256 = '{digest}'"):
        try:
            get_model_info(f"models:/{name}/{found.version}")
        except (MlflowException, OSError):  # `mlflow gc` removed them
            continue
        return str(found.version)
    return None


def _log(client: "MlflowClient", path: Path, name: str, digest: str, run_id: str) -> str:
    import mlflow.onnx

    mlflow.set_experiment(experiment_id=client.get_run(run_id).info.experiment_id)
    with contextlib.redirect_stderr(io.StringIO()):  # MLflow's two lines for each network
        info = mlflow.onnx.log_model(
            onnx.load(path),
            name=path.stem.replace(".", "_"),  # MLflow allows no dots
            registered_model_name=name,
            await_registration_for=0,
            # By default MLflow infers them by running the model in a separate process, which takes seconds.
            pip_requirements=mlflow.onnx.get_default_pip_requirements(),
            onnx_execution_providers=["CPUExecutionProvider"],
            save_as_external_data=False,
            run_id=run_id,
        )
    version = str(info.registered_model_version)
    client.set_model_version_tag(name, version, "sha256", digest)
    return version


def describe(card: GraphCard, path: Path, config: TrackingConfig) -> str:
    """A graph's card as Markdown, with what the run has measured of it, and a snippet that loads it.

    The file keeps what was known when it was written, so that its bytes don't depend on how fast it ran.
    """
    pruned = f", {percentage(card.sparsity)}% of the weights pruned before training" if card.sparsity else ""
    facts = {"network": f"`{card.cell}`", "kind": card.kind, "form": card.form + pruned}
    if card.score:
        facts["score"] = f"{card.score}; of D4RL scores, 0 is a random policy, 100 an expert"
    facts |= {"quality": _quality(card), "latency": _latency(card), "bytes": f"{path.stat().st_size:,}"}
    for each in card.inputs:
        shape = " x ".join(map(str, each.shape))
        facts[f"`{each.name}` {shape}"] = card.meanings.get(each.name, "")
    facts |= {f"`{output}`": card.meanings.get(output, "") for output in card.outputs}
    facts |= {key: str(value) for key, value in card.details.items() if isinstance(value, str | int | float)}
    facts |= {"licence": card.licence, "exported at commit": card.commit}
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value)
    sizes = {"batch": 1, "height": 32, "width": 32, **card.details}  # where an axis takes any size
    arrays = ", ".join(f"{each.name!r}: numpy.zeros({each.shape_at(sizes)})" for each in card.inputs)
    return (
        f"{TABLE}{table}\n\n`pip install mlflow onnxruntime`, then, in the checkout:\n\n"
        f"```python\nimport mlflow, numpy\n\n"
        f"mlflow.set_tracking_uri({without_secrets(tracking_uri(config))!r})\n"
        f"model = mlflow.pyfunc.load_model('models:/{card.cell.replace('/', '-')}@{CURRENT}')\n"
        f"model.predict({{{arrays}}})\n```"
    )


def _quality(card: GraphCard) -> str:
    if card.kind == "style":
        rows = pandas.read_csv(QUALITY)
        rows = rows[(rows["style"] == card.details["style"]) & (rows["method"] == "johnson")]
        rows = rows[rows["warping_error_ratio"].isna()]  # not the clip
        left, ssim, lpips = rows[["style_ratio_alexnet", "ssim", "lpips"]].mean()
        return (
            f"{1 - left:.0%} of the way from photo to painting, as AlexNet sees it, which had no part in "
            f"training; SSIM {ssim:.2f} and LPIPS {lpips:.2f} to the photo (means over {len(rows)} photos)"
        )
    return ""


def _latency(card: GraphCard) -> str:
    rows = pandas.read_csv(TIMINGS).query("status == 'ok' and batch == 1 and precision == 'float32'")
    # Of styles, whose networks have one shape, only one is timed.
    own = rows["model"].str.startswith("styles/") if card.kind == "style" else rows["model"] == card.cell
    rows = rows[own & (rows["form"] == card.form) & (rows["same_choices"].fillna(1) == 1)]
    for best in rows.nsmallest(1, "p50_ms").itertuples():
        size = f" of {best.size_px:g} x {best.size_px:g} px" if best.size_px > 0 else ""
        what = "state" if card.kind == "policy" else f"picture{size}"
        threads = {0: "all cores", 1: "one thread"}.get(best.threads, f"{best.threads} threads")
        where = f"{threads}, {best.device}; measured on {best.model}"
        return f"{best.p50_ms:.3g} ms for one {what} by {best.runtime} in float32 (median; {where})"
    return "not measured (`deployment.benchmark` chooses the networks that are timed)"

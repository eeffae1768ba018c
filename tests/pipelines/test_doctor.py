import http.server
import re
import shutil
import sqlite3
import ssl
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import joblib
import pytest
from checkouts import ROOT, Checkout, cleaned
from waiting import PATIENCE_S

from pipelines.cli import doctor
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.tracking import TrackingConfig
from singleshot.errors import UserError


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (
        "SINGLESHOT_CELLS",
        "RAY_ADDRESS",
        "RAY_AUTH_TOKEN",
        "MLFLOW_TRACKING_URI",
        "MUJOCO_GL",
        "DVC_NO_ANALYTICS",
    ):
        monkeypatch.delenv(name, raising=False)
    for limit in ("NETWORK_SECONDS", "PROCESS_SECONDS"):
        monkeypatch.setattr(doctor, limit, PATIENCE_S)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    copy = Checkout.of_working_tree(tmp_path_factory.mktemp("checkout") / "clone")
    with cleaned(copy):
        copy.compose("profile=smoke")
        yield copy


@pytest.fixture
def repository(checkout, tmp_path):
    """A copy to break."""
    return checkout.copy(tmp_path / "clone").path


@contextmanager
def server(status, text, certificate=None):
    """A server that is well, and answers every call of its API so; over TLS if it has a certificate."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http{'s' if certificate else ''}://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def mlflow(uri):
    return doctor.check_mlflow(TrackingConfig(uri=uri))


def rows(output):
    """State and text by the name of each check."""
    assert "Traceback" not in output
    found = re.findall(r"^(ok|warning|problem) +(\S+) +(.*)$", output, re.M)
    return {name: (state, text) for state, name, text in found}


def test_a_whole_copy_of_the_repository_has_no_problem(checkout):
    files = sorted(checkout.path.iterdir())
    found = rows(checkout.run("python", "-m", "pipelines", "doctor"))
    assert len(found) == 6
    assert "problem" not in {state for state, _ in found.values()}
    assert found["params.yaml"][0] == "ok"
    assert "6 agents" in found["params.yaml"][1]  # 2 algorithms × (dense + 2 pruners at one sparsity)
    assert "will be made" in found["MLflow"][1]
    assert sorted(checkout.path.iterdir()) == files


@pytest.mark.slow
def test_broken_things_are_named_and_stop_no_other_check(checkout, tmp_path):
    broken = checkout.copy(tmp_path / "clone")
    params = broken.path / "params.yaml"
    params.write_text(params.read_text().replace("kind: local", "kind: rai"))
    (broken.path / "requirements.lock").unlink()
    with cleaned(broken):
        found = rows(broken.run("python", "-m", "pipelines", "doctor", expect=1, RAY_ADDRESS="127.0.0.1:1"))
    problems = {name: text for name, (state, text) in found.items() if state == "problem"}
    assert set(problems) == {"packages", "params.yaml", "Ray"}
    assert "executor.kind" in problems["params.yaml"]
    assert len(found) == 6


def test_whatever_a_check_raises_is_a_problem_of_its_own():
    def fails(error):
        def check():
            raise error

        return doctor.examine(check)

    assert fails(UserError("a.yaml: wrong; do this")) == doctor.Finding("problem", "a.yaml: wrong; do this")
    assert fails(ModuleNotFoundError("No module named 'torch'")).fix == "make install"
    assert fails(RuntimeError("first\nsecond")).found == "RuntimeError: first"


def test_a_package_of_another_version_and_a_missing_one_are_named(tmp_path):
    lock = tmp_path / "requirements.lock"
    lines = [
        "# comment",
        "numpy==1.0.0",
        "    # via torch",
        f"pytest=={pytest.__version__} \\",
        "    --hash=sha256:0123",
        "no-such-thing==3",
    ]
    lock.write_text("\n".join(lines))
    finding = doctor.check_packages(lock)
    assert finding.state == "problem"
    assert re.fullmatch(r"numpy is [\d.]+, locked ==1\.0\.0; no-such-thing is missing", finding.found)
    assert "make install" in finding.fix
    lock.write_text(f"pytest=={pytest.__version__}\n")
    assert doctor.check_packages(lock).state == "ok"


def test_a_package_that_no_lock_has_is_named(tmp_path, monkeypatch):
    metadata = tmp_path / "Added_by.hand-1.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: Added_by.hand\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    finding = doctor.check_packages(ROOT / "requirements.lock")
    assert finding.state == "ok"
    others = finding.found.partition("; in no lock: ")[2].split(", ")
    assert "added-by-hand" in others
    assert not {"pip", "setuptools", "torch", "pyyaml"} & set(others)


def test_torch_without_the_gpu_that_is_asked_for(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(Path, "exists", lambda path: False)  # no NVIDIA driver either
    assert doctor.check_torch(ExecutorConfig()).state == "ok"
    finding = doctor.check_torch(ExecutorConfig(device="cuda"))
    assert finding.state == "problem"
    assert "executor.device" in finding.fix
    # The cluster's nodes may have one.
    assert doctor.check_torch(ExecutorConfig(device="cuda", address="head:6379")).state == "ok"


def test_an_edit_in_conf_that_params_yaml_lacks(checkout, tmp_path):
    # In processes of their own: Hydra keeps the first conf/ that it composes. Unedited, it is checked above.
    edited = checkout.copy(tmp_path / "clone")
    check = ("python", "-c", "from pipelines.cli import doctor; print(doctor.examine(doctor.check_params))")
    with (edited.path / "conf/offline_rl.yaml").open("a") as file:
        file.write("# edited\n")
    output = edited.run(*check)
    assert "state='problem'" in output
    assert "make params" in output


def test_the_disk_has_to_hold_the_sweep(repository, monkeypatch):
    from pipelines.config.params import load_config

    monkeypatch.chdir(repository)
    config = load_config()
    # 6 agents: three copies of 10 MB, a checkpoint of 25 MB; 3 × 5000 transitions of 400 bytes; 1 GB spare
    needed = 6 * (3 * 10e6 + 25e6) + 3 * 5000 * 400 + 1e9
    usage = shutil.disk_usage(repository)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(needed) + 1))
    assert doctor.check_disk(config).state == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(needed) - 1))
    finding = doctor.check_disk(config)
    assert finding.state == "problem"
    assert ".cells" in finding.fix
    model = repository / "models/agents/Hopper/bc/dense/seed-0/agent.safetensors"
    model.parent.mkdir(parents=True)
    model.touch()
    assert doctor.check_disk(config).state == "ok"


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    finding = mlflow(f"sqlite:///{tmp_path}/mlflow.db")
    assert finding.state == "ok"
    assert "will be made" in finding.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["missing/mlflow.db", "/proc/mlflow.db", "file/mlflow.db"])
def test_a_database_in_no_writable_folder(tmp_path, path):
    (tmp_path / "file").touch()
    finding = mlflow(f"sqlite:///{tmp_path / path}")
    assert finding.state == "problem"
    assert str((tmp_path / path).parent) in finding.fix


def test_a_database_of_each_kind(tmp_path):
    from mlflow import MlflowClient

    path, uri = tmp_path / "mlflow.db", f"sqlite:///{tmp_path}/mlflow.db"
    MlflowClient(tracking_uri=uri).search_experiments()
    assert mlflow(uri).state == "ok"
    with sqlite3.connect(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(doctor, "NETWORK_SECONDS", 0.1)
            assert "locked" in mlflow(uri).found
        connection.rollback()
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    finding = mlflow(uri)
    assert finding.state == "problem"
    assert f"mlflow db upgrade {uri}" in finding.fix
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE alembic_version")
    assert "not MLflow's" in mlflow(uri).found
    path.write_bytes(b"no database at all" * 100)
    assert "not a database" in mlflow(uri).found


def test_a_folder_of_the_old_file_store_is_refused():
    finding = mlflow("./mlruns")
    assert finding.state == "problem"
    assert "sqlite:///mlflow.db" in finding.fix


def test_a_server_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    finding = mlflow("sqlite:///never.db")  # the environment goes first
    assert finding.state == "problem"
    assert finding.found.startswith("http://127.0.0.1:1: nothing answers")


@pytest.mark.parametrize(
    ("status", "text", "fix"),
    [
        (403, "Invalid Host header - possible DNS rebinding attack detected", "--allowed-hosts 127.0.0.1:"),
        (401, "You are not authenticated.", "MLFLOW_TRACKING_PASSWORD"),
    ],
)
def test_a_server_that_refuses(status, text, fix):
    with server(status, text) as uri:
        finding = mlflow(uri)
    assert finding.state == "problem"
    assert str(status) in finding.found
    assert fix in finding.fix


def test_a_server_that_lets_us_in():
    with server(200, "{}") as uri:
        assert mlflow(uri) == doctor.Finding("ok", f"{uri}: answers and lets us in")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a certificate that signs itself, and its key."""
    path = tmp_path_factory.mktemp("tls") / "own.pem"
    about = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *about]
    subprocess.run([*command, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@pytest.mark.parametrize("setting", ["MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_SERVER_CERT_PATH"])
def test_a_server_with_a_certificate_of_its_own(certificate, monkeypatch, setting):
    with server(200, "{}", certificate) as uri:
        finding = mlflow(uri)
        assert (finding.state, "not trusted" in finding.found) == ("problem", True)
        assert setting == "MLFLOW_TRACKING_INSECURE_TLS" or setting in finding.fix
        monkeypatch.setenv(setting, "true" if setting.endswith("TLS") else str(certificate))
        assert mlflow(uri) == doctor.Finding("ok", f"{uri}: answers and lets us in")


def test_a_cluster_that_can_be_joined(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    finding = doctor.check_ray(ExecutorConfig(address="elsewhere:1"))  # the environment goes first
    assert finding.state == "ok", finding
    assert f"{cluster.address}, same versions: 2 CPU, 0 GPU" in finding.found


@pytest.mark.parametrize("asked", [{"num_cpus": 3}, {"num_gpus": 0.5}, {"memory_gb": 99999}])
def test_a_cluster_that_is_too_small(cluster, asked):
    finding = doctor.check_ray(replace(ExecutorConfig(address=cluster.address), **asked))
    assert finding.state == "problem"
    assert "that a cell asks for" in finding.found
    assert next(iter(asked)) in finding.fix


def test_a_cluster_that_wants_another_token(cluster, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    finding = doctor.check_ray(ExecutorConfig(address=cluster.address))
    assert finding.state == "problem"
    assert "token" in finding.found
    assert "RAY_AUTH_TOKEN" in finding.fix


def test_a_cluster_where_nothing_listens():
    finding = doctor.check_ray(ExecutorConfig(address="127.0.0.1:1"))
    assert finding.state == "problem"
    assert "ray start" in finding.found


def test_a_cluster_of_other_versions():
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as mismatch:
        check_version_info({"ray_version": "2.9.0", "python_version": "3.10.1"}, "node 1")
    finding = doctor.explain_ray("head:6379", f"Traceback\nRuntimeError: {mismatch.value}")
    assert finding.state == "problem"
    assert "head:6379 has Ray: 2.9.0 and Python: 3.10.1, here is Ray: " in finding.found


def test_ray_on_this_machine_or_not_at_all():
    assert f"{joblib.cpu_count()} CPU" in doctor.check_ray(ExecutorConfig()).found
    assert doctor.check_ray(ExecutorConfig(num_cpus=9999)).state == "problem"
    assert "not used" in doctor.check_ray(ExecutorConfig(kind="local", address="127.0.0.1:1")).found


def test_a_check_that_hangs_has_a_time_limit(cluster, monkeypatch):
    monkeypatch.setattr(doctor, "PROCESS_SECONDS", 0.01)
    finding = doctor.examine(lambda: doctor.check_ray(ExecutorConfig(address=cluster.address)))
    assert (finding.state, finding.found) == ("problem", "no answer within 0.01 s")

import http.server
import shutil
import threading
from contextlib import contextmanager

import mlflow
import pytest
from checkouts import ROOT

from pipelines.cli import doctor
from pipelines.config.params import compose
from singleshot.errors import UserError


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    """A working directory with conf/ and the params.yaml of the profile smoke."""
    for name in ("SINGLESHOT_CELLS", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    compose(["profile=smoke"], tmp_path / "params.yaml")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)


def test_a_whole_checkout_has_no_problem_and_stays_as_it_is(tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert doctor.print_findings()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in ("params.yaml", "disk", "MLflow", "Ray")
    ]
    assert "6 agents" in lines[0]  # 2 algorithms × (dense + 2 pruners at one sparsity)
    assert "will be made" in lines[2]
    assert sorted(tmp_path.iterdir()) == before


def test_whatever_a_check_raises_is_a_line_and_stops_no_other(monkeypatch, capsys, tmp_path):
    with (tmp_path / "conf/offline_rl.yaml").open("a") as file:
        file.write("nonsense: [\n")
    monkeypatch.setattr(doctor, "check_disk", lambda: 1 / 0)
    assert not doctor.print_findings()
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem")]
    assert [line.split()[1] for line in problems] == ["params.yaml", "disk"]
    assert "conf" in problems[0]
    assert "ZeroDivisionError" in problems[1]


def test_the_disk_has_to_hold_the_sweep(monkeypatch, tmp_path):
    # 6 agents: three copies of 10 MB, a checkpoint of 25 MB; 3 × 5000 transitions of 400 bytes; 1 GB spare
    needed = 6 * (3 * 10e6 + 25e6) + 3 * 5000 * 400 + 1e9
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(needed) + 1))
    assert doctor.check_disk()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(needed) - 1))
    with pytest.raises(UserError, match=r"\.cells"):
        doctor.check_disk()
    model = tmp_path / "models/agents/Hopper/bc/dense/seed-0/agent.safetensors"
    model.parent.mkdir(parents=True)
    model.touch()
    assert doctor.check_disk()


def test_a_database_is_told_if_it_can_not_be_used_or_made(monkeypatch, tmp_path, empty_database):
    def told(path):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        return doctor.check_mlflow()

    with pytest.raises(UserError, match=r"missing/mlflow\.db"):
        told(tmp_path / "missing/mlflow.db")
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    assert "mlflow.db" in told(tmp_path / "mlflow.db")
    (tmp_path / "other.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match=r"other\.db"):
        told(tmp_path / "other.db")


@contextmanager
def server(status, text):
    """A server that answers every call so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://me:word@127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_a_server_has_to_let_us_in(monkeypatch):
    with server(200, "{}") as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert "word" not in doctor.check_mlflow()
    with server(401, "You are not authenticated.") as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(UserError, match="401"):
            doctor.check_mlflow()
    mlflow.set_tracking_uri(None)


@pytest.mark.slow
def test_a_cluster_can_be_joined_with_its_token(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.chdir(ROOT)
    assert "1 x 2 CPU, 0 GPU" in doctor.check_ray()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(UserError, match="RAY_AUTH_TOKEN"):
        doctor.check_ray()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1"):
        doctor.check_ray()

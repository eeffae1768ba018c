import os
import platform
import subprocess
import sys

import pytest

from pipelines.engine.on_ray import ray_cluster
from pipelines.engine.run import ExecutorConfig
from singleshot.errors import UserError

CODE = """
import resource
import torch
from pipelines.engine.run import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(4_000_000).sum()  # 16 MB, i.e. 3,900 pages
        torch.ones(16_000_000).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
keep_freed_memory()
faults()
print(given_back, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_memory_of_freed_arrays_is_used_again():
    """The system hands out, and clears, no page a second time."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 20 * 1_000
    assert kept < 100


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"RAY_TMPDIR": "/tmp/" + 90 * "x"}, "RAY_TMPDIR is /tmp/x"),
        ({"RAY_TMPDIR": "/proc/x"}, "RAY_TMPDIR is /proc/x"),
        ({"RAY_TMPDIR": "/tmp/ü"}, "RAY_TMPDIR is /tmp/ü"),
        ({"HOME": "/proc/x"}, "set HOME"),
    ],
)
def test_a_folder_that_ray_can_not_use_is_told_by_its_variable(monkeypatch, environment, named):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    monkeypatch.setattr(os, "environ", kept | environment)
    with pytest.raises(UserError, match=named), ray_cluster(ExecutorConfig()):
        pass


@pytest.mark.slow
def test_ray_starts_for_this_user_alone_where_the_folder_for_temporary_files_has_a_long_name(tmp_path):
    """As batch systems name it: the paths of Ray's sockets would exceed the 107 bytes of the system.

    On a machine that several people use, nobody else gets in: not over the network, nor with the token.
    """
    temporary = tmp_path / "scratch-of-a-batch-system" / ("job-" + "0123456789" * 8)
    temporary.mkdir(parents=True)
    code = (
        "from pipelines.engine.run import ExecutorConfig\n"
        "from pipelines.engine.on_ray import ray_cluster\n"
        "import psutil\n"
        "with ray_cluster(ExecutorConfig()):\n"
        "    import ray\n"
        "    ray.get(ray.remote(lambda: 1).remote())\n"
        "    me = psutil.Process()\n"
        "    for each in [me, *me.children(recursive=True)]:\n"
        "        print(*{c.laddr.ip for c in each.net_connections() if c.status == 'LISTEN'})\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RAY_TMPDIR", "RAY_ADDRESS")
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"TMPDIR": str(temporary), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) == {"127.0.0.1", "::ffff:127.0.0.1"}, done.stderr
    assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o077 == 0

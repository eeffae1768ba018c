"""The image, the compose file and the manifests: each by the rules of who reads it, and all by each other."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from pipelines.config.params import load_config

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCKED = dict(re.findall(r"^([\w.-]+)(?:\[\S+\])?==(\S+)", (ROOT / "requirements.lock").read_text(), re.M))


def documents(name):
    return list(yaml.safe_load_all((ROOT / "conf/cluster" / name).read_text()))


[CLUSTER], [JOB], [AWS] = documents("raycluster.yaml"), documents("rayjob.yaml"), documents("aws.yaml")
SPECS = {"RayCluster": CLUSTER["spec"], "RayJob": JOB["spec"]["rayClusterSpec"]}


@pytest.mark.skipif(shutil.which("useradd") is None or os.getuid() != 0, reason="useradd, as root, adds one")
def test_the_image_can_be_built_for_a_checkout_of_roots(tmp_path):
    """In a directory for the image's; its root has UID 0, too."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    [command] = re.findall(r"^RUN (useradd .*) \\$", DOCKERFILE, re.M)
    command = shlex.split(command.replace("useradd", f"useradd --prefix {tmp_path}").replace("${UID}", "0"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^singleshot:[^:]*:0:", (tmp_path / "etc/passwd").read_text(), re.M)


def test_the_build_sees_all_that_a_run_reads_and_no_more_of_the_checkout():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    outs = {
        next(iter(out)) if isinstance(out, dict) else out for stage in stages for out in stage.get("outs", [])
    }
    reads = {
        dep
        for stage in stages
        for dep in stage.get("deps", [])
        if not any(Path(dep).is_relative_to(out) or Path(out).is_relative_to(dep) for out in outs)
    }
    assert [dep for dep in sorted(reads) if not any(Path(dep).is_relative_to(top) for top in kept)] == []
    # What is large, or secret: none of it within what is kept.
    assert not {".git", ".venv", ".cells", ".dvc", ".env", "data", "models", "results"} & set(kept)


def test_no_secret_has_a_default_and_ports_are_this_machines_alone():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    text = (ROOT / "compose.yaml").read_text()
    secrets = re.findall(r"\$\{(\w*(?:PASSWORD|TOKEN|SECRET)\w*)(.*?)\}", text)
    assert {name for name, _ in secrets} == {"RAY_AUTH_TOKEN", "POSTGRES_PASSWORD", "MINIO_ROOT_PASSWORD"}
    assert {rest for _, rest in secrets} == {":?see docs/cluster.md"}
    page = (ROOT / "docs/cluster.md").read_text()
    assert all(f"{name}=" in page for name, _ in secrets)


def test_services_find_each_other():
    head = dict(option.split("=") for option in SERVICES["ray-head"]["command"].split() if "=" in option)
    at_head = f"ray-head:{head['--port']}"
    for node in ("ray-worker", "ray-worker-gpu", "driver"):
        assert f"--address={at_head}" in SERVICES[node]["command"].split()
    driver, server = SERVICES["driver"]["environment"], SERVICES["mlflow"]["environment"]
    assert driver["RAY_ADDRESS"] == at_head
    options = dict(option.split("=", 1) for option in SERVICES["mlflow"]["command"].split() if "=" in option)
    # Without the name that the driver calls it by, the server answers 403.
    assert driver["MLFLOW_TRACKING_URI"].removeprefix("http://") in options["--allowed-hosts"].split(",")
    bucket = options["--artifacts-destination"].split("/")[2]
    assert SERVICES["buckets"]["entrypoint"][-1] == f"store/{bucket}"
    store = SERVICES["minio"]["environment"]
    for client in (driver, server):
        assert client["AWS_ENDPOINT_URL"] == "http://minio:9000"
        keys = client["AWS_ACCESS_KEY_ID"], client["AWS_SECRET_ACCESS_KEY"]
        assert keys == (store["MINIO_ROOT_USER"], store["MINIO_ROOT_PASSWORD"])
    assert server["MLFLOW_BACKEND_STORE_URI"].endswith("://mlflow@postgres:5432/mlflow")


def pod(template):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": template["spec"]}


def pods(spec):
    return [pod(group["template"]) for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_the_mlflow_manifest_is_a_deployment_and_its_service():
    deployment, service = documents("mlflow.yaml")
    for document in (deployment, service):
        kubernetes_validate.validate(document, "1.37", strict=True)
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    [port] = service["spec"]["ports"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [hosts] = [word for word in container["command"] if word.startswith("--allowed-hosts=")]
    assert f"{service['metadata']['name']}:{port['port']}" in re.split("[=,]", hosts)


def test_the_ray_manifests_are_of_pods_with_the_locked_ray_that_can_run_a_cell():
    assert SPECS["RayJob"] == SPECS["RayCluster"]
    assert SPECS["RayCluster"]["rayVersion"] == LOCKED["ray"]
    for each in pods(SPECS["RayCluster"]):
        kubernetes_validate.validate(each, "1.37", strict=True)
    # What no node could run is an error when a stage starts, also where the autoscaler could bring one.
    spec = SPECS["RayCluster"]
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    assert any(group["minReplicas"] > 0 for group in spec["workerGroupSpecs"])
    assert all(g["minReplicas"] <= g["replicas"] <= g["maxReplicas"] for g in spec["workerGroupSpecs"])
    nodes = AWS["available_node_types"]
    assert nodes[AWS["head_node_type"]]["resources"] == {"CPU": 0}
    assert any(node.get("min_workers", 0) > 0 for node in nodes.values())


def test_no_pod_runs_as_root():
    deployment = documents("mlflow.yaml")[0]["spec"]["template"]
    for each in [*pods(SPECS["RayCluster"]), pod(deployment)]:
        context = each["spec"]["securityContext"]
        assert context["runAsNonRoot"]
        assert f"ARG UID={context['runAsUser']}\n" in DOCKERFILE
        assert all(not c["securityContext"]["allowPrivilegeEscalation"] for c in each["spec"]["containers"])


def test_ray_and_mlflow_have_the_options_that_their_commands_use():
    from mlflow.cli import cli as mlflow
    from ray.scripts.scripts import cli as ray

    [container] = documents("mlflow.yaml")[0]["spec"]["template"]["spec"]["containers"]
    lines = AWS["head_start_ray_commands"] + AWS["worker_start_ray_commands"]
    lines += [service["command"] for name, service in SERVICES.items() if name in {*OURS, "mlflow"}]
    commands = [shlex.split(part) for line in lines for part in line.split("; ")] + [container["command"]]
    for program, name, *options in (words for words in commands if words[0] in {"ray", "mlflow"}):
        cli = {"ray": ray, "mlflow": mlflow}[program]
        assert cli.commands[name].make_context(name, options).params


def test_editing_a_manifest_does_not_ask_for_composing_params_again(tmp_path):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    code = "import conf_digest; print(conf_digest.conf_digest())"
    digests = []
    for edited in ("cluster/rayjob.yaml", "executor/ray.yaml"):
        with (tmp_path / "conf" / edited).open("a") as file:
            file.write("# edited\n")
        # In a process of its own: importing the plugin puts its resolver in place of the repository's.
        where = tmp_path / "conf/hydra_plugins"
        digests.append(subprocess.check_output([sys.executable, "-c", code], cwd=where, text=True).strip())
    assert digests[0] == load_config(ROOT / "params.yaml").conf_digest != digests[1]

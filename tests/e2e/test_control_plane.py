"""What the other end-to-end tests stand on: the control plane is real, and does what we say of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import urllib3
from control_plane import SCRIPT
from kube_api import eventually

if TYPE_CHECKING:
    from control_plane import ControlPlane
    from kube_api import Api, Json

GPU_MEMORY = "nvidia.com/gpumem"
QUOTA_KEY = f"limits.{GPU_MEMORY}"


def gpu_pod(memory_mib: int) -> Json:
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU_MEMORY: str(memory_mib)}}}
    return {"metadata": {"generateName": "gpu-"}, "spec": {"containers": [container]}}


def test_the_version_is_the_one_that_was_built(api: Api):
    status, version = api.get("/version")
    assert status == 200
    assert (version["gitVersion"], version["major"], version["minor"]) == ("v1.36.3", "1", "36")


def test_a_pod_that_asks_for_gpu_memory_is_stored(api: Api, namespace: str):
    status, pod = api.post(f"/api/v1/namespaces/{namespace}/pods", gpu_pod(2000))
    assert status == 201, pod
    # In canonical form, and copied to the requests as for every extended resource.
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {GPU_MEMORY: "2k"}, "requests": {GPU_MEMORY: "2k"}}
    assert pod["spec"]["serviceAccountName"] == "default"


def test_the_native_quota_takes_our_key_and_does_not_enforce_it(api: Api, namespace: str):
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    hard = {QUOTA_KEY: "1000", "pods": "2"}
    status, quota = api.post(quotas, {"metadata": {"name": "gpu"}, "spec": {"hard": hard}})
    assert status == 201, quota

    def quota_status() -> Json:
        return api.get(f"{quotas}/gpu")[1].get("status", {})

    eventually(lambda: "pods" in quota_status().get("used", {}), "first calculation of the quota")
    for _ in range(2):
        status, pod = api.post(f"/api/v1/namespaces/{namespace}/pods", gpu_pod(2000))
        assert status == 201, pod
    status, refusal = api.post(f"/api/v1/namespaces/{namespace}/pods", gpu_pod(2000))
    assert status == 403
    assert refusal["message"].endswith("exceeded quota: gpu, requested: pods=1, used: pods=2, limited: pods=2")
    eventually(lambda: quota_status()["used"] == {"pods": "2"}, "use of the quota's own key alone")
    assert quota_status()["hard"] == {QUOTA_KEY: "1k", "pods": "2"}


def test_a_deployment_gets_its_pods_from_the_controllers(control_plane: ControlPlane, namespace: str):
    labels = {"app": "gpu"}
    template = {"metadata": {"labels": labels}, "spec": gpu_pod(10)["spec"]}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    status, body = control_plane.admin.post(deployments, {"metadata": {"name": "gpu"}, "spec": spec})
    assert status == 201, body

    def names() -> list[str]:
        listed = control_plane.kubectl("get", "pods", "-n", namespace, "-o", "name").stdout
        return listed.split()

    eventually(lambda: len(names()) == 3, "three pods")


def test_objects_outlive_the_api_server(control_plane: ControlPlane, api: Api, namespace: str):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    _, pod = api.post(pods, gpu_pod(1))
    for kill in (False, True):
        control_plane.restart_api_server(kill=kill)
        status, found = api.get(f"{pods}/{pod['metadata']['name']}")
        assert status == 200
        assert found["metadata"]["uid"] == pod["metadata"]["uid"]


def test_a_warning_arrives_as_it_was_written(api: Api, namespace: str):
    pod = gpu_pod(1)
    pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    answer = api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    assert answer.status == 201
    assert answer.warnings == [
        'spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply'
    ]


@pytest.mark.parametrize(("path", "want_status"), [("/readyz", 200), ("/version", 401), ("/api/v1/pods", 401)])
def test_nobody_in_particular_may_ask_for_health_alone(api: Api, path: str, want_status: int):
    with urllib3.PoolManager(ca_certs=str(api.bundle)) as anyone:
        assert anyone.request("GET", api.url + path).status == want_status


def test_a_tenant_may_do_what_was_granted_and_a_stranger_nothing(control_plane: ControlPlane, namespace: str):
    tenant = control_plane.api("tenant", "team-a")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    assert tenant.post(pods, gpu_pod(1))[0] == 403
    control_plane.grant(namespace, "tenant")
    eventually(lambda: tenant.post(pods, gpu_pod(1))[0] == 201, "pod of the tenant")
    assert tenant.get("/api/v1/namespaces/kube-system/pods")[0] == 403


@pytest.mark.parametrize(
    ("signum", "want_code"),
    [
        pytest.param(signal.SIGINT, 0, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, id="terminated"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, id="killed, which only its children outlive for a moment"),
    ],
)
def test_the_script_runs_a_control_plane_and_leaves_nothing_behind(
    signum: signal.Signals, want_code: int, tmp_path: Path
):
    kubeconfig = tmp_path / "kubeconfig"
    with subprocess.Popen(
        [SCRIPT, "run", "--kubeconfig-out", kubeconfig],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
    ) as script:
        assert script.stdout is not None
        assert "ready after" in script.stdout.readline()
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        children = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()
        commands = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children]
        assert [Path(command[0]).name for command in commands] == [
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
        ]
        script.send_signal(signum)
        assert script.wait(timeout=30) == want_code
    folder = next(Path(word.partition("=")[2]).parent for word in commands[0] if word.startswith("--data-dir="))
    if signum == signal.SIGKILL:
        eventually(lambda: not any(map(is_alive, children)), "end of the children")
        shutil.rmtree(folder)
        kubeconfig.unlink()
    assert not any(map(is_alive, children))
    assert not folder.exists()
    assert not kubeconfig.exists()


def is_alive(pid: str) -> bool:
    """Whether a process runs; one that only awaits its reaper does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] != "Z"


def test_a_kubeconfig_of_somebody_else_is_not_overwritten(tmp_path: Path):
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("apiVersion: v1\n")
    command = [SCRIPT, "run", "--kubeconfig-out", kubeconfig]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not ours to overwrite" in done.stderr
    assert kubeconfig.read_text() == "apiVersion: v1\n"

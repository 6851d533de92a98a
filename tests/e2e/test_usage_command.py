"""`hami-quota usage` and `hami-quota verify` on a real API server, and who that server lets read the ledger."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from control_plane import free_port
from kube_api import eventually
from webhook_process import COMMAND, DEVICE_CONFIG, ROOT, Webhook

from webhook.kube import KubeClient
from webhook.server.readers import LedgerReaders, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from control_plane import ControlPlane
    from kube_api import Json

MEMORY = "nvidia.com/gpumem"
CORES = "nvidia.com/gpucores"
ALLOCATED = "hami.io/vgpu-devices-allocated"

RBAC = "/apis/rbac.authorization.k8s.io/v1"

# An address of a network that exists in documentation only (RFC 5737): a caller from elsewhere.
ELSEWHERE = "192.0.2.7"

DONE = {"terminated": {"exitCode": 0}}
FAILED = {"terminated": {"exitCode": 1}}


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with Webhook(control_plane, tmp_path_factory.mktemp("webhook"), "usage") as running:
        yield running


@pytest.fixture
def team(webhook: Webhook) -> Iterator[str]:
    """A namespace with quotas and pods in several stages: 3000 MiB placed, 500 waiting."""
    name = webhook.namespace()
    hard = {f"limits.{MEMORY}": "8000", f"limits.{CORES}": "100"}
    create(webhook, name, "resourcequotas", {"metadata": {"name": "gpu-cap"}, "spec": {"hard": hard}})
    webhook.wait_for_limit(name, 8000)
    create(webhook, name, "pods", pod("placed", container("main", 3000)))
    annotate(webhook, name, "placed", "GPU-a,NVIDIA,3000,30:;")
    create(webhook, name, "pods", pod("waiting", container("main", 500)))
    webhook.wait_for_used(name, 3500)
    webhook.wait_for_used(name, 30, f"limits.{CORES}")
    yield name
    webhook.plane.delete_namespace(name)


def container(name: str, mem: int) -> Json:
    return {"name": name, "image": "none", "resources": {"limits": {MEMORY: str(mem)}}}


def pod(name: str, *apps: Json, inits: tuple[Json, ...] = ()) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": list(apps), "initContainers": list(inits)}}


def create(webhook: Webhook, namespace: str, resource: str, body: Json) -> Json:
    status, answer = webhook.plane.admin.post(f"/api/v1/namespaces/{namespace}/{resource}", body)
    assert status == 201, answer
    return answer


def annotate(webhook: Webhook, namespace: str, name: str, devices: str) -> None:
    body = {"metadata": {"annotations": {ALLOCATED: devices}}}
    status, answer = webhook.plane.admin.patch(f"/api/v1/namespaces/{namespace}/pods/{name}", body)
    assert status == 200, answer


def run(*arguments: object, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(part) for part in (COMMAND, *arguments, "--device-config", DEVICE_CONFIG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environ)
    assert "Traceback" not in done.stderr
    return done


def usage(webhook: Webhook, *arguments: str) -> list[Json]:
    done = run("usage", "--kubeconfig", webhook.plane.kubeconfig(), "-o", "json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    namespaces: list[Json] = json.loads(done.stdout)["namespaces"]
    return namespaces


def verify(webhook: Webhook, *arguments: object) -> subprocess.CompletedProcess[str]:
    where = ("--webhook", f"https://127.0.0.1:{webhook.port}", "--ca", webhook._certs / "ca.crt")
    return run("verify", *where, *arguments)


def verify_cluster(webhook: Webhook, *arguments: object) -> subprocess.CompletedProcess[str]:
    return verify(webhook, "--kubeconfig", webhook.plane.kubeconfig(), *arguments)


# Usage.


def test_usage_counts_what_the_webhook_counts(webhook: Webhook, team: str):
    [found] = usage(webhook, "-n", team, "--pods")

    assert {row["key"]: row["used"] for row in found["keys"]} == {
        key: webhook.used(team, key) for key in (f"limits.{MEMORY}", f"limits.{CORES}")
    }
    [memory] = [row for row in found["keys"] if row["key"] == f"limits.{MEMORY}"]
    assert (memory["allocated"], memory["pending"], memory["reserved"], memory["limit"]) == (3000, 500, 0, 8000)
    assert [(item["name"], item["stage"]) for item in found["pods"]] == [
        ("placed", "allocated"),
        ("waiting", "pending"),
    ]


def test_usage_of_all_namespaces_holds_that_of_one(webhook: Webhook, team: str):
    found = usage(webhook, "-A")
    assert [item["namespace"] for item in found] == sorted(item["namespace"] for item in found)
    assert usage(webhook, "-n", team)[0] in found


def test_usage_takes_the_namespace_of_the_context(webhook: Webhook, team: str, tmp_path: Path):
    config = json.loads(webhook.plane.admin.kubeconfig())
    config["contexts"][0]["context"]["namespace"] = team
    path = tmp_path / "config"
    path.write_text(json.dumps(config))

    done = run("usage", environ={"KUBECONFIG": str(path)})

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].split()[:5] == ["gpu-cap", MEMORY, "3500", "8000", "44%"]


def test_usage_of_a_snapshot_is_that_of_the_cluster_it_was_taken_of(webhook: Webhook, team: str, tmp_path: Path):
    kinds = ("namespaces", "nodes", "resourcequotas", "pods")
    taken = webhook.plane.kubectl("get", ",".join(kinds), "--all-namespaces", "-o", "yaml").stdout
    snapshot = tmp_path / "snapshot.yaml"
    snapshot.write_text(taken)

    done = run("usage", "--snapshot", snapshot, "-n", team, "-o", "json", "--pods")

    assert json.loads(done.stdout)["namespaces"] == usage(webhook, "-n", team, "--pods")


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(("--state", "examples/nowhere"), "no such directory", id="no directory"),
        pytest.param(("--snapshot", "README.md"), "README.md:", id="a file that is no manifest"),
        pytest.param(("--kubeconfig", "README.md"), "no access to an API server", id="a file that is no kubeconfig"),
        pytest.param(("--state", ".", "--snapshot", "README.md"), "exclude each other", id="two origins"),
        pytest.param(("-n", "a", "-A", "--state", "examples/cluster"), "exclude each other", id="two answers to where"),
    ],
)
def test_what_cannot_be_counted_is_one_line_and_exit_code_2(arguments: tuple[str, ...], want: str):
    done = run("usage", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert want in done.stderr.splitlines()[-1]


def test_a_server_that_does_not_answer_is_exit_code_2(webhook: Webhook, tmp_path: Path):
    config = json.loads(webhook.plane.admin.kubeconfig())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    path = tmp_path / "config"
    path.write_text(json.dumps(config))

    done = run("usage", "--kubeconfig", path)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Connection refused" in done.stderr


def test_a_user_who_may_not_list_is_told_so(webhook: Webhook, team: str, tmp_path: Path):
    path = tmp_path / "config"
    path.write_text(webhook.plane.api("nobody-in-particular").kubeconfig())

    done = run("usage", "--kubeconfig", path, "-n", team)

    assert (done.returncode, done.stdout) == (2, "")
    assert "403 Forbidden" in done.stderr


# Verify.


def test_a_webhook_that_missed_nothing_verifies(webhook: Webhook, team: str):
    done = verify_cluster(webhook)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("equal: ")


def test_a_webhook_that_holds_something_else_does_not_verify(webhook: Webhook, team: str):
    done = verify(webhook, "--state", "examples/cluster")

    assert (done.returncode, done.stderr) == (1, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [team, "quota", "gpu-cap", "limit", MEMORY, "8000", "absent"] in rows
    assert ["team-a", "quota", "gpu-cap", "limit", MEMORY, "absent", "24576"] in rows
    assert any(row[:3] == [team, "pod", "placed"] and row[-2:] == ["3000", "absent"] for row in rows)
    assert "the webhook has not seen this pod" in done.stdout


def test_a_gate_that_the_webhook_remembers_is_told_with_the_reason(webhook: Webhook, team: str):
    create(webhook, team, "pods", pod("gated", container("main", 100), inits=(container("load", 900),)))
    webhook.wait_for_used(team, 4400)
    set_init_status(webhook, team, "gated", DONE)
    webhook.wait_for_used(team, 3600)
    set_init_status(webhook, team, "gated", FAILED)

    done = verify_cluster(webhook)

    assert done.returncode == 1
    [row] = [line for line in done.stdout.splitlines() if f"{team}  " in line and "pod gated" in line]
    assert row.split()[-3:] == [MEMORY, "100", "900"]
    assert "the webhook remembers that the init containers had ended" in done.stdout


def set_init_status(webhook: Webhook, namespace: str, name: str, state: Json) -> None:
    status = {"name": "load", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    answered, body = webhook.plane.admin.patch(path, {"status": {"initContainerStatuses": [status]}})
    assert answered == 200, body


def test_other_options_than_the_webhooks_are_told(webhook: Webhook):
    done = verify_cluster(webhook, "--default-mode", "audit")
    assert done.returncode == 1
    assert "option --default-mode: the webhook was started otherwise" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(lambda _: ("--webhook", f"https://127.0.0.1:{free_port()}"), "refused", id="nobody serves there"),
        pytest.param(lambda _: ("--webhook", "http://127.0.0.1:1"), "must be an https URL", id="no TLS"),
        pytest.param(lambda _: ("--ca", "nowhere.crt"), "no such file", id="no authority"),
        pytest.param(lambda tmp: ("--ca", another_authority(tmp)), "CERTIFICATE_VERIFY_FAILED", id="another authority"),
        pytest.param(lambda _: ("--token", "nowhere"), "--token nowhere", id="no token"),
        pytest.param(lambda _: ("--server-name", "x.test"), "x.test", id="another name"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2(
    webhook: Webhook, tmp_path: Path, arguments: Callable[[Path], tuple[Any, ...]], want: str
):
    done = verify(webhook, "--state", "examples/cluster", *arguments(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert want in done.stderr


def another_authority(directory: Path) -> Path:
    subprocess.run([COMMAND, "certs", "--dir", directory / "certs"], check=True, capture_output=True)
    return directory / "certs" / "ca.crt"


# Who may read, as the API server sees it. A test's own connections come from this machine, so where a caller from
# elsewhere is needed, only its address is made up: the token, its owner and its rights are real.


@pytest.fixture
def kube(control_plane: ControlPlane) -> Iterator[KubeClient]:
    with KubeClient.from_kubeconfig(str(control_plane.kubeconfig())) as client:
        yield client


def token_of(plane: ControlPlane, namespace: str, account: str) -> str:
    """Return a fresh token of a service account that is made for it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    status, body = plane.admin.post(accounts, {"metadata": {"name": account}})
    assert status == 201, body
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    status, body = plane.admin.post(f"{accounts}/{account}/token", request)
    assert status == 201, body
    return str(body["status"]["token"])


def ask(client: KubeClient, token: str) -> str:
    return refusal(ELSEWHERE, f"Bearer {token}", LedgerReaders(client, lambda: 0.0).refusal)


def test_a_caller_from_elsewhere_needs_the_right_to_get_the_url(
    control_plane: ControlPlane, kube: KubeClient, namespace: str
):
    token = token_of(control_plane, namespace, "auditor")
    user = f"system:serviceaccount:{namespace}:auditor"
    assert ask(kube, token) == f"{user} may not get /debug/ledger"

    name = f"ledger-reader-{namespace}"
    rule = {"nonResourceURLs": ["/debug/ledger"], "verbs": ["get"]}
    admin = control_plane.admin
    assert admin.post(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})[0] == 201
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "auditor"}],
    }
    assert admin.post(f"{RBAC}/clusterrolebindings", binding)[0] == 201
    eventually(lambda: not ask(kube, token), "right to get the ledger")

    admin.delete(f"{RBAC}/clusterrolebindings/{name}")
    admin.delete(f"{RBAC}/clusterroles/{name}")


def test_a_token_that_the_cluster_did_not_issue_is_refused(kube: KubeClient):
    assert ask(kube, "made.up.token") == "the token is not valid in this cluster"


def test_a_webhook_that_may_not_ask_refuses(control_plane: ControlPlane, namespace: str, tmp_path: Path):
    path = tmp_path / "config"
    path.write_text(control_plane.api("nobody-in-particular").kubeconfig())
    with KubeClient.from_kubeconfig(str(path)) as client:
        assert "the token cannot be checked: 403 Forbidden" in ask(
            client, token_of(control_plane, namespace, "auditor")
        )

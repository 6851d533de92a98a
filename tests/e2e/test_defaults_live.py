"""HAMi's defaulting by a real API server: what it stores is what the patch says, and is judged right after.

One process answers both webhooks, installed as `hami-quota manifests webhook --mutating` prints them.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import jsonpatch
import pytest
import yaml
from control_plane import free_port
from identities import Authority
from kube_api import eventually
from webhook_process import DEVICE_CONFIG, Webhook

from webhook.admission import Rules
from webhook.defaulting import Refusal
from webhook.mutation import mutation
from webhook.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from control_plane import ControlPlane
    from kube_api import Api, Json

CONFIG = yaml.safe_load(DEVICE_CONFIG.read_text())
RULES = Rules.from_config(DEVICE_CONFIG.read_text(), Policy())

MEMORY = "nvidia.com/gpumem"


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    directory = tmp_path_factory.mktemp("mutation")
    with Webhook(control_plane, directory, "mutation", ("--lookup-after", "0.5"), mutating=True) as running:
        yield running


@pytest.fixture
def team(webhook: Webhook) -> Iterator[str]:
    name = webhook.namespace()
    yield name
    webhook.plane.delete_namespace(name)


def container(name: str, limits: Json, **more: Any) -> Json:
    return {"name": name, "image": "none", "resources": {"limits": limits}, **more}


def pod(name: str, *apps: Json, inits: tuple[Json, ...] = (), annotations: Json | None = None, **spec: Any) -> Json:
    # A token's volume would have another name in every pod.
    spec = {"containers": list(apps), "initContainers": list(inits), "automountServiceAccountToken": False, **spec}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


def create(api: Api, namespace: str, body: Json, **query: str) -> tuple[int, Json]:
    status, answer = api.post(f"/api/v1/namespaces/{namespace}/pods", body, **query)
    return status, answer


def set_quota(webhook: Webhook, namespace: str, **hard: str) -> None:
    body = {"metadata": {"name": "cap"}, "spec": {"hard": hard}}
    status, answer = webhook.plane.admin.post(f"/api/v1/namespaces/{namespace}/resourcequotas", body)
    assert status == 201, answer
    for key, limit in hard.items():
        webhook.wait_for_limit(namespace, int(limit), key)


def patched(document: Json) -> Json:
    """Return a pod with our patch, and then what the API server's own defaults add to it."""
    operations = mutation(document, RULES.backends, RULES.policy)
    assert not isinstance(operations, Refusal)
    assert operations
    result: Json = jsonpatch.apply_patch(document, operations)
    for each in [*result["spec"].get("initContainers", []), *result["spec"]["containers"]]:
        resources = each["resources"]
        resources["requests"] = resources["limits"] | resources.get("requests", {})
    return result


# By family, what a pod asks of it, and the quota that one such pod fills.
FAMILIES: dict[str, tuple[Json, str, int]] = {
    "NVIDIA": ({MEMORY: "4000"}, MEMORY, 4000),
    "MLU": (
        {"cambricon.com/vmlu": "1", "cambricon.com/mlu.smlu.vmemory": "20"},
        "cambricon.com/mlu.smlu.vmemory",
        20,
    ),
    "DCU": ({"hygon.com/dcunum": "2", "hygon.com/dcumem": "2000"}, "hygon.com/dcumem", 2 * 2000),
    "Mthreads": ({"mthreads.com/vgpu": "2"}, "mthreads.com/sgpu-memory", 2 * 96),
    "Metax-GPU": ({"metax-tech.com/gpu": "2"}, "metax-tech.com/gpu", 2),
    "Metax-SGPU": ({"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "16"}, "metax-tech.com/vmemory", 16),
    "kunlun": ({"kunlunxin.com/xpu": "1"}, "kunlunxin.com/xpu", 1),
    "XPU": ({"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "20000"}, "kunlunxin.com/vxpu-memory", 24576),
    "GCU": ({"enflame.com/gcu": "1"}, "enflame.com/gcu", 1),
    "Enflame": ({"enflame.com/drs-gcu": "2"}, "enflame.com/drs-gcu", 1),
    "AWSNeuron": ({"aws.amazon.com/neuroncore": "4"}, "aws.amazon.com/neuroncore", 4),
    "AMD": ({"amd.com/gpu": "2", "amd.com/gpumem": "16384"}, "amd.com/gpumem", 2 * 16384),
    "Vastai": ({"vastaitech.com/va": "1"}, "vastaitech.com/va", 1),
    "Biren": ({"birentech.com/gpu": "1"}, "birentech.com/gpu", 1),
    **{
        chip["commonWord"]: (
            {chip["resourceCountName"]: "2", chip["resourceMemoryName"]: "64"},
            chip["resourceCoreName"],
            2 * 100,
        )
        for chip in CONFIG["iluvatars"]
    },
    **{
        chip["commonWord"]: (
            {chip["resourceName"]: "1"},
            chip["resourceMemoryName"],
            chip["memoryAllocatable"] * (2 if chip.get("superPod") else 1),
        )
        for chip in CONFIG["vnpus"]["configs"]
    },
}


def test_there_is_a_pod_of_every_family():
    assert FAMILIES.keys() == {backend.key for backend in RULES.backends}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pod_is_patched_as_the_library_would_and_then_judged(
    webhook: Webhook, api: Api, team: str, namespace: str, family: str
):
    limits, resource, limit = FAMILIES[family]
    key = f"limits.{resource}"
    subject = pod("a", container("main", limits), inits=(container("proxy", {"cpu": "1"}, restartPolicy="Always"),))
    status, plain = create(api, namespace, subject, dryRun="All")
    assert status == 201, plain
    status, got = create(api, team, subject, dryRun="All")
    assert status == 201, got
    want = patched(plain)
    assert got["spec"] == want["spec"]
    assert got["metadata"].get("annotations") == want["metadata"].get("annotations")

    set_quota(webhook, team, **{key: str(limit)})
    assert create(api, team, subject)[0] == 201
    status, answer = create(api, team, {**subject, "metadata": {"name": "b"}})
    assert status == 403
    assert f"exceeded quota: cap, requested: {key}={limit}, used: {key}={limit}, limited: {key}=" in answer["message"]
    webhook.wait_for_used(team, limit, key)


def test_a_pod_that_asks_two_families_is_patched_for_and_charged_to_both(
    webhook: Webhook, api: Api, team: str, namespace: str
):
    chip = CONFIG["vnpus"]["configs"][0]
    whole = chip["memoryAllocatable"]
    shared, alone = container("main", {MEMORY: "1000", chip["resourceName"]: "1"}), container("side", {MEMORY: "500"})
    subject = pod("a", shared, alone)
    nvidia, ascend = f"limits.{MEMORY}", f"limits.{chip['resourceMemoryName']}"
    set_quota(webhook, team, **{nvidia: "3000", ascend: str(whole)})
    want = patched(create(api, namespace, subject, dryRun="All")[1])
    status, got = create(api, team, subject)
    assert (status, got["spec"]) == (201, want["spec"])
    webhook.wait_for_used(team, 1500, nvidia)
    webhook.wait_for_used(team, whole, ascend)
    status, answer = create(api, team, pod("b", shared, alone))
    assert status == 403
    assert f"requested: {ascend}={whole}, used: {ascend}={whole}, limited: {ascend}={whole}" in answer["message"]
    assert nvidia not in answer["message"]
    assert create(api, team, pod("c", alone))[0] == 201


def test_the_pods_of_a_deployment_are_patched(webhook: Webhook, api: Api, team: str):
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": pod("", container("main", {MEMORY: "100"}))["spec"]}
    body = {
        "metadata": {"name": "a"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    assert api.post(f"/apis/apps/v1/namespaces/{team}/deployments", body)[0] == 201

    def pods() -> list[Json]:
        items: list[Json] = api.get(f"/api/v1/namespaces/{team}/pods")[1]["items"]
        return items if len(items) == 2 else []

    for created in eventually(pods, "two pods"):
        assert created["spec"]["schedulerName"] == "hami-scheduler"
        assert created["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1", MEMORY: "100"}


def test_what_hami_refuses_is_refused_by_the_webhook_that_stands_for_it(api: Api, team: str):
    privileged = container("root", {}, securityContext={"privileged": True})
    status, answer = create(api, team, pod("a", privileged, container("main", {MEMORY: "1"})))
    assert status == 403
    assert answer["message"].startswith(
        'admission webhook "defaults.hami.io" denied the request: container root is privileged'
    )
    # Where nothing is ours to refuse, this control plane does: it takes no privileged container.
    assert create(api, team, pod("b", privileged))[0] == 422


def test_other_pods_are_not_sent_and_those_of_other_schedulers_not_changed(webhook: Webhook, api: Api, team: str):
    before = webhook.metric("hami_quota_mutations_total")
    assert create(api, team, pod("plain", container("main", {"cpu": "1"})))[0] == 201
    assert webhook.metric("hami_quota_mutations_total") == before
    unchanged = webhook.metric("hami_quota_mutations_total", outcome="unchanged")
    status, stranger = create(api, team, pod("stranger", container("main", {MEMORY: "1"}), schedulerName="volcano"))
    assert status == 201
    assert stranger["spec"]["schedulerName"] == "volcano"
    assert stranger["spec"]["containers"][0]["resources"]["limits"] == {MEMORY: "1"}
    assert webhook.metric("hami_quota_mutations_total", outcome="unchanged") == unchanged + 1


class Injector:
    """A foreign mutating webhook, which puts a sidecar that asks for a GPU before what is there; a server of its own.

    Its configuration's name sorts behind ours, so it is called after us.
    """

    SIDECAR = container("inj", {MEMORY: "2000"}, restartPolicy="Always")
    PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

    def __init__(self, plane: ControlPlane, directory: Path, namespace: str) -> None:
        authority = Authority(directory)
        identity = authority.server("127.0.0.1")
        self._plane = plane
        self._port = free_port()
        self._bundle = authority.bundle.read_bytes()
        self._namespace = namespace
        self.seen: list[Json] = []
        injector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(injector.answer(body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(identity.certificate, identity.key)
        # The handshake is left to the connection's own thread: the API server opens some that say nothing yet.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def answer(self, review: Json) -> Json:
        """Return the answer to a review, the pod as it came kept."""
        subject = review["request"]["object"]
        self.seen.append(subject)
        patch = [{"op": "add", "path": "/spec/initContainers", "value": [self.SIDECAR]}]
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }
        return {key: review[key] for key in ("apiVersion", "kind")} | {"response": response}

    def __enter__(self) -> Self:
        self._thread.start()
        configuration = {
            "metadata": {"name": "zz-injector"},
            "webhooks": [
                {
                    "name": "injector.example.com",
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{self._port}/",
                        "caBundle": base64.b64encode(self._bundle).decode(),
                    },
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }
        status, body = self._plane.admin.post(self.PATH, configuration)
        assert status == 201, body
        probe = pod("probe", container("main", {"cpu": "1"}))
        eventually(
            lambda: create(self._plane.admin, self._namespace, probe, dryRun="All") and self.seen,
            "call of the injector",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.admin.delete(f"{self.PATH}/zz-injector")
        self._server.shutdown()
        self._thread.join()
        # Threads of connections that the API server keeps are daemons, and not waited for.
        self._server.block_on_close = False
        self._server.server_close()


def test_a_sidecar_that_another_webhook_injects_later_is_patched_too_and_charged(
    webhook: Webhook, api: Api, team: str, tmp_path: Path
):
    """Met with service meshes that inject their proxy after everyone else."""
    set_quota(webhook, team, **{f"limits.{MEMORY}": "6000"})
    with Injector(webhook.plane, tmp_path, team) as injector:
        status, answer = create(api, team, pod("big", container("main", {MEMORY: "4001"})))
        assert status == 403
        assert f"requested: limits.{MEMORY}=6001, used: limits.{MEMORY}=0" in answer["message"]
        assert "sidecar inj 2000 + app main 4001 run together" in answer["message"]
        # It was called after us, and what it added was patched all the same.
        assert injector.seen[-1]["spec"]["schedulerName"] == "hami-scheduler"
        status, created = create(api, team, pod("a", container("main", {MEMORY: "4000"})))
        assert status == 201, created
    (sidecar,) = created["spec"]["initContainers"]
    assert sidecar["resources"]["limits"] == {"nvidia.com/gpu": "1", MEMORY: "2k"}
    webhook.wait_for_used(team, 6000)

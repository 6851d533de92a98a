"""Which requests the generated configuration makes the API server send: pods that concern HAMi's devices, at creation.

A stub stands where the webhook would: it allows everything and keeps what it was asked. The API server asks before it
answers, so once it has answered, what the stub has not seen was not sent.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import pytest
import yaml
from control_plane import free_port
from identities import Authority
from kube_api import JSON_PATCH, eventually
from webhook_process import DEVICE_CONFIG, ROOT

from webhook.admission import Rules
from webhook.install import ServiceReference, ValidatingOptions, managed_names, to_yaml, validating_configuration
from webhook.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from control_plane import ControlPlane
    from kube_api import Api, Json

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MEMORY = "nvidia.com/gpumem"

# The chart's families have fewer names; with these chips there are more than the 82 that all of HAMi's have.
CHIPS = 7
# The API server takes a request without a limit for names of this domain alone.
NATIVE = "gpu.kubernetes.io/vMem"


def many_rules() -> Rules:
    """Return the rules of the chart's configuration with further chips."""
    config = yaml.safe_load(DEVICE_CONFIG.read_text())
    for number in range(CHIPS):
        stem = f"iluvatar.ai/chip-{number}"
        names = {"resourceCountName": f"{stem}-vgpu", "resourceMemoryName": f"{stem}.vMem"}
        if number == 0:
            names["resourceMemoryName"] = NATIVE
        chip = {"chipName": f"chip-{number}", "commonWord": f"chip-{number}", "resourceCoreName": f"{stem}.vCore"}
        config["iluvatars"].append(chip | names)
    return Rules.from_config(yaml.safe_dump(config), Policy())


class Stub:
    """An HTTPS server that allows every review and keeps its request."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        self.bundle = authority.bundle.read_bytes()
        identity = authority.server("127.0.0.1")
        self.port = free_port()
        self.requests: list[Json] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.requests.append(body["request"])
                response = {"uid": body["request"]["uid"], "allowed": True}
                answer = json.dumps({k: body[k] for k in ("apiVersion", "kind")} | {"response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(identity.certificate, identity.key)
        # The handshake is left to the connection's own thread: the API server opens some that say nothing yet.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        # Threads of connections that the API server keeps are daemons, and not waited for.
        self._server.block_on_close = False
        self._server.server_close()

    @property
    def options(self) -> dict[str, Any]:
        """What makes a configuration call this stub."""
        return {"url": f"https://127.0.0.1:{self.port}/validate", "ca_bundle": self.bundle}


class Installed:
    """The configuration in force, and the stub that it calls."""

    def __init__(self, plane: ControlPlane, stub: Stub, own_namespace: str) -> None:
        self.rules = many_rules()
        self.own_namespace = own_namespace
        self._api = plane.admin
        self._stub = stub
        options = ValidatingOptions(
            name="match-conditions", service=ServiceReference(namespace=own_namespace), **stub.options
        )
        # Through the text, as kubectl would apply it.
        self.configuration = yaml.safe_load(to_yaml([validating_configuration(self.rules, options)]))

    def reviewed(self, namespace: str, pod: Json, *, want_status: int = 201, dry_run: bool = True) -> list[Json]:
        """Create a pod, and return the requests that the stub got for it."""
        self._stub.requests.clear()
        query = {"dryRun": "All"} if dry_run else {}
        status, answer = self._api.post(f"/api/v1/namespaces/{namespace}/pods", pod, **query)
        assert status == want_status, answer
        return self.requests(namespace)

    def requests(self, namespace: str) -> list[Json]:
        """Return what the stub was asked about a namespace since the last create."""
        return [request for request in self._stub.requests if request["namespace"] == namespace]


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    own = control_plane.create_namespace()
    probe = control_plane.create_namespace()
    with Stub(tmp_path_factory.mktemp("stub")) as stub:
        installed = Installed(control_plane, stub, own)
        status, answer = control_plane.admin.post(CONFIGURATIONS, installed.configuration)
        assert status == 201, answer
        try:
            eventually(lambda: installed.reviewed(probe, pod(app(MEMORY))), "request to the stub")
            yield installed
        finally:
            control_plane.admin.delete(f"{CONFIGURATIONS}/match-conditions")
            # Until it is out of force, pods of the tests that follow would wait for a stub that is gone.
            eventually(lambda: not installed.reviewed(probe, pod(app(MEMORY))), "end of the requests")
    for name in (own, probe):
        control_plane.delete_namespace(name)


def container(name: str, *resources: str, requests: tuple[str, ...] = (), **more: Any) -> Json:
    limits = dict.fromkeys(resources, "1")
    return {
        "name": name,
        "image": "none",
        "resources": {"limits": limits, "requests": limits | dict.fromkeys(requests, "1")},
        **more,
    }


def app(*resources: str) -> Json:
    return container("main", *resources)


def pod(*apps: Json, inits: tuple[Json, ...] = (), annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    metadata: Json = {"generateName": "p-"}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": list(apps), "initContainers": list(inits), **spec}}


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(pod(app(MEMORY)), id="an app container"),
        pytest.param(pod(app(), container("second", MEMORY)), id="the last app container"),
        pytest.param(pod(app(), inits=(container("i", MEMORY),)), id="an init container"),
        pytest.param(pod(app(), inits=(container("s", MEMORY, restartPolicy="Always"),)), id="a native sidecar"),
        pytest.param(pod(app("cpu", "memory", "nvidia.com/gpu")), id="a count among other resources"),
        pytest.param(pod(app("iluvatar.ai/chip-6.vCore")), id="a family added to the chart's"),
        pytest.param(pod(container("main", requests=(NATIVE,))), id="a request alone, where the API server takes one"),
        pytest.param(pod(app(), annotations={"hami.io/vgpu-node": "n"}), id="an annotation that HAMi's scheduler sets"),
        pytest.param(
            pod(app(), annotations={"a": "b", "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:;"}),
            id="a forged allocation, without any resource",
        ),
    ],
)
def test_a_pod_that_concerns_hami_is_reviewed_once(installed: Installed, namespace: str, subject: Json):
    (request,) = installed.reviewed(namespace, subject)
    assert (request["operation"], request["resource"]["resource"], request["dryRun"]) == ("CREATE", "pods", True)
    assert request["object"]["metadata"]["uid"]


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(
            {"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "a", "image": "i"}]}},
            id="the least pod",
        ),
        pytest.param(pod(app("cpu", "memory"), inits=(container("i", "cpu"),)), id="cpu and memory"),
        pytest.param(
            pod(app("example.com/gpumem", "nvidia.com/gpumem2", "nvidia.com/GPU")), id="names that are nearly ours"
        ),
        pytest.param(pod(app(), annotations={"nvidia.com/gpumem": "1"}), id="a resource's name on an annotation"),
        pytest.param(pod(app(), annotations={"nvidia.com/use-gputype": "A100"}), id="an annotation for users"),
        pytest.param(pod(app(), nodeSelector={"nvidia.com/gpu": "true"}), id="a node selector"),
    ],
)
def test_any_other_pod_never_reaches_the_webhook(installed: Installed, namespace: str, subject: Json):
    assert installed.reviewed(namespace, subject) == []


def test_a_request_without_a_limit_is_refused_by_the_api_server_itself(installed: Installed, namespace: str):
    assert installed.reviewed(namespace, pod(container("main", requests=(MEMORY,))), want_status=422) == []


def test_only_the_creation_of_a_pod_is_reviewed(installed: Installed, api: Api, namespace: str):
    (request,) = installed.reviewed(namespace, pod(app(MEMORY)), dry_run=False)
    path = f"/api/v1/namespaces/{namespace}/pods/{request['name']}"
    assert api.patch(path, {"metadata": {"labels": {"a": "b"}}})[0] == 200
    ephemeral = [{"op": "add", "path": "/spec/ephemeralContainers", "value": [{"name": "e", "image": "i"}]}]
    assert api.patch(f"{path}/ephemeralcontainers", ephemeral, JSON_PATCH)[0] == 200
    assert api.patch(f"{path}/status", {"status": {"phase": "Running"}})[0] == 200
    binding = {"metadata": {"name": request["name"]}, "target": {"kind": "Node", "name": "none"}}
    assert api.post(f"{path}/binding", binding)[0] == 201
    assert api.delete(path, gracePeriodSeconds="0")[0] == 200
    assert len(installed.requests(namespace)) == 1


@pytest.mark.parametrize("excluded", ["kube-system", "its own"])
def test_the_namespaces_it_needs_to_start_are_left_alone(
    installed: Installed, control_plane: ControlPlane, excluded: str
):
    name = installed.own_namespace if excluded == "its own" else excluded
    eventually(
        lambda: control_plane.admin.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")[0] == 200, "account"
    )
    assert installed.reviewed(name, pod(app(MEMORY))) == []


def test_the_largest_pods_stay_within_the_cost_limits(installed: Installed, namespace: str):
    """Past the API server's limit a pod is refused, whether it concerns us or not."""
    assert len(installed.rules.managed) >= 82
    others = [f"vendor-{number}.example.com/device-{number}" for number in range(30)]
    apps = [container(f"app-{number}", *others) for number in range(100)]
    inits = [container(f"init-{number}", *others) for number in range(100)]
    annotations = {f"example.com/annotation-{number}": "x" for number in range(200)}
    assert installed.reviewed(namespace, pod(*apps, inits=tuple(inits), annotations=annotations)) == []
    inits[-1] = container("last", *others[1:], max(installed.rules.managed))
    assert len(installed.reviewed(namespace, pod(*apps, inits=tuple(inits), annotations=annotations))) == 1


def test_every_managed_name_of_the_rules_leads_to_a_review(installed: Installed, namespace: str):
    for name in sorted(installed.rules.managed):
        assert len(installed.reviewed(namespace, pod(app(name)))) == 1, name


def test_every_owned_annotation_leads_to_a_review(installed: Installed, namespace: str):
    for name in sorted(installed.rules.owned_annotations):
        assert len(installed.reviewed(namespace, pod(app(), annotations={name: "x"}))) == 1, name


def test_what_the_api_server_stores_still_names_all_that_the_rules_know(installed: Installed, api: Api):
    status, stored = api.get(f"{CONFIGURATIONS}/match-conditions")
    assert status == 200
    assert managed_names(stored) == installed.rules.managed | installed.rules.owned_annotations


def test_names_of_any_spelling_are_accepted(installed: Installed, api: Api):
    rules = many_rules()
    rules.owned_annotations = frozenset({'a"b', "a\\b", "a\nb", "a\tb", "gerät", "😀", "\x7f"})
    odd = validating_configuration(rules, ValidatingOptions(name="odd", url="https://127.0.0.1:1/validate"))
    status, stored = api.post(CONFIGURATIONS, odd, dryRun="All")
    assert status == 201, stored
    assert managed_names(stored) == rules.managed | rules.owned_annotations


def test_the_committed_manifest_can_be_applied(control_plane: ControlPlane):
    manifest = ROOT / "manifests" / "validating-webhook.yaml"
    done = control_plane.kubectl("create", "--dry-run=server", "-f", str(manifest))
    assert (
        done.stdout
        == "validatingwebhookconfiguration.admissionregistration.k8s.io/hami-quota created (server dry run)\n"
    )

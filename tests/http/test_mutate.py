"""POST /mutate through Flask's test client."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from test_app import Server, review

from webhook.app import MAX_BODY_BYTES

COUNT, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"


@pytest.fixture
def server() -> Server:
    return Server()


def mutated(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a review as the answer would have it."""
    response = server.judge(body, "/mutate")
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    patch = json.loads(base64.b64decode(response["patch"], validate=True))
    return dict(jsonpatch.apply_patch(body["request"]["object"], patch))


def unpatched(response: dict[str, Any]) -> bool:
    return response["allowed"] is True and not {"patch", "patchType", "status"} & response.keys()


def test_a_pod_is_given_hamis_defaults(server: Server):
    spec = mutated(server, review("4000"))["spec"]
    assert spec["schedulerName"] == "hami-scheduler"
    assert spec["containers"][0]["resources"]["limits"] == {COUNT: "1", MEMORY: "4000"}
    assert server.mutations == ["patched"]


def test_the_result_is_answered_without_a_patch(server: Server):
    once = mutated(server, review("4000"))
    assert unpatched(server.judge(review(object=once), "/mutate"))
    assert server.mutations == ["patched", "unchanged"]


def test_what_hami_refuses_is_denied_in_our_words(server: Server):
    body = review("4000")
    body["request"]["object"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    answer = server.judge(body, "/mutate")
    assert answer["allowed"] is False
    assert "patch" not in answer
    assert (answer["status"]["code"], answer["status"]["reason"]) == (403, "Forbidden")
    assert answer["status"]["message"].startswith("container main is privileged")
    assert server.mutations == ["denied"]


def test_a_dry_run_is_answered_alike(server: Server):
    assert server.judge(review("4000"), "/mutate") == server.judge(review("4000", dryRun=True), "/mutate")


def test_nothing_is_read_but_the_review_and_nothing_reserved(server: Server):
    server.quota(mem="5000")
    server.unready = "the first list of pods is not in"
    assert server.post(review("4000"))[0] == 503
    for number in range(3):
        mutated(server, review("4000", name=f"a{number}"))
    mutated(server, review("5001"))
    assert server.ledger.statistics().reservations == 0
    server.unready = ""
    assert server.judge(review("5000"))["allowed"] is True
    assert len(server.decisions) == 1


def test_what_another_webhook_adds_later_is_judged(server: Server):
    """Met with service meshes that inject their proxy after everyone else."""
    server.quota(mem="5000")
    pod = mutated(server, review("4000"))
    sidecar = {
        "name": "inj",
        "image": "none",
        "restartPolicy": "Always",
        "resources": {"limits": {COUNT: "1", MEMORY: "2000"}},
    }
    pod["spec"]["initContainers"] = [sidecar]
    denied = server.judge(review(object=pod))
    assert denied["allowed"] is False
    assert "requested: limits.nvidia.com/gpumem=6000" in denied["status"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"operation": "UPDATE"}, id="an update"),
        pytest.param({"operation": "DELETE", "object": None}, id="a deletion"),
        pytest.param({"subResource": "ephemeralcontainers"}, id="a subresource"),
        pytest.param({"resource": {"group": "apps", "version": "v1", "resource": "pods"}}, id="another group's pods"),
        pytest.param({"resource": {"group": "", "version": "v1", "resource": "secrets"}}, id="another resource"),
    ],
)
def test_what_creates_no_pod_is_let_through(server: Server, fields: dict[str, Any]):
    assert unpatched(server.judge(review("4000", **fields), "/mutate"))


def test_a_static_pod_that_a_kubelet_shows_is_let_through(server: Server):
    body = review("4000", userInfo={"username": "system:node:n", "groups": ["system:nodes"]})
    body["request"]["object"]["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    body["request"]["object"]["spec"]["nodeName"] = "n"
    assert unpatched(server.judge(body, "/mutate"))


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param({"spec": {"containers": [{"name": 7}]}}, "name", id="a field of another type"),
        pytest.param({"spec": {"containers": [{"name": "a", "env": "x"}]}}, "env", id="variables that are none"),
        pytest.param([], "object", id="no object"),
        pytest.param(None, "object", id="nothing"),
    ],
)
def test_an_object_that_is_no_pod_is_denied(server: Server, document: Any, want: str):
    answer = server.judge(review(object=document), "/mutate")
    assert answer["allowed"] is False
    assert want in answer["status"]["message"]


def test_what_is_no_review_is_not_answered_as_one(server: Server):
    assert server.post(b"pods: 3", "/mutate")[0] == 400
    assert server.post(b" " * (MAX_BODY_BYTES + 1), "/mutate")[0] == 413
    assert server.client.get("/mutate").status_code == 405
    assert server.mutations == ["unreadable"]

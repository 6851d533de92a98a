"""The HTTP face through Flask's test client: every kind of answer, and what it leaves in the ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from webhook.admission import Rules
from webhook.api.resource_quota import decode_resource_quota
from webhook.app import MAX_BODY_BYTES, Probes, create_app
from webhook.devices.registry import load_backends
from webhook.errors import ApiServerError
from webhook.ledger import QuotaLedger
from webhook.policy import Policy
from webhook.quotas import read_quota
from webhook.review import Mutator, Reviewer

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from webhook.admission import Decision

CONFIG = (Path(__file__).parent.parent / "vectors" / "config" / "default.yaml").read_text()


class Server:
    """An application over a ledger, with everything around it in the test's hand."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.rules = Rules(load_backends(CONFIG), policy or Policy())
        self.now = 1000.0
        self.stored: dict[str, str] = {}
        self.lookups = 0
        self.is_api_server_down = False
        self.unready = ""
        self.decisions: list[Decision] = []
        self.undecided_reasons: list[str] = []
        self.mutations: list[str] = []
        self.ledger = QuotaLedger(
            clock=lambda: self.now, lookup_after_s=self.rules.policy.lookup_after_s, mode=self.rules.policy.mode
        )
        reviewer = Reviewer(
            rules=self.rules, ledger=self.ledger, lookup=self, not_ready=lambda: self.unready, observer=self
        )
        probes = Probes(not_ready=lambda: self.unready, not_live=lambda: "", metrics=lambda: (b"x 1\n", "text/plain"))
        self.reviewer = reviewer
        mutator = Mutator(self.rules, self)
        self.client: FlaskClient = create_app(reviewer, mutator, probes).test_client()

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        assert timeout_s > 0
        self.lookups += 1
        if self.is_api_server_down:
            raise ApiServerError(0, "connection refused")
        return self.stored.get(f"{namespace}/{name}")

    def decided(self, decision: Decision, seconds: float) -> None:
        assert seconds >= 0
        self.decisions.append(decision)

    def undecided(self, reason: str, seconds: float) -> None:
        assert seconds >= 0
        self.undecided_reasons.append(reason)

    def mutated(self, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.mutations.append(outcome)

    def quota(self, **hard: str) -> None:
        names = {"mem": "limits.nvidia.com/gpumem", "cores": "limits.nvidia.com/gpucores"}
        body = {
            "metadata": {"name": "gpu-cap", "namespace": "team-a"},
            "spec": {"hard": {names[key]: value for key, value in hard.items()}},
        }
        self.ledger.set_quota("team-a", read_quota(decode_resource_quota(json.dumps(body).encode()), self.rules.keys))

    def post(self, review: Any, path: str = "/validate") -> tuple[int, dict[str, Any]]:
        body = review if isinstance(review, bytes) else json.dumps(review).encode()
        answer = self.client.post(f"{path}?timeout=3s", data=body, content_type="application/json")
        return answer.status_code, answer.get_json()

    def judge(self, review: dict[str, Any], path: str = "/validate") -> dict[str, Any]:
        status, body = self.post(review, path)
        assert status == 200, body
        assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert body["response"]["uid"] == review["request"]["uid"]
        return body["response"]


@pytest.fixture
def server() -> Server:
    return Server()


def review(mem: str | None = "4000", *, name: str = "a", uid: str = "", **request: Any) -> dict[str, Any]:
    limits = {} if mem is None else {"nvidia.com/gpumem": mem}
    pod = {
        "metadata": {"name": name, "uid": uid or f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": f"review-{name}",
            "operation": "CREATE",
            "namespace": "team-a",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": pod,
            **request,
        },
    }


def test_an_allowed_and_a_denied_pod_are_both_decided(server: Server):
    server.quota(mem="5000")
    assert server.judge(review("5000"))["allowed"] is True
    denied = server.judge(review("1", name="b"))
    assert denied["allowed"] is False
    assert denied["status"]["code"] == 403
    assert denied["status"]["reason"] == "Forbidden"
    assert denied["status"]["message"].startswith("exceeded quota: gpu-cap, requested: limits.nvidia.com/gpumem=1,")
    assert denied["auditAnnotations"] == {
        "mode": "enforce",
        "verdict": "exceeded",
        "charge": "limits.nvidia.com/gpu=1,limits.nvidia.com/gpumem=1",
        "used": "gpu-cap:limits.nvidia.com/gpumem=5000",
        "limit": "gpu-cap:limits.nvidia.com/gpumem=5000",
    }


def test_an_object_that_is_no_pod_is_denied_with_the_path_of_the_field(server: Server):
    answer = server.judge(review(object={"metadata": {"name": "odd"}, "spec": {"containers": [{"name": 7}]}}))
    assert answer["allowed"] is False
    assert "spec.containers[0].name" in answer["status"]["message"].replace("[...]", "[0]")


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(b"", "the body is not an AdmissionReview", id="an empty body"),
        pytest.param(b"pods: 3", "the body is not an AdmissionReview", id="not JSON"),
        pytest.param(b"[" * 100_000, "the body is not an AdmissionReview", id="nested without end"),
        pytest.param(b'"\xff"', "the body is not an AdmissionReview", id="not UTF-8"),
        pytest.param(b"{}", "is not served", id="JSON, but no review"),
        pytest.param({**review(), "apiVersion": "admission.k8s.io/v1beta1"}, "v1beta1", id="an older version"),
        pytest.param({**review(), "request": None}, "no request", id="a review without request"),
        pytest.param({**review(), "request": {"uid": ""}}, "no request with a uid", id="a request without uid"),
    ],
)
def test_a_body_that_is_no_review_is_a_bad_request_with_a_reason(server: Server, body: Any, want: str):
    status, answer = server.post(body)
    assert status == 400
    assert want in answer["reason"]
    assert server.undecided_reasons == ["unreadable"]


def test_a_body_over_the_limit_is_refused_unread(server: Server):
    status, answer = server.post(b" " * (MAX_BODY_BYTES + 1))
    assert (status, answer) == (413, {"reason": "the body is larger than 4194304 bytes"})


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        pytest.param("GET", "/validate", 405, id="a review that is fetched"),
        pytest.param("POST", "/nowhere", 404, id="an unknown path"),
    ],
)
def test_other_paths_and_methods_answer_json(server: Server, method: str, path: str, want: int):
    answer = server.client.open(path, method=method)
    assert answer.status_code == want
    assert answer.get_json()["reason"]


@pytest.mark.parametrize(
    "request_part",
    [
        pytest.param({"operation": "DELETE", "object": None}, id="a deletion, which carries no object"),
        pytest.param({"operation": "UPDATE"}, id="an update of a pod that is over a lowered quota"),
        pytest.param({"subResource": "resize", "operation": "UPDATE"}, id="a resize"),
        pytest.param({"resource": {"group": "apps", "version": "v1", "resource": "pods"}}, id="another group's pods"),
    ],
)
def test_what_is_none_of_our_business_is_allowed_and_left_alone(server: Server, request_part: dict[str, Any]):
    server.quota(mem="0")
    assert server.judge(review(**request_part)) == {"uid": "review-a", "allowed": True}
    assert server.ledger.reservations("team-a") == {}


def test_before_the_first_lists_gpu_pods_get_an_error_and_others_pass(server: Server):
    server.unready = "waiting for the first list of pods"
    status, answer = server.post(review())
    assert (status, answer) == (503, {"reason": "waiting for the first list of pods"})
    assert server.judge(review(None, name="plain"))["allowed"] is True
    assert server.client.get("/readyz").status_code == 503
    assert server.client.get("/healthz").status_code == 200
    server.unready = ""
    assert server.client.get("/readyz").status_code == 200


def test_the_same_request_repeated_reserves_once(server: Server):
    server.quota(mem="8000")
    for _ in range(3):
        assert server.judge(review("4000"))["allowed"] is True
    assert server.ledger.totals("team-a")["gpu-cap"]["nvidia.com/gpumem"] == 4000


def test_an_admission_that_never_appeared_is_looked_up_before_it_refuses_anyone(server: Server):
    server.quota(mem="8000")
    assert server.judge(review("8000", name="lost"))["allowed"] is True
    assert server.judge(review("8000", name="early"))["allowed"] is False
    assert server.lookups == 0, "too young to be looked up"
    server.now += 11
    assert server.judge(review("8000", name="late"))["allowed"] is True
    assert server.lookups == 1


def test_an_admission_that_is_stored_keeps_its_seat(server: Server):
    server.quota(mem="8000")
    assert server.judge(review("8000", name="kept"))["allowed"] is True
    server.stored["team-a/kept"] = "uid-kept"
    server.now += 11
    assert server.judge(review("8000", name="late"))["allowed"] is False
    assert server.lookups == 1


def test_another_pod_under_the_same_name_does_not_keep_the_seat(server: Server):
    server.quota(mem="8000")
    assert server.judge(review("8000", name="web-0", uid="first"))["allowed"] is True
    server.stored["team-a/web-0"] = "second"
    server.now += 11
    assert server.judge(review("8000", name="late"))["allowed"] is True


def test_a_failed_look_up_decides_nothing_and_drops_nothing(server: Server):
    server.quota(mem="8000")
    assert server.judge(review("8000", name="lost"))["allowed"] is True
    server.now += 11
    server.is_api_server_down = True
    status, answer = server.post(review("8000", name="late"))
    assert status == 503
    assert "cannot be looked up: connection refused" in answer["reason"]
    assert list(server.ledger.reservations("team-a")) == ["uid-lost"]


def test_off_the_loop_a_look_up_is_announced_and_not_done(server: Server):
    server.quota(mem="8000")
    assert server.judge(review("8000", name="lost"))["allowed"] is True
    server.now += 11
    body = json.dumps(review("8000", name="late")).encode()
    assert server.reviewer.review(body, deadline=time.monotonic() + 5, may_wait=False) is None
    assert server.lookups == 0


def test_a_spent_deadline_decides_nothing(server: Server):
    server.quota(mem="8000")
    answer = server.reviewer.review(json.dumps(review()).encode(), deadline=time.monotonic() - 1, may_wait=True)
    assert answer is not None
    assert answer.status == 503
    assert server.ledger.reservations("team-a") == {}


@pytest.mark.parametrize(
    ("mode", "want_allowed", "want_warnings"),
    [
        pytest.param("enforce", False, 0, id="enforce refuses"),
        pytest.param("warn", True, 1, id="warn admits and tells the user"),
        pytest.param("audit", True, 0, id="audit admits in silence"),
        pytest.param("off", True, 0, id="off looks away"),
    ],
)
def test_the_mode_of_the_namespace_decides_what_a_refusal_does(
    server: Server, mode: str, want_allowed: bool, want_warnings: int
):
    server.quota(mem="1000")
    server.ledger.set_mode_label("team-a", mode)
    answer = server.judge(review("4000"))
    assert answer["allowed"] is want_allowed
    assert len(answer.get("warnings", [])) == want_warnings
    assert server.decisions[0].is_refused is (mode != "off")


def test_the_metrics_page_is_served(server: Server):
    answer = server.client.get("/metrics")
    assert (answer.status_code, answer.data) == (200, b"x 1\n")

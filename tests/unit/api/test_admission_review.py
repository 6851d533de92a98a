"""AdmissionReview, both ways."""

from __future__ import annotations

import base64
import json

import pytest
from builders import pod, review

from webhook.api.admission_review import decode_review, encode_response
from webhook.errors import ReviewError


def test_a_review_is_read_and_its_object_is_left_raw() -> None:
    subject = pod("a").app("server", mem=4000)

    request = decode_review(
        review(subject, dry_run=True, user="dev-1", groups=["devs"], uid="review-7", subResource="status")
    )

    assert request.uid == "review-7"
    assert (request.operation, request.namespace, request.name) == ("CREATE", "team-a", "a")
    assert (request.resource.group, request.resource.resource, request.sub_resource) == ("", "pods", "status")
    assert request.dry_run is True
    assert (request.user_info.username, request.user_info.groups) == ("dev-1", ["devs"])
    assert json.loads(bytes(request.object)) == subject.document
    assert request.has_object


def test_a_review_of_an_object_that_is_no_pod_keeps_its_uid() -> None:
    request = decode_review(review({"spec": {"containers": "none"}}))

    assert request.uid == "review-1"
    assert request.has_object


@pytest.mark.parametrize("fields", [{"object": None}, {}])
def test_a_deletion_has_no_object(fields: dict) -> None:
    body = json.loads(review(None, operation="DELETE"))
    del body["request"]["object"]
    body["request"] |= fields

    assert not decode_review(json.dumps(body).encode()).has_object


def test_unknown_fields_are_skipped() -> None:
    body = json.loads(review(pod("a")))
    body["request"]["options"] = {"kind": "CreateOptions"}
    body["response"] = None

    assert decode_review(json.dumps(body).encode()).uid == "review-1"


@pytest.mark.parametrize(
    "field",
    ["operation", "namespace", "name", "subResource", "dryRun", "userInfo", "resource", "oldObject"],
)
def test_a_field_of_the_request_may_be_missing(field: str) -> None:
    body = json.loads(review(pod("a"), oldObject=None, subResource=""))
    body["request"].pop(field)

    assert decode_review(json.dumps(body).encode()).uid == "review-1"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="an empty body"),
        pytest.param(b"not JSON", id="no JSON"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="an empty object"),
        pytest.param(b"[" * 100_000, id="a deep one"),
        pytest.param(b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', id="no request"),
        pytest.param(
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}',
            id="a request without uid",
        ),
        pytest.param(
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": ""}}',
            id="an empty uid",
        ),
        pytest.param(
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 7}}',
            id="a uid that is a number",
        ),
        pytest.param(
            b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "x"}}',
            id="a version that is not served",
        ),
        pytest.param(
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod", "request": {"uid": "x"}}', id="another kind"
        ),
    ],
)
def test_a_body_that_is_no_review_is_an_error(body: bytes) -> None:
    with pytest.raises(ReviewError):
        decode_review(body)


def test_a_version_that_is_not_served_is_told_with_what_is() -> None:
    body = json.loads(review(pod("a"))) | {"apiVersion": "admission.k8s.io/v1beta1" + "x" * 1000}

    with pytest.raises(ReviewError, match=r"send admission\.k8s\.io/v1 AdmissionReview") as caught:
        decode_review(json.dumps(body).encode())

    assert len(str(caught.value)) < 300


def test_an_admission_answers_with_the_uid_of_its_request() -> None:
    answer = json.loads(encode_response("review-1", allowed=True))

    assert answer == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "review-1", "allowed": True},
    }


def test_a_patch_goes_as_base64_with_its_type() -> None:
    operations = [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
    response = json.loads(encode_response("review-1", allowed=True, patch=operations))["response"]

    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"], validate=True)) == operations


def test_a_denial_is_forbidden_and_says_why() -> None:
    answer = json.loads(
        encode_response(
            "review-1", allowed=False, message="no room", warnings=["careful"], audit_annotations={"mode": "enforce"}
        )
    )

    assert answer["response"] == {
        "uid": "review-1",
        "allowed": False,
        "status": {"status": "Failure", "message": "no room", "reason": "Forbidden", "code": 403},
        "warnings": ["careful"],
        "auditAnnotations": {"mode": "enforce"},
    }

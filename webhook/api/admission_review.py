"""AdmissionReview, both ways.

There are two ways to fail. A body that is no review at all is a `ReviewError`: the caller answers HTTP 400. A review
whose *object* is no pod is the fault of the operation under review: the object is kept raw here, so that
the answer still carries the request's uid and denies it.

Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from webhook.errors import ReviewError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_API_VERSION = "admission.k8s.io/v1"
_ABSENT = msgspec.Raw(b"null")


class _Wire(msgspec.Struct, frozen=True, rename="camel"):
    """A projection of a Kubernetes object: unknown fields are skipped."""


class UserInfo(_Wire, frozen=True):
    """Who asks."""

    username: str = ""
    groups: list[str] | None = None


class GroupVersionResource(_Wire, frozen=True):
    """What is asked for, such as `pods` of the core group."""

    group: str = ""
    version: str = ""
    resource: str = ""


_PODS = GroupVersionResource(version="v1", resource="pods")


class AdmissionRequest(_Wire, frozen=True):
    """The request under review; `object` and `old_object` are kept undecoded."""

    uid: str
    operation: str = ""
    namespace: str = ""
    name: str = ""
    resource: GroupVersionResource = _PODS
    sub_resource: str = ""
    dry_run: bool | None = None
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = _ABSENT
    old_object: msgspec.Raw = _ABSENT

    @property
    def has_object(self) -> bool:
        """Return whether the request carries an object; a DELETE does not."""
        return bytes(self.object) != b"null"

    @property
    def is_from_kubelet(self) -> bool:
        """Return whether a node's kubelet asks."""
        return "system:nodes" in (self.user_info.groups or ())

    @property
    def creates_pod(self) -> bool:
        """Return whether a pod is to be created; not so when something is done to one, or to a part of it."""
        return self._is_pod and self.operation == "CREATE"

    @property
    def updates_pod(self) -> bool:
        """Return whether a pod itself is changed; the old object then stands beside the new one."""
        return self._is_pod and self.operation == "UPDATE"

    @property
    def _is_pod(self) -> bool:
        return self.resource.resource == "pods" and not self.resource.group and not self.sub_resource


class _Review(_Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


_DECODER = msgspec.json.Decoder(_Review)
_ENCODER = msgspec.json.Encoder()


def decode_review(body: bytes) -> AdmissionRequest:
    """Return the request in the body of a POST.

    Raises:
        ReviewError: The body is not an `admission.k8s.io/v1` AdmissionReview with a request and its uid.
    """
    try:
        review = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"the body is not an AdmissionReview: {error}") from error
    if review.api_version != _API_VERSION or review.kind != "AdmissionReview":
        raise ReviewError(
            f"apiVersion {review.api_version[:80]!r} kind {review.kind[:80]!r} is not served: "
            f"send {_API_VERSION} AdmissionReview"
        )
    if review.request is None or not review.request.uid:
        raise ReviewError("the AdmissionReview has no request with a uid")
    return review.request


def encode_response(  # noqa: PLR0913 - the fields of an answer, by name
    uid: str,
    *,
    allowed: bool,
    message: str = "",
    warnings: Sequence[str] = (),
    audit_annotations: Mapping[str, str] | None = None,
    patch: Sequence[Mapping[str, object]] = (),
) -> bytes:
    """Return the AdmissionReview that answers request `uid`; a denial carries code 403 and reason Forbidden.

    Args:
        uid: Of the request.
        allowed: Whether the operation may go on.
        message: Why not.
        warnings: What the user is told all the same.
        audit_annotations: What the audit log keeps.
        patch: Operations of RFC 6902 on the object; without any the answer has no patch.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": allowed}
    if not allowed:
        response["status"] = {"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(_ENCODER.encode(patch)).decode("ascii")}
    if warnings:
        response["warnings"] = list(warnings)
    if audit_annotations:
        response["auditAnnotations"] = dict(audit_annotations)
    return _ENCODER.encode({"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response})

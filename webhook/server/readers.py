"""Who may read the ledger over the network: callers on the same machine, and whom the cluster's RBAC lets.

A token is shown to the API server (TokenReview), and whoever it belongs to is asked about (SubjectAccessReview): may it
`get` the non-resource URL `/debug/ledger`?
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

import msgspec

from webhook.errors import ApiServerError

LEDGER_PATH = "/debug/ledger"

# How long an answer of the API server is believed, and of how many tokens.
_BELIEVED_S = 60.0
_MOST_TOKENS = 256

_TIMEOUT_S = 3.0
_BEARER = "bearer "

_AUTHENTICATION = "/apis/authentication.k8s.io/v1/tokenreviews"
_AUTHORIZATION = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class ReviewServer(Protocol):
    """What is asked of the API server; `kube.KubeClient` satisfies it."""

    def post(self, path: str, body: bytes, timeout_s: float) -> bytes:
        """Return the answer to an object that is created, or raise ApiServerError."""


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


def is_loopback(peer: str) -> bool:
    """Return whether a connection's other end is on this machine; what is no address is not.

    >>> [is_loopback(peer) for peer in ("127.0.0.2", "::1", "::ffff:127.0.0.1", "10.0.0.1", "")]
    [True, True, True, False, False]
    """
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def refusal(peer: str, authorization: str, not_a_reader: Callable[[str], str]) -> str:
    """Return why a caller may not read the ledger; "" when it may.

    Args:
        peer: The address at the other end of the connection itself; never what a header says.
        authorization: The Authorization header.
        not_a_reader: Why the bearer of a token may not; "" when it may.
    """
    if is_loopback(peer):
        return ""
    if not authorization.lower().startswith(_BEARER):
        return f"only callers on the same machine, or with a bearer token that may get {LEDGER_PATH}"
    return not_a_reader(authorization[len(_BEARER) :].strip())


class LedgerReaders:
    """Knows whose token may read the ledger, and remembers it for a minute. All methods may be called from any thread.

    One question is asked at a time, since the threads that ask answer probes as well: whoever comes meanwhile with a
    token that is not known is refused, and may try again.
    """

    def __init__(self, server: ReviewServer, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._asking = threading.Lock()
        self._known: dict[bytes, tuple[float, str]] = {}

    def refusal(self, token: str) -> str:
        """Return why the bearer of a token may not read the ledger; "" when it may."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() - known[0] < _BELIEVED_S:
            return known[1]
        if not self._asking.acquire(blocking=False):
            return "another token is being checked, try again"
        try:
            return self._remember(digest, self._ask(token))
        except (ApiServerError, msgspec.MsgspecError) as error:
            return f"the token cannot be checked: {error}"
        finally:
            self._asking.release()

    def _remember(self, digest: bytes, answer: str) -> str:
        if len(self._known) >= _MOST_TOKENS:
            self._known.clear()
        self._known[digest] = (self._clock(), answer)
        return answer

    def _ask(self, token: str) -> str:
        answer = self._review(_AUTHENTICATION, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        status = msgspec.json.decode(answer, type=_TokenReview).status
        if not status.authenticated:
            return "the token is not valid in this cluster"
        user = status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": LEDGER_PATH, "verb": "get"},
        }
        answer = self._review(_AUTHORIZATION, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        if not msgspec.json.decode(answer, type=_AccessReview).status.allowed:
            return f"{user.username} may not get {LEDGER_PATH}"
        return ""

    def _review(self, path: str, api_version: str, kind: str, spec: dict[str, Any]) -> bytes:
        body = msgspec.json.encode({"apiVersion": api_version, "kind": kind, "spec": spec})
        try:
            return self._server.post(path, body, _TIMEOUT_S)
        except ApiServerError as error:
            if error.status:
                raise
            # The server may have closed an idle connection just as it was used. Reviews store nothing: ask again.
            return self._server.post(path, body, _TIMEOUT_S)

"""A light REST client of the API server for tests: status and JSON in, nothing hidden, nothing retried."""

from __future__ import annotations

import base64
import json
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import urllib3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from identities import Identity

T = TypeVar("T")
Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def eventually(probe: Callable[[], T], what: str, *, timeout_s: float = 20) -> T:
    """Return the first true value of `probe`, asking until the time is up.

    The control plane answers with events of its own making, so there is nothing here to wait on but it.

    Raises:
        AssertionError: `probe` stayed false; names `what` was awaited and the last value.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {timeout_s} s; last seen: {value!r}")
        time.sleep(0.02)
    return value


def unquoted(text: str) -> str:
    """Return what a quoted string of an HTTP header says (RFC 9110, 5.6.4)."""
    return re.sub(r"\\(.)", r"\1", text[1:-1])


class Response(NamedTuple):
    """What the API server answered: a body that is not JSON is under `text`."""

    status: int
    body: Json
    warnings: list[str]


class Api:
    """The API server as one user sees it. Safe for many threads.

    Paths are the REST paths, query parameters keyword arguments: `api.post(path, body, dryRun="All")`.
    """

    def __init__(self, url: str, bundle: Path, identity: Identity) -> None:
        self.url = url
        self.bundle = bundle
        self.identity = identity
        self._pool = urllib3.PoolManager(
            maxsize=64,
            retries=False,
            timeout=60,
            ca_certs=str(bundle),
            cert_file=str(identity.certificate),
            key_file=str(identity.key),
        )

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> Response:
        """Ask the API server, and return its answer whatever the status."""
        answer = self._pool.request(
            method,
            self.url + path + (f"?{urlencode(query)}" if query else ""),
            headers={"Content-Type": content_type, "Accept": "application/json"},
            body=None if body is None else json.dumps(body).encode(),
        )
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return Response(
            answer.status,
            json.loads(answer.data) if is_json else {"text": answer.data.decode()},
            [unquoted(text.partition(" - ")[2]) for text in answer.headers.getlist("Warning")],
        )

    def get(self, path: str, **query: str) -> tuple[int, Json]:
        """Return status and object, or the list of them."""
        return self.request("GET", path, **query)[:2]

    def post(self, path: str, body: object, **query: str) -> tuple[int, Json]:
        """Create; return status and what was stored, or the refusal's Status."""
        return self.request("POST", path, body, **query)[:2]

    def put(self, path: str, body: object, **query: str) -> tuple[int, Json]:
        """Replace; return as `post` does."""
        return self.request("PUT", path, body, **query)[:2]

    def patch(self, path: str, body: object, content_type: str = MERGE_PATCH, **query: str) -> tuple[int, Json]:
        """Change, by a merge patch unless said otherwise; return as `post` does."""
        return self.request("PATCH", path, body, content_type=content_type, **query)[:2]

    def delete(self, path: str, body: object = None, **query: str) -> tuple[int, Json]:
        """Delete; with `gracePeriodSeconds="0"` at once, as no kubelet will end a bound pod."""
        return self.request("DELETE", path, body, **query)[:2]

    def close(self) -> None:
        """Close the idle connections; the next request opens new ones."""
        self._pool.clear()

    def kubeconfig(self) -> str:
        """Return a kubeconfig with this user's certificate and key inside."""

        def encoded(path: Path) -> str:
            return base64.b64encode(path.read_bytes()).decode()

        name = "control-plane"
        cluster = {"server": self.url, "certificate-authority-data": encoded(self.bundle)}
        user = {
            "client-certificate-data": encoded(self.identity.certificate),
            "client-key-data": encoded(self.identity.key),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        return json.dumps(config, indent=2)

"""The transport with a stub behind it, as a process: `transport_server.py CERTIFICATES PORT DRAIN_S [WORKERS]`.

What the stub does with a review, the review says: see `StubReviewer`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Flask

from certs import CertificateSource
from webhook.errors import SettingsError
from webhook.review import Answer, failure
from webhook.server.limits import Timing
from webhook.server.serve import run

if TYPE_CHECKING:
    from collections.abc import Callable


_log = logging.getLogger("transport_server")


class StubReviewer:
    """Allows everything. `wait` names a FIFO to wait for first, which takes a thread; `raise` breaks it."""

    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Answer | None:
        """Do as the review says."""
        try:
            review = json.loads(body)
        except ValueError:
            return failure(400, "not JSON")
        if "raise" in review:
            raise RuntimeError(review["raise"])
        if "wait" in review:
            if not may_wait:
                return None
            Path(review["wait"]).read_bytes()
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        return Answer(status=200, body=json.dumps({"response": response}).encode())


class StubService:
    """A reviewer, a readiness probe, and a page that tells the worker's pid."""

    reviewer = mutator = StubReviewer()

    def app(self, draining: Callable[[], str]) -> Flask:
        """Return the two pages."""
        app = Flask("stub")

        @app.get("/readyz")
        def readyz() -> tuple[str, int]:
            return draining() or "ok", 503 if draining() else 200

        @app.get("/pid")
        def pid() -> str:
            return str(os.getpid())

        return app

    def start(self) -> None:
        """Say so, which the tests count."""
        _log.info("service started")

    def stop(self) -> None:
        """Say so."""
        _log.info("service stopped")


def main(certificates: str, port: str, drain_s: str, workers: str = "1") -> None:
    """Serve until a signal."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    directory = Path(certificates)
    run(
        StubService,
        bind=f"127.0.0.1:{port}",
        certificates=CertificateSource(directory / "tls.crt", directory / "tls.key"),
        workers=int(workers),
        timing=Timing(drain_s=float(drain_s)),
    )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SettingsError as error:
        sys.exit(f"error: {error}")

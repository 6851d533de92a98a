"""The HTTP face as a Flask application: reviews, probes, metrics, the ledger. The only module that imports Flask.

The server's own front answers /validate and /mutate without passing here, from the same `Reviewer` and `Mutator`; what
Flask serves there is the same answer, for other servers and for the test client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException  # noqa: TC002 - Flask reads the annotation

from webhook.review import Answer, Mutator, Reviewer, failure

MAX_BODY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What the probes and the metrics page say.

    Attributes:
        not_ready: Why no decision may be given now; "" when one may.
        not_live: Why the process should be restarted; "" while it is well.
        metrics: The metrics in Prometheus' text form, with their content type.
    """

    not_ready: Callable[[], str]
    not_live: Callable[[], str]
    metrics: Callable[[], tuple[bytes, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """What /debug/ledger serves, and to whom.

    Attributes:
        refusal: Why a caller is refused, "" when it is not; told the address at the other end of the connection, and
            the Authorization header.
        content: The ledger as JSON.
    """

    refusal: Callable[[str, str], str]
    content: Callable[[], bytes]


def create_app(
    reviewer: Reviewer,
    mutator: Mutator,
    probes: Probes,
    ledger_page: LedgerPage | None = None,
    *,
    budget_s: float = 9.0,
) -> Flask:
    """Return the application.

    Args:
        reviewer: Who answers POST /validate.
        mutator: Who answers POST /mutate.
        probes: What the probes say.
        ledger_page: What /debug/ledger serves; without it there is no such page.
        budget_s: Seconds for a review whose URL carries no timeout.
    """
    app = Flask("hami-quota", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.post("/validate")
    def validate() -> Response:
        answer = reviewer.review(request.get_data(), deadline=time.monotonic() + budget_s, may_wait=True)
        return _response(answer or failure(503, "no decision"))

    @app.post("/mutate")
    def mutate() -> Response:
        return _response(mutator.review(request.get_data(), deadline=time.monotonic() + budget_s, may_wait=True))

    @app.get("/healthz")
    def healthz() -> Response:
        return _probe(probes.not_live())

    @app.get("/readyz")
    def readyz() -> Response:
        return _probe(probes.not_ready())

    @app.get("/metrics")
    def metrics() -> Response:
        body, content_type = probes.metrics()
        return Response(body, content_type=content_type)

    if ledger_page is not None:

        @app.get("/debug/ledger")
        def ledger() -> Response:
            # The peer of the connection: no proxy is trusted, so no header has a say.
            peer = request.environ.get("REMOTE_ADDR", "")
            if reason := ledger_page.refusal(peer, request.headers.get("Authorization", "")):
                return _response(failure(403, reason))
            return _response(Answer(status=200, body=ledger_page.content()))

    @app.errorhandler(404)
    @app.errorhandler(405)
    @app.errorhandler(413)
    def refused(error: HTTPException) -> Response:
        reason = {413: f"the body is larger than {MAX_BODY_BYTES} bytes"}.get(error.code or 500, error.name.lower())
        return _response(failure(error.code or 500, reason))

    return app


def _probe(problem: str) -> Response:
    return Response(f"{problem or 'ok'}\n", status=503 if problem else 200, content_type="text/plain; charset=utf-8")


def _response(answer: Answer) -> Response:
    return Response(answer.body, status=answer.status, content_type=answer.content_type)

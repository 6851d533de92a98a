"""Decides who answers a request, and by when.

Reviews, whether to judge or to mutate, are answered in the event loop: a decision is a fraction of a millisecond of
computing, and handing it to a thread and back costs as much again. A review that has to ask the API server first goes
to a thread of a pool kept for that, so that those who wait never keep a probe or a scrape from being answered.
Everything else is the Flask application, in threads.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from urllib.parse import parse_qsl

from webhook.review import Answer, failure
from webhook.server.http1 import Request, Response
from webhook.server.wsgi import Bridge

_log = logging.getLogger(__name__)

# The default of `timeoutSeconds`; the API server always sends `?timeout=`, other callers need not.
_DEFAULT_TIMEOUT_S = 10.0

# The most that `timeoutSeconds` may be.
_MAX_TIMEOUT_S = 30.0

# The API server rounds what it sends up to whole seconds, so up to one second of it may not exist. Of a short timeout
# half is used: it may be a true one, and nothing could be decided in no time at all.
_ROUNDING_S = 1.0
_MIN_SHARE = 0.5

# A body that takes longer to decode than other requests should wait for it is left to a thread.
_LARGE_BODY_BYTES = 256 * 1024

# A look-up takes up to two seconds, and while the API server is slow every review of a busy namespace may need one.
_WAITING_THREADS = 32
_PAGE_THREADS = 4

_UNITS_S = {
    b"ns": 1e-9,
    b"us": 1e-6,
    b"\xc2\xb5s": 1e-6,
    b"\xce\xbcs": 1e-6,
    b"ms": 1e-3,
    b"s": 1.0,
    b"m": 60.0,
    b"h": 3600.0,
}
_DURATION_PART = re.compile(rb"(\d+\.?\d*|\.\d+)(ns|us|\xc2\xb5s|\xce\xbcs|ms|s|m|h)")


class Reviewer(Protocol):
    """Who answers reviews; see `review.Reviewer` and `review.Mutator`."""

    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Answer | None:
        """Return the answer; without `may_wait`, None says that it takes a thread that may wait."""


class Front:
    """Answers requests.

    Args:
        reviewers: Who answers reviews, by the path to which they are posted.
        pages: Who answers everything else.
        clock: Seconds that only move forward; the reviewer's deadlines are on it.
    """

    def __init__(
        self, reviewers: Mapping[bytes, Reviewer], pages: Bridge, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reviewers = reviewers
        self._pages = pages
        self._clock = clock
        self._waiting = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="review")
        self._paging = ThreadPoolExecutor(_PAGE_THREADS, thread_name_prefix="page")
        self._loop = asyncio.get_running_loop()

    def answer(self, request: Request) -> Response | asyncio.Future[Response]:
        """Return the answer to a request, or a promise of it. Neither raises."""
        reviewer = self._reviewers.get(request.path)
        if reviewer is None:
            return self._loop.run_in_executor(self._paging, self._page, request)
        if request.method != "POST":
            return Response.of(failure(405, "reviews are sent by POST"), (b"allow", b"POST"))
        if reason := _unreadable(request.header(b"content-type")):
            return Response.of(failure(400, reason))
        deadline = request.received_at + budget_s(request.query)
        if len(request.body) <= _LARGE_BODY_BYTES:
            response = self._review(reviewer, request.body, deadline, may_wait=False)
            if response is not None:
                return response
        return self._loop.run_in_executor(self._waiting, self._review_late, reviewer, request.body, deadline)

    def close(self) -> None:
        """Start nothing more. What has been started finishes, and is waited for when the process ends."""
        self._waiting.shutdown(wait=False, cancel_futures=True)
        self._paging.shutdown(wait=False, cancel_futures=True)

    def _review(self, reviewer: Reviewer, body: bytes, deadline: float, *, may_wait: bool) -> Response | None:
        try:
            answer = reviewer.review(body, deadline=deadline, may_wait=may_wait)
        except Exception:  # noqa: BLE001 - whatever it is, the process goes on and failurePolicy decides this request
            _log.exception("a review failed")
            return Response.of(failure(500, "internal error"))
        return None if answer is None else Response.of(answer)

    def _review_late(self, reviewer: Reviewer, body: bytes, deadline: float) -> Response:
        if self._clock() >= deadline:  # it has waited for a thread, and whoever asked has gone
            return Response.of(failure(503, "no time is left to decide within the API server's timeout"))
        response = self._review(reviewer, body, deadline, may_wait=True)
        return response or Response.of(failure(503, "no decision"))

    def _page(self, request: Request) -> Response:
        try:
            return self._pages.call(request)
        except Exception:  # noqa: BLE001 - the same
            _log.exception("%s %r failed", request.method, request.path)
            return Response.of(failure(500, "internal error"))


@functools.lru_cache(maxsize=64)
def budget_s(query: bytes) -> float:
    """Return the seconds that a request's query leaves us: its `timeout`, less what the API server may have added."""
    timeout_s = _DEFAULT_TIMEOUT_S
    try:
        said = dict(parse_qsl(query)).get(b"timeout", b"")
    except ValueError:
        said = b""
    timeout_s = duration_s(said) or _DEFAULT_TIMEOUT_S
    timeout_s = min(timeout_s, _MAX_TIMEOUT_S)
    return max(timeout_s - _ROUNDING_S, timeout_s * _MIN_SHARE)


def duration_s(text: bytes) -> float | None:
    """Return the seconds of a duration as Go writes it (`3s`, `1m30s`, `500ms`), or None if it is none.

    Source: Go, time.ParseDuration.
    """
    position = 0
    total_s = 0.0
    while part := _DURATION_PART.match(text, position):
        total_s += float(part[1]) * _UNITS_S[part[2]]
        position = part.end()
    return total_s if position and position == len(text) else None


@functools.lru_cache(maxsize=64)
def _unreadable(content_type: bytes | None) -> str:
    """Return why a body of this type is not read; "" when it is. A type that is not given is taken for JSON."""
    if content_type is None or content_type.partition(b";")[0].strip().lower() == b"application/json":
        return ""
    return f"a review is application/json, not {content_type.decode('latin-1')!r}"

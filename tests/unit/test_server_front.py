from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from webhook.review import Answer
from webhook.server.front import Front, budget_s, duration_s
from webhook.server.http1 import Request, Response
from webhook.server.wsgi import Bridge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ALLOWED = Answer(status=200, body=b"{}")
JSON = [(b"content-type", b"application/json")]


class _Reviewer:
    """Answers as the test says, and remembers how it was asked."""

    def __init__(self, answer: Callable[[bool], Answer | None] = lambda _: ALLOWED) -> None:
        self.calls: list[tuple[float, bool, bool]] = []
        self._answer = answer

    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Answer | None:
        self.calls.append((deadline, may_wait, threading.current_thread() is threading.main_thread()))
        return self._answer(may_wait)


def page(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/broken":
        raise RuntimeError("broken")
    start_response("200 OK", [])
    return [environ["PATH_INFO"].encode()]


def ask(reviewer: _Reviewer, request: Request, now: float = 100.0) -> tuple[Response, bool]:
    """Return the answer, and whether it was there at once."""

    async def scenario() -> tuple[Response, bool]:
        front = Front({b"/validate": reviewer}, Bridge(page, "127.0.0.1", 8443), lambda: now)
        try:
            answer = front.answer(request)
            if isinstance(answer, Response):
                return answer, True
            return await answer, False
        finally:
            front.close()

    return asyncio.run(scenario())


def review(body: bytes = b"{}", query: bytes = b"timeout=3s", **changes: Any) -> Request:
    return Request("POST", b"/validate", query, JSON, body, 100.0)._replace(**changes)


def test_a_review_is_answered_at_once_and_knows_its_deadline() -> None:
    reviewer = _Reviewer()
    response, at_once = ask(reviewer, review(received_at=90.0))
    assert (response.status, response.body, at_once) == (200, b"{}", True)
    assert reviewer.calls == [(92.0, False, True)]


def test_each_path_has_a_reviewer_of_its_own() -> None:
    judge, mutator = _Reviewer(), _Reviewer(lambda _: Answer(status=200, body=b"patched"))

    async def scenario() -> Response | asyncio.Future[Response]:
        front = Front({b"/validate": judge, b"/mutate": mutator}, Bridge(page, "127.0.0.1", 8443), lambda: 100.0)
        try:
            return front.answer(review(path=b"/mutate"))
        finally:
            front.close()

    answer = asyncio.run(scenario())
    assert isinstance(answer, Response)
    assert answer.body == b"patched"
    assert (len(judge.calls), len(mutator.calls)) == (0, 1)


def test_a_review_that_has_to_wait_does_so_in_a_thread() -> None:
    reviewer = _Reviewer(lambda may_wait: ALLOWED if may_wait else None)
    response, at_once = ask(reviewer, review())
    assert (response.status, at_once) == (200, False)
    assert reviewer.calls == [(102.0, False, True), (102.0, True, False)]


def test_a_large_review_is_left_to_a_thread() -> None:
    reviewer = _Reviewer()
    response, at_once = ask(reviewer, review(b" " * 300_000))
    assert (response.status, at_once) == (200, False)
    assert reviewer.calls == [(102.0, True, False)]


def test_a_review_whose_time_has_passed_before_a_thread_was_free_is_not_begun() -> None:
    reviewer = _Reviewer(lambda _: None)
    response, _ = ask(reviewer, review(), now=102.0)
    assert response.status == 503
    assert "no time is left" in json.loads(response.body)["reason"]
    assert [may_wait for _, may_wait, _ in reviewer.calls] == [False]


@pytest.mark.parametrize("body", [pytest.param(b"{}", id="at once"), pytest.param(b" " * 300_000, id="in a thread")])
def test_a_reviewer_that_breaks_fails_one_request(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    def answer(_: object) -> Answer:
        raise RuntimeError("broken")

    response, _ = ask(_Reviewer(answer), review(body))
    assert response.status == 500
    assert json.loads(response.body) == {"reason": "internal error"}
    assert "broken" in caplog.text


def test_a_reviewer_that_never_answers_decides_nothing() -> None:
    assert ask(_Reviewer(lambda _: None), review())[0].status == 503


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param({"method": "GET"}, 405, id="by another method"),
        pytest.param({"headers": [(b"content-type", b"text/plain")]}, 400, id="of another type"),
        pytest.param({"headers": [(b"content-type", b"Application/JSON; charset=utf-8")]}, 200, id="with a parameter"),
        pytest.param({"headers": []}, 200, id="of no type"),
    ],
)
def test_what_is_taken_for_a_review(changes: dict[str, Any], want: int) -> None:
    reviewer = _Reviewer()
    assert ask(reviewer, review(**changes))[0].status == want
    assert bool(reviewer.calls) is (want == 200)


@pytest.mark.parametrize("path", [b"/", b"/validate/", b"/%76alidate", b"/readyz", b"//validate", b"/mutate"])
def test_every_other_path_is_the_applications(path: bytes) -> None:
    reviewer = _Reviewer()
    response, at_once = ask(reviewer, review(path=path))
    assert (response.status, at_once) == (200, False)
    assert not reviewer.calls


def test_a_page_that_breaks_fails_one_request(caplog: pytest.LogCaptureFixture) -> None:
    assert ask(_Reviewer(), review(path=b"/broken"))[0].status == 500
    assert "broken" in caplog.text


@pytest.mark.parametrize(
    ("query", "want_s"),
    [
        pytest.param(b"timeout=10s", 9.0, id="the default timeout"),
        pytest.param(b"timeout=3s", 2.0, id="ours"),
        pytest.param(b"timeout=2s", 1.0, id="two seconds"),
        pytest.param(b"timeout=1s", 0.5, id="the least that can be configured"),
        pytest.param(b"timeout=500ms", 0.25, id="less than the API server would send"),
        pytest.param(b"timeout=30s", 29.0, id="the most that can be configured"),
        pytest.param(b"timeout=1h", 29.0, id="more than can be configured"),
        pytest.param(b"", 9.0, id="none"),
        pytest.param(b"timeout=soon", 9.0, id="no duration"),
        pytest.param(b"timeout=0s", 9.0, id="no time"),
        pytest.param(b"a=b&timeout=5s", 4.0, id="among others"),
    ],
)
def test_the_budget_is_the_timeout_less_what_the_api_server_may_have_rounded_up(query: bytes, want_s: float) -> None:
    assert budget_s(query) == want_s


@pytest.mark.parametrize(
    ("text", "want_s"),
    [
        pytest.param(b"3s", 3.0, id="seconds"),
        pytest.param(b"1m30s", 90.0, id="minutes and seconds"),
        pytest.param(b"1h0m0s", 3600.0, id="as Go prints an hour"),
        pytest.param(b"1.5s", 1.5, id="a fraction"),
        pytest.param(b".5s", 0.5, id="a fraction alone"),
        pytest.param("1µs".encode(), 1e-6, id="microseconds"),
        pytest.param(b"3", None, id="no unit"),
        pytest.param(b"s", None, id="no number"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"3s ", None, id="something behind it"),
        pytest.param(b"-3s", None, id="a negative one"),
    ],
)
def test_durations_are_read_as_go_writes_them(text: bytes, want_s: float | None) -> None:
    assert duration_s(text) == (None if want_s is None else pytest.approx(want_s))

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from webhook.errors import ApiServerError
from webhook.server.readers import LedgerReaders, is_loopback, refusal

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Reviews:
    """An API server that knows a few tokens, and who may read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.users = {"t-reader": "reader", "t-other": "other"}
        self.allowed = {"reader"}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[ApiServerError] = []
        self.readers = LedgerReaders(self, lambda: self.now)

    def post(self, path: str, body: bytes, timeout_s: float) -> bytes:
        assert timeout_s > 0
        spec = json.loads(body)["spec"]
        self.asked.append((path, spec))
        if self.faults:
            raise self.faults.pop(0)
        if path == TOKENS:
            user = self.users.get(spec["token"])
            known = {"username": user, "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}
            status: dict[str, Any] = {"authenticated": True, "user": known} if user else {"error": "invalid"}
        else:
            status = {"allowed": spec["user"] in self.allowed}
        return json.dumps({"status": status}).encode()


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


@pytest.mark.parametrize(
    ("peer", "want"),
    [
        pytest.param("127.0.0.1", True, id="IPv4"),
        pytest.param("127.9.8.7", True, id="all of 127/8"),
        pytest.param("::1", True, id="IPv6"),
        pytest.param("::ffff:127.0.0.1", True, id="IPv4 on a socket for both"),
        pytest.param("::ffff:10.0.0.1", False, id="another machine on a socket for both"),
        pytest.param("10.0.0.1", False, id="another machine"),
        pytest.param("fe80::1%eth0", False, id="a link-local address with its zone"),
        pytest.param("localhost", False, id="a name is no address"),
        pytest.param("", False, id="an unknown peer"),
    ],
)
def test_only_this_machines_own_addresses_are_loopback(peer: str, *, want: bool) -> None:
    assert is_loopback(peer) is want


def test_a_loopback_caller_is_not_asked_for_a_token(reviews: Reviews) -> None:
    assert refusal("127.0.0.1", "", reviews.readers.refusal) == ""
    assert reviews.asked == []


@pytest.mark.parametrize(
    ("authorization", "want"),
    [
        pytest.param("Bearer t-reader", "", id="a token that may"),
        pytest.param("bearer  t-reader ", "", id="the scheme in any case"),
        pytest.param("Bearer t-other", "other may not get /debug/ledger", id="a token that may not"),
        pytest.param("Bearer t-forged", "the token is not valid in this cluster", id="a token that nobody issued"),
        pytest.param("Bearer ", "the token is not valid in this cluster", id="an empty token"),
        pytest.param("", "only callers on the same machine, or with a bearer token", id="no token"),
        pytest.param("Basic dDpyZWFkZXI=", "only callers on the same machine", id="another scheme"),
    ],
)
def test_a_remote_caller_needs_a_token_that_may(reviews: Reviews, authorization: str, want: str) -> None:
    said = refusal("10.0.0.1", authorization, reviews.readers.refusal)
    assert said.startswith(want) if want else said == ""


def test_the_whole_identity_is_asked_about(reviews: Reviews) -> None:
    assert reviews.readers.refusal("t-reader") == ""
    assert reviews.asked == [
        (TOKENS, {"token": "t-reader"}),
        (
            ACCESS,
            {
                "user": "reader",
                "uid": "u",
                "groups": ["g"],
                "extra": {"k": ["v"]},
                "nonResourceAttributes": {"path": "/debug/ledger", "verb": "get"},
            },
        ),
    ]


@pytest.mark.parametrize("token", ["t-reader", "t-other", "t-forged"])
def test_an_answer_is_believed_for_a_minute(reviews: Reviews, token: str) -> None:
    first = reviews.readers.refusal(token)
    asked = len(reviews.asked)
    reviews.now += 59
    assert reviews.readers.refusal(token) == first
    assert len(reviews.asked) == asked
    reviews.now += 1
    assert reviews.readers.refusal(token) == first
    assert len(reviews.asked) == 2 * asked


def test_a_right_that_is_taken_away_is_gone_after_a_minute(reviews: Reviews) -> None:
    assert reviews.readers.refusal("t-reader") == ""
    reviews.allowed.clear()
    reviews.now += 60
    assert reviews.readers.refusal("t-reader") == "reader may not get /debug/ledger"


def test_a_connection_that_breaks_is_tried_once_more(reviews: Reviews) -> None:
    reviews.faults = [ApiServerError(0, "reset")]
    assert reviews.readers.refusal("t-reader") == ""


@pytest.mark.parametrize("status", [0, 403, 500])
def test_what_cannot_be_checked_is_refused_and_not_remembered(reviews: Reviews, status: int) -> None:
    reviews.faults = [ApiServerError(status, "no luck")] * 2
    assert "the token cannot be checked: " in reviews.readers.refusal("t-reader")
    reviews.faults.clear()
    assert reviews.readers.refusal("t-reader") == ""


def test_an_answer_that_is_no_review_is_a_refusal() -> None:
    class Odd(Reviews):
        def post(self, path: str, body: bytes, timeout_s: float) -> bytes:
            return b"{}"

    assert "the token cannot be checked: " in Odd().readers.refusal("t-reader")


def test_tokens_that_are_tried_out_do_not_pile_up(reviews: Reviews) -> None:
    for number in range(1000):
        reviews.readers.refusal(f"guess-{number}")
    assert len(reviews.readers._known) <= 256


def test_while_one_token_is_checked_the_next_is_refused_at_once() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Reviews):
        def post(self, path: str, body: bytes, timeout_s: float) -> bytes:
            entered.set()
            assert leave.wait(10)
            return super().post(path, body, timeout_s)

    slow = Slow()
    answers: list[str] = []
    first = threading.Thread(target=lambda: answers.append(slow.readers.refusal("t-reader")))
    first.start()
    assert entered.wait(10)
    assert slow.readers.refusal("t-other") == "another token is being checked, try again"
    leave.set()
    first.join()
    assert answers == [""]

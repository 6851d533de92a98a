from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from webhook.app import MAX_BODY_BYTES
from webhook.review import Answer
from webhook.server.connections import Connections, Phase
from webhook.server.http1 import HttpStream, Request, Response
from webhook.server.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

OK = Response(200, b"{}")


class _Carrier:
    """A connection that remembers what it was told."""

    def __init__(self) -> None:
        self.phase = Phase.FRESH
        self.is_clogged = False
        self.is_held = False
        self.sent = b""
        self.peer = "192.0.2.7"

    def enter(self, phase: Phase) -> None:
        self.phase = phase

    def send(self, data: bytes) -> None:
        if self.phase is not Phase.CLOSING:
            self.sent += data

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def close(self) -> None:
        self.phase = Phase.CLOSING


class _Wire:
    """A stream over a carrier, with every request that came through."""

    def __init__(self, answer: Callable[[Request], Any] = lambda _: OK, limits: Limits | None = None) -> None:
        self.now = 50.0
        self.requests: list[Request] = []
        self.carrier = _Carrier()
        self.connections = Connections(limits or Limits())
        self._answer = answer
        self.stream = HttpStream(self.carrier, self.connections, self._handle, lambda: self.now)

    def _handle(self, request: Request) -> Any:
        self.requests.append(request)
        return self._answer(request)

    def send(self, data: bytes) -> list[tuple[int, bytes]]:
        """Send bytes and return the answers to them."""
        self.carrier.sent = b""
        self.stream.received(data)
        return self.answers()

    def answers(self) -> list[tuple[int, bytes]]:
        found = []
        rest = self.carrier.sent
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            found.append((int(head.split()[1]), rest[:size]))
            rest = rest[size:]
        return found

    def held(self) -> int:
        return self.connections._held_bytes


def post(body: bytes, *headers: str, target: str = "/validate", version: str = "1.1") -> bytes:
    lines = [f"POST {target} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


GET = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_request_arrives_whole() -> None:
    wire = _Wire()
    assert wire.send(post(b"body", "X-One: 1", target="/validate?timeout=3s")) == [(200, b"{}")]
    request = wire.requests[0]
    assert (request.method, request.path, request.query, request.body) == ("POST", b"/validate", b"timeout=3s", b"body")
    assert request.header(b"x-one") == b"1"
    assert request.header(b"x-two") is None
    assert request.peer == "192.0.2.7"
    assert wire.carrier.phase is Phase.IDLE
    assert wire.held() == 0


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_a_request_may_arrive_in_pieces_of_any_size(size: int) -> None:
    wire = _Wire()
    data = post(b"body") + GET
    for start in range(0, len(data), size):
        wire.stream.received(data[start : start + size])
    assert [request.method for request in wire.requests] == ["POST", "GET"]
    assert wire.requests[0].body == b"body"
    assert wire.answers() == [(200, b"{}"), (200, b"{}")]


def test_a_request_counts_from_its_first_byte() -> None:
    wire = _Wire()
    wire.stream.received(post(b"body")[:-1])
    assert wire.carrier.phase is Phase.READING
    wire.now = 53
    wire.stream.received(post(b"body")[-1:])
    wire.now = 60
    wire.stream.received(GET)
    assert [request.received_at for request in wire.requests] == [50, 60]


def test_chunks_make_one_body() -> None:
    wire = _Wire()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" + GET)
    assert [request.body for request in wire.requests] == [b"abcde", b""]


def test_an_absolute_target_has_its_path() -> None:
    wire = _Wire()
    wire.send(post(b"", target="https://x:443/validate?a=b") + post(b"", target="https://x"))
    assert [(request.path, request.query) for request in wire.requests] == [(b"/validate", b"a=b"), (b"/", b"")]


def test_an_answer_says_what_it_is() -> None:
    wire = _Wire(lambda _: Response.of(Answer(status=405, body=b"no", content_type="text/plain"), (b"allow", b"POST")))
    wire.stream.received(GET)
    head, _, body = wire.carrier.sent.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 405 Method Not Allowed"
    assert {b"content-type: text/plain", b"allow: POST", b"content-length: 2"} <= set(lines)
    assert any(line.startswith(b"date: ") and line.endswith(b" GMT") for line in lines)
    assert body == b"no"


@pytest.mark.parametrize(
    ("data", "answer", "want_length"),
    [
        pytest.param(GET.replace(b"GET", b"HEAD"), OK, False, id="an answer to HEAD"),
        pytest.param(GET, Response(204, b""), False, id="a status without a body"),
        pytest.param(GET, Response(799, b""), True, id="a status nobody knows"),
    ],
)
def test_what_has_no_body_sends_none(data: bytes, answer: Response, *, want_length: bool) -> None:
    wire = _Wire(lambda _: answer)
    wire.stream.received(data)
    assert wire.carrier.sent.endswith(b"\r\n\r\n")
    assert (b"content-length" in wire.carrier.sent) is want_length


@pytest.mark.parametrize(
    ("data", "want_open"),
    [
        pytest.param(GET, True, id="HTTP/1.1"),
        pytest.param(post(b"", "Connection: close"), False, id="HTTP/1.1 that says close"),
        pytest.param(post(b"", version="1.0"), False, id="HTTP/1.0"),
        pytest.param(post(b"", "Connection: keep-alive", version="1.0"), True, id="HTTP/1.0 that says keep-alive"),
    ],
)
def test_the_client_says_whether_the_connection_goes_on(data: bytes, *, want_open: bool) -> None:
    wire = _Wire()
    assert wire.send(data) == [(200, b"{}")]
    assert (wire.carrier.phase is not Phase.CLOSING) is want_open
    assert (b"connection: close" not in wire.carrier.sent) is want_open


def test_while_draining_every_answer_is_the_last_on_its_connection() -> None:
    wire = _Wire()
    wire.connections.is_draining = True
    assert wire.send(GET + GET) == [(200, b"{}")]
    assert b"connection: close" in wire.carrier.sent
    assert wire.carrier.phase is Phase.CLOSING


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"\x16\x03\x01\x00\r\n\r\n", 400, id="no HTTP at all"),
        pytest.param(b"GET / HTTP/1.1\nHost: x\n\n", 400, id="lines that end in LF"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", 400, id="a version we do not speak"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="the preface of HTTP/2"),
        pytest.param(post(b"", "Content-Length: 5"), 400, id="two lengths"),
        pytest.param(post(b"", "Transfer-Encoding: chunked"), 400, id="a length and chunks"),
        pytest.param(post(b"").replace(b": 0", b": -1"), 400, id="a negative length"),
        pytest.param(post(b"").replace(b": 0", b": " + b"9" * 5000), 400, id="a length of 5000 digits"),
        pytest.param(post(b"", "Bad Name: x"), 400, id="a space in a name"),
        pytest.param(post(b"", "Folded: x", " y"), 400, id="a folded line"),
        pytest.param(b"GET /" + b"x" * 9000, 414, id="a request line that does not end"),
        pytest.param(post(b"", *[f"H{n}: x" for n in range(100)]), 431, id="too many header fields"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 9000, 431, id="a header field that does not end"),
        pytest.param(post(b"", "X: y").replace(b"X: y", b"Transfer-Encoding: br"), 501, id="a coding we do not know"),
        pytest.param(post(b"")[:-2].replace(b": 0", b": 4194305") + b"\r\n", 413, id="a length that is too large"),
    ],
)
def test_what_is_no_request_is_refused_and_ends_the_connection(data: bytes, want: int) -> None:
    wire = _Wire()
    ((status, body),) = wire.send(data)
    assert status == want
    assert json.loads(body)["reason"]
    assert not wire.requests
    assert wire.carrier.phase is Phase.CLOSING
    assert wire.held() == 0


def test_a_request_before_a_broken_one_is_answered() -> None:
    wire = _Wire()
    answers = wire.send(GET + b"nonsense\r\n\r\n")
    assert [status for status, _ in answers] == [200, 400]


def test_chunks_are_counted() -> None:
    wire = _Wire()
    wire.stream.received(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    for _ in range(MAX_BODY_BYTES // 0x100000 + 1):
        wire.stream.received(chunk)
    assert [status for status, _ in wire.answers()] == [413]
    assert wire.held() == 0


def test_what_all_connections_hold_together_is_bounded() -> None:
    wire = _Wire(limits=Limits(held_bytes=1000))
    assert [status for status, _ in wire.send(post(b"x" * 2000))] == [503]
    assert wire.held() == 0


def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    wire = _Wire()
    data = post(b"body", "Expect: 100-continue")
    wire.stream.received(data[:-4])
    assert wire.carrier.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.send(data[-4:]) == [(200, b"{}")]


def test_a_request_that_does_not_arrive_in_time_is_refused() -> None:
    wire = _Wire()
    wire.stream.received(post(b"body")[:-1])
    wire.stream.expired()
    assert [status for status, _ in wire.answers()] == [408]
    assert wire.carrier.phase is Phase.CLOSING
    assert wire.held() == 0


def test_an_answer_whose_header_breaks_out_of_its_line_is_not_sent() -> None:
    wire = _Wire(lambda _: Response(200, b"", [(b"x", b"1\r\ny: 2")]))
    assert [status for status, _ in wire.send(GET)] == [500]


def test_nothing_is_read_while_an_answer_is_awaited_and_the_order_is_kept() -> None:
    async def scenario() -> None:
        promised: list[asyncio.Future[Response]] = []

        def answer(request: Request) -> Any:
            if request.path == b"/slow":
                promised.append(asyncio.get_running_loop().create_future())
                return promised[-1]
            return Response(200, request.path)

        wire = _Wire(answer)
        slow = post(b"", target="/slow")
        assert wire.send(post(b"", target="/1") + slow + post(b"", target="/2") + slow) == [(200, b"/1")]
        assert wire.carrier.is_held
        assert wire.carrier.phase is Phase.SERVING
        promised[0].set_result(Response(200, b"slow"))
        await asyncio.sleep(0)
        assert wire.answers() == [(200, b"/1"), (200, b"slow"), (200, b"/2")]
        assert wire.carrier.is_held
        assert wire.carrier.phase is Phase.SERVING
        promised[1].set_result(Response(200, b"slow"))
        await asyncio.sleep(0)
        assert wire.answers()[3:] == [(200, b"slow")]
        assert not wire.carrier.is_held
        assert wire.carrier.phase is Phase.IDLE

    asyncio.run(scenario())


def test_an_answer_for_a_peer_that_has_gone_is_dropped() -> None:
    async def scenario() -> None:
        promised: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        wire = _Wire(lambda _: promised)
        assert wire.send(post(b"body") + b"GET /") == []
        wire.stream.lost()
        assert wire.held() == 0
        promised.set_result(OK)
        await asyncio.sleep(0)
        assert wire.answers() == []

    asyncio.run(scenario())


def test_an_answer_that_was_given_up_closes_the_connection() -> None:
    async def scenario() -> None:
        promised: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        wire = _Wire(lambda _: promised)
        wire.stream.received(GET)
        promised.cancel()
        await asyncio.sleep(0)
        assert wire.carrier.phase is Phase.CLOSING

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_is_asked_nothing_more_until_it_does() -> None:
    wire = _Wire()
    wire.carrier.is_clogged = True
    assert wire.send(GET + GET) == []
    wire.carrier.is_clogged = False
    wire.stream.writable()
    assert wire.answers() == [(200, b"{}"), (200, b"{}")]
    assert wire.carrier.phase is Phase.IDLE

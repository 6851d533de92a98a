"""HTTP/1.1 on one connection: requests in, answers out, one after the other.

Framing is gunicorn's parser, which is strict about everything that lets two parties disagree where a request ends.
The ASGI protocol that gunicorn puts around it is not used: tasks, events and messages were a third of the CPU time of a
request that is answered at once, and it bounds neither silence nor a slow request.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, Protocol

from gunicorn.asgi.parser import (
    LimitRequestHeaders,
    LimitRequestLine,
    ParseError,
    PythonProtocol,
    UnsupportedTransferCoding,
)

from webhook.app import MAX_BODY_BYTES
from webhook.review import Answer, failure
from webhook.server.connections import Connections, Phase

_log = logging.getLogger(__name__)

# What a request may add to its body: its head, or the framing of chunks.
_MAX_HEAD_BYTES = 64 * 1024
_MAX_LINE_BYTES = 8190
_MAX_FIELDS = 64

# Statuses that have no body by definition.
_BODILESS = frozenset({204, 304})

_JSON = (b"content-type", b"application/json")

Header = tuple[bytes, bytes]


class Request(NamedTuple):
    """A whole request.

    Attributes:
        path: As sent, not decoded.
        headers: In the order sent, names in lower case.
        received_at: When its first byte was here, on time.monotonic().
        peer: The address at the other end of the connection; "" when the kernel cannot tell.
    """

    method: str
    path: bytes
    query: bytes
    headers: Sequence[Header]
    body: bytes
    received_at: float
    peer: str = ""

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of a name in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Response(NamedTuple):
    """An answer; length, date and whether the connection goes on are added when it is sent."""

    status: int
    body: bytes
    headers: Sequence[Header] = (_JSON,)

    @classmethod
    def of(cls, answer: Answer, *headers: Header) -> Response:
        """Return an answer of the application as a response."""
        return cls(answer.status, answer.body, (_content_type(answer.content_type), *headers))


Handler = Callable[[Request], "Response | asyncio.Future[Response]"]


class Carrier(Protocol):
    """The connection underneath; see `tls.TlsConnection`."""

    @property
    def phase(self) -> Phase:
        """What the connection is doing."""
        ...

    @property
    def is_clogged(self) -> bool:
        """Whether the peer does not read what it is sent."""
        ...

    @property
    def peer(self) -> str:
        """The address at the other end; "" when the kernel cannot tell."""
        ...

    def enter(self, phase: Phase) -> None:
        """Say what the connection is doing from now on."""

    def send(self, data: bytes) -> None:
        """Write; without effect once the connection is closing."""

    def hold(self) -> None:
        """Read nothing more for the time being."""

    def release(self) -> None:
        """Read on after `hold`."""

    def close(self) -> None:
        """Close once everything is written."""


class _Refused(Exception):  # noqa: N818 - an answer on its way out of the parser
    """A request that is answered before all of it has come."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class HttpStream:
    """Reads requests and writes answers on one connection.

    A request is passed to the handler when all of it is here. The handler answers at once or promises to; until it has,
    nothing more is read. After an error of framing nobody knows where the next request begins: the connection is
    closed.
    """

    def __init__(
        self,
        carrier: Carrier,
        connections: Connections,
        handler: Handler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carrier = carrier
        self._peer = carrier.peer
        self._connections = connections
        self._handler = handler
        self._clock = clock
        self._parts: list[bytes] = []
        self._parser = PythonProtocol(
            on_headers_complete=self._head_complete,
            on_body=self._parts.append,
            limit_request_line=_MAX_LINE_BYTES,
            limit_request_fields=_MAX_FIELDS,
            limit_request_field_size=_MAX_LINE_BYTES,
        )
        self._is_keeping_alive = True
        self._is_bodiless = False
        self._held = 0
        self._rest = b""
        self._received_at = 0.0
        self._pending: asyncio.Future[Response] | None = None

    # What the connection calls.

    def received(self, data: bytes) -> None:
        """Take bytes, and answer every request that they complete."""
        if not self._held:
            self._received_at = self._clock()
        self._feed(data)
        self._answer_complete()

    def writable(self) -> None:
        """Answer what was held up because the peer did not read."""
        self._answer_complete()

    def expired(self) -> None:
        """Refuse a request of which not all came in time."""
        self._refuse(408, "the request did not arrive in time")

    def lost(self) -> None:
        """Let go of what is held. A thread that works for this connection finishes for nobody."""
        self._let_go()
        self._pending = None
        self._parser = None
        self._parts = []

    # Inside.

    def _feed(self, data: bytes) -> None:
        """Parse, and refuse what cannot be a request of ours."""
        self._held += len(data)
        if not self._connections.hold(len(data)):
            self._refuse(503, "too much is being received at once")
            return
        if self._held > MAX_BODY_BYTES + _MAX_HEAD_BYTES:
            self._refuse(413, _TOO_LARGE)
            return
        try:
            self._parser.feed(data)
        except _Refused as refused:
            self._refuse(refused.status, refused.reason)
        except LimitRequestLine:
            self._refuse(414, "the request line is too long")
        except LimitRequestHeaders:
            self._refuse(431, "the header is too large")
        except UnsupportedTransferCoding:
            self._refuse(501, "the transfer coding is not supported")
        except (ParseError, ValueError) as error:
            self._refuse(400, f"not an HTTP request: {error}")

    def _head_complete(self) -> bool:
        """Look at a request before its body has come."""
        parser = self._parser
        if (parser.content_length or 0) > MAX_BODY_BYTES:
            raise _Refused(413, _TOO_LARGE)
        if parser.http_version >= (1, 1):
            for name, value in parser.headers:
                if name == b"expect" and value.lower() == b"100-continue":
                    self._carrier.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return False

    def _answer_complete(self) -> None:
        carrier = self._carrier
        has_answered = False
        while (
            self._pending is None
            and self._parser.is_complete
            and not carrier.is_clogged
            and carrier.phase is not Phase.CLOSING
        ):
            answer = self._handler(self._take())
            if isinstance(answer, Response):
                self._respond(answer)
                has_answered = True
            else:
                self._pending = answer
                carrier.enter(Phase.SERVING)
                carrier.hold()
                answer.add_done_callback(self._promised)
        if self._pending is not None or carrier.phase is Phase.CLOSING:
            return
        # A request that is still coming keeps the time at which it began.
        if has_answered or (self._held and carrier.phase is not Phase.READING):
            carrier.enter(Phase.READING if self._held else Phase.IDLE)

    def _take(self) -> Request:
        """Return the complete request; what came behind it waits in `_rest`."""
        parser = self._parser
        path, _, query = parser.path.partition(b"?")
        if not path.startswith(b"/"):
            path = _origin_form(path)
        parts = self._parts
        request = Request(
            parser.method.decode("ascii"),
            path,
            query,
            parser.headers,
            parts[0] if len(parts) == 1 else b"".join(parts),
            self._received_at,
            self._peer,
        )
        self._is_keeping_alive = parser.should_keep_alive
        self._is_bodiless = parser.method == b"HEAD"
        self._rest = parser.remaining()
        parser.reset()
        self._let_go()
        return request

    def _let_go(self) -> None:
        self._parts.clear()
        self._connections.hold(-self._held)
        self._held = 0

    def _promised(self, answer: asyncio.Future[Response]) -> None:
        """Send what a thread has answered, and go on with the next request."""
        if self._pending is not answer:
            return  # the peer has gone
        self._pending = None
        if answer.cancelled():
            self._carrier.close()
            return
        self._respond(answer.result())
        if self._carrier.phase is not Phase.CLOSING:
            self._carrier.enter(Phase.READING if self._held else Phase.IDLE)
            self._answer_complete()
            if self._pending is None:
                self._carrier.release()

    def _respond(self, response: Response) -> None:
        is_last = not self._is_keeping_alive or self._connections.is_draining
        try:
            data = _encode(response, is_last=is_last, is_bodiless=self._is_bodiless)
        except ValueError:
            _log.exception("an answer cannot be sent")
            self._refuse(500, "internal error")
            return
        self._carrier.send(data)
        if is_last:
            self._carrier.close()
        elif self._rest:
            rest, self._rest = self._rest, b""
            self._feed(rest)

    def _refuse(self, status: int, reason: str) -> None:
        self._let_go()
        self._carrier.send(_encode(Response.of(failure(status, reason)), is_last=True, is_bodiless=False))
        self._carrier.close()


_TOO_LARGE = f"the body is larger than {MAX_BODY_BYTES} bytes"


def _origin_form(target: bytes) -> bytes:
    """Return the path of an absolute target, which a server has to accept (RFC 9112, 3.2.2)."""
    _, _, rest = target.partition(b"://")
    _, slash, path = rest.partition(b"/")
    return slash + path or b"/"


@functools.lru_cache(maxsize=64)
def _content_type(value: str) -> Header:
    return b"content-type", value.encode("latin-1")


@functools.lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


@functools.lru_cache(maxsize=2)
def _date(unix_s: int) -> bytes:
    return f"date: {formatdate(unix_s, usegmt=True)}\r\n".encode("ascii")


def _encode(response: Response, *, is_last: bool, is_bodiless: bool) -> bytes:
    """Return the bytes of a response.

    Raises:
        ValueError: A header would end its line early and begin another one.
    """
    is_bodiless = is_bodiless or response.status in _BODILESS
    head = b"".join([b"%s: %s\r\n" % header for header in response.headers])
    if head.count(b"\n") != len(response.headers) or head.count(b"\r") != len(response.headers):
        raise ValueError("a header contains a line break")
    return b"".join(
        (
            _status_line(response.status),
            head,
            _date(int(time.time())),
            b"" if is_bodiless else b"content-length: %d\r\n" % len(response.body),
            b"connection: close\r\n\r\n" if is_last else b"\r\n",
            b"" if is_bodiless else response.body,
        )
    )

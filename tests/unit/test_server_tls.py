from __future__ import annotations

import contextlib
import datetime as dt
import ssl
from typing import TYPE_CHECKING

import pytest

from certs import CertificateSource, Names, ensure_pair
from webhook.server.connections import Connections, Phase
from webhook.server.limits import Limits
from webhook.server.tls import TlsConnection

if TYPE_CHECKING:
    from pathlib import Path


class _RawTransport:
    """What asyncio would write to the network, and how it would end."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.end = ""
        self.is_reset = False
        self.peer: object = ("192.0.2.7", 50000)

    def get_extra_info(self, name: str) -> object:
        return {"peername": self.peer}[name]

    def write(self, data: bytes) -> None:
        self.written += data

    def write_eof(self) -> None:
        if self.is_reset:
            raise OSError("not connected")
        self.end = "half-closed"

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class _Stream:
    """What is spoken inside: remembers what it heard."""

    def __init__(self, connection: TlsConnection) -> None:
        self.connection = connection
        self.heard = b""
        self.events: list[str] = []
        self.is_holding = False

    def received(self, data: bytes) -> None:
        self.heard += data
        if self.is_holding:
            self.connection.hold()

    def writable(self) -> None:
        self.events.append("writable")

    def expired(self) -> None:
        self.events.append("expired")

    def lost(self) -> None:
        self.events.append("lost")


class _Pair:
    """A client and the server's side of its connection, without a network between them."""

    def __init__(self, certificates: Path) -> None:
        source = CertificateSource(certificates / "tls.crt", certificates / "tls.key")
        self.connections = Connections(Limits())
        self.streams: list[_Stream] = []
        self.raw = _RawTransport()
        self.server = TlsConnection(source.context, self.connections, self._open)
        self.server.connection_made(self.raw)  # type: ignore[arg-type]
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self.client = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def _open(self, connection: TlsConnection) -> _Stream:
        self.streams.append(_Stream(connection))
        return self.streams[-1]

    @property
    def stream(self) -> _Stream:
        (stream,) = self.streams
        return stream

    def handshake(self) -> _Stream:
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.to_server()
            self.to_client()
        return self.stream

    def to_server(self, piece: int = 16_000) -> None:
        data = self._outgoing.read()
        for start in range(0, len(data), piece):
            self.deliver(data[start : start + piece])

    def deliver(self, data: bytes) -> None:
        buffer = self.server.get_buffer(-1)
        buffer[: len(data)] = data
        self.server.buffer_updated(len(data))

    def to_client(self) -> None:
        self._incoming.write(self.raw.written)
        self.raw.written = b""

    def read(self) -> bytes:
        """Return everything that the server has said to the client."""
        self.to_client()
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.client.read(65536):
                data += piece
        return data


@pytest.fixture
def pair(tmp_path: Path) -> _Pair:
    names = Names.of_service("hami-quota", "hami-quota-system", loopback=True)
    ensure_pair(tmp_path, names, dt.datetime.now(dt.UTC))
    return _Pair(tmp_path)


def test_bytes_go_both_ways(pair: _Pair) -> None:
    stream = pair.handshake()
    assert pair.server.phase is Phase.FRESH
    pair.client.write(b"question")
    pair.to_server()
    assert stream.heard == b"question"
    pair.server.send(b"answer")
    assert pair.read() == b"answer"


@pytest.mark.parametrize(
    ("peer", "want"),
    [
        pytest.param(("192.0.2.7", 50000), "192.0.2.7", id="IPv4"),
        pytest.param(("2001:db8::7", 50000, 0, 0), "2001:db8::7", id="IPv6"),
        pytest.param(None, "", id="one that had gone before it was asked for"),
        pytest.param("", "", id="a Unix socket, which has no addresses"),
    ],
)
def test_the_peer_is_who_the_kernel_says_it_is(pair: _Pair, peer: object, want: str) -> None:
    pair.raw.peer = peer
    assert pair.server.peer == want
    pair.server.connection_lost(None)
    assert pair.server.peer == ""


@pytest.mark.parametrize("piece", [1, 100, 16_000])
def test_much_goes_both_ways_in_pieces_of_any_size(pair: _Pair, piece: int) -> None:
    stream = pair.handshake()
    question = bytes(range(256)) * 160
    pair.client.write(question)
    pair.to_server(piece)
    assert stream.heard == question
    pair.server.send(question * 20)
    assert pair.read() == question * 20


def test_a_peer_that_says_nothing_costs_no_session(pair: _Pair) -> None:
    assert len(pair.connections) == 1
    assert pair.server.phase is Phase.HANDSHAKE
    assert pair.server._session is None
    pair.server.expire()
    assert pair.raw.end == "aborted"
    assert len(pair.connections) == 0


@pytest.mark.parametrize(
    "data", [pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP without TLS"), pytest.param(b"\x00" * 50, id="noise")]
)
def test_what_is_no_handshake_ends_the_connection(pair: _Pair, data: bytes) -> None:
    pair.deliver(data)
    assert pair.raw.end == "closed"
    assert not pair.streams
    pair.deliver(data)


def test_a_broken_record_ends_the_connection(pair: _Pair) -> None:
    stream = pair.handshake()
    pair.deliver(b"\x17\x03\x03\x00\x20" + b"\x00" * 32)
    assert pair.raw.end == "closed"
    assert stream.heard == b""


def test_what_was_sent_arrives_before_our_goodbye(pair: _Pair) -> None:
    pair.handshake()
    pair.server.send(b"last words")
    pair.server.close()
    assert pair.server.phase is Phase.CLOSING
    assert pair.raw.end == "half-closed"
    assert pair.read() == b"last words"
    assert pair.client.read(1) == b""
    pair.server.send(b"too late")
    assert pair.raw.written == b""


def test_what_comes_after_our_goodbye_is_dropped(pair: _Pair) -> None:
    stream = pair.handshake()
    pair.server.close()
    pair.client.write(b"crossed it")
    pair.to_server()
    assert stream.heard == b""
    assert pair.server._incoming.pending == 0
    pair.server.close()
    assert pair.raw.end == "half-closed"


def test_a_peer_that_has_reset_the_connection_needs_no_goodbye(pair: _Pair) -> None:
    pair.handshake()
    pair.raw.is_reset = True
    pair.server.close()
    assert pair.raw.end == "aborted"


def test_a_peer_that_says_goodbye_gets_ours(pair: _Pair) -> None:
    pair.handshake()
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.to_server()
    assert pair.server.phase is Phase.CLOSING
    pair.to_client()
    pair.client.unwrap()


def test_nothing_is_decrypted_while_the_stream_is_held(pair: _Pair) -> None:
    stream = pair.handshake()
    stream.is_holding = True
    for number in range(3):
        pair.client.write(b"%d" % number)
    pair.to_server()
    assert (stream.heard, pair.raw.is_reading) == (b"0", False)
    pair.server.release()
    assert (stream.heard, pair.raw.is_reading) == (b"01", False)
    stream.is_holding = False
    pair.server.release()
    assert (stream.heard, pair.raw.is_reading) == (b"012", True)


def test_a_peer_that_does_not_read_is_not_read_from(pair: _Pair) -> None:
    stream = pair.handshake()
    pair.server.pause_writing()
    assert (pair.server.is_clogged, pair.raw.is_reading) == (True, False)
    pair.server.resume_writing()
    assert (pair.server.is_clogged, pair.raw.is_reading) == (False, True)
    assert stream.events == ["writable"]


@pytest.mark.parametrize(
    ("phase", "want_end", "want_events"),
    [
        pytest.param(Phase.FRESH, "half-closed", [], id="a spare session is closed"),
        pytest.param(Phase.IDLE, "half-closed", [], id="an idle session is closed"),
        pytest.param(Phase.READING, "", ["expired"], id="a slow request is told"),
        pytest.param(Phase.CLOSING, "aborted", [], id="a peer without a goodbye is cut off"),
    ],
)
def test_a_connection_whose_time_is_over_ends_as_its_phase_asks(
    pair: _Pair, phase: Phase, want_end: str, want_events: list[str]
) -> None:
    stream = pair.handshake()
    pair.server.enter(phase)
    pair.server.expire()
    assert (pair.raw.end, stream.events) == (want_end, want_events)


def test_a_lost_connection_is_forgotten(pair: _Pair) -> None:
    stream = pair.handshake()
    pair.server.eof_received()
    pair.server.connection_lost(None)
    assert stream.events == ["lost"]
    assert len(pair.connections) == 0
    pair.server.send(b"nobody hears")
    pair.server.close()
    pair.server.abort()
    pair.server.resume_writing()

"""One TLS connection over asyncio's plain transport: bytes in, bytes out, and an end that loses no answer.

asyncio's own TLS would do, but reserves 256 KiB for each connection when it is accepted (`SSLProtocol.max_size`): two
thousand peers that connect and say nothing took 600 MB, and take 5 MB here. It also hides connections from us until
their handshake is over, so that they could be neither counted nor pushed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from webhook.server.connections import Connections, Phase

_log = logging.getLogger(__name__)

# One buffer for all connections: what was received is decrypted before the loop turns to the next one.
_received = memoryview(bytearray(64 * 1024))

# The largest piece that is decrypted in one go; a TLS record has at most 16 KiB.
_READ_BYTES = 64 * 1024


class Stream(Protocol):
    """What is spoken inside of a TLS connection."""

    def received(self, data: bytes) -> None:
        """Take decrypted bytes."""

    def writable(self) -> None:
        """Go on, after `TlsConnection.is_clogged` held it up."""

    def expired(self) -> None:
        """Give up a request that takes too long to arrive."""

    def lost(self) -> None:
        """Let go of everything: the connection is over."""


class TlsConnection(asyncio.BufferedProtocol):
    """The server's side of one connection.

    Args:
        context: The TLS context to serve with.
        connections: Where it is counted and timed.
        open_stream: Called once there is a TLS session.
    """

    __slots__ = (
        "_connections",
        "_context",
        "_incoming",
        "_open_stream",
        "_outgoing",
        "_raw",
        "_session",
        "_stream",
        "is_clogged",
        "is_held",
        "phase",
    )

    def __init__(
        self, context: ssl.SSLContext, connections: Connections, open_stream: Callable[[TlsConnection], Stream]
    ) -> None:
        self.phase = Phase.HANDSHAKE
        self.is_held = False
        self.is_clogged = False
        self._context = context
        self._connections = connections
        self._open_stream = open_stream
        self._raw: asyncio.Transport | None = None
        self._session: ssl.SSLObject | None = None
        self._stream: Stream | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to count and time the connection. A TLS session is only made once the peer has said something."""
        self._raw = cast("asyncio.Transport", transport)
        self._connections.enter(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Lend the common buffer."""
        return _received

    def buffer_updated(self, size: int) -> None:
        """Decrypt what was received and pass it on."""
        if self.phase is Phase.CLOSING:
            return
        if self._session is None:
            self._incoming = ssl.MemoryBIO()
            self._outgoing = ssl.MemoryBIO()
            self._session = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(_received[:size])
        self._pump()

    def eof_received(self) -> None:
        """Let the transport close: what was answered has been written, and no more can be asked."""

    def connection_lost(self, _error: Exception | None) -> None:
        """Stop counting the connection, and break the circles of references that would keep its memory."""
        self._connections.leave(self)
        stream, self._stream, self._session, self._raw = self._stream, None, None, None
        if stream is not None:
            stream.lost()

    def pause_writing(self) -> None:
        """Read no further requests of a peer that does not read its answers."""
        self.is_clogged = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """Go on."""
        self.is_clogged = False
        self._read_or_not()
        if self._stream is not None:
            self._stream.writable()

    # What the stream calls.

    @property
    def peer(self) -> str:
        """The address at the other end of the connection; "" when the kernel cannot tell."""
        name = None if self._raw is None else self._raw.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    def enter(self, phase: Phase) -> None:
        """Say what the connection is doing from now on."""
        self._connections.move(self, phase)

    def send(self, data: bytes) -> None:
        """Encrypt and write; without effect once the connection is closing."""
        if self._session is None or self.phase is Phase.CLOSING:
            return
        view = memoryview(data)
        while view:
            view = view[self._session.write(view) :]
        self._flush()

    def hold(self) -> None:
        """Read nothing more for the time being."""
        self.is_held = True
        self._read_or_not()

    def release(self) -> None:
        """Read on after `hold`."""
        self.is_held = False
        self._read_or_not()

    def close(self) -> None:
        """Say goodbye after what has been sent, and wait a little for the peer to say it too.

        Closing outright while the peer still sends would make the kernel reset the connection, and an answer that the
        peer has not read yet would be lost with it.
        """
        if self.phase is Phase.CLOSING or self._raw is None:
            return
        if self._session is not None:
            # As a rule an error says that the peer's goodbye has not come yet; ours is written all the same.
            with contextlib.suppress(ssl.SSLError):
                self._session.unwrap()
            self._flush()
        self._connections.move(self, Phase.CLOSING)
        self._raw.resume_reading()
        try:
            self._raw.write_eof()
        except OSError:
            self.abort()  # the peer has reset the connection

    # What `Connections` calls.

    def expire(self) -> None:
        """End the connection as its phase asks for."""
        if self.phase is Phase.READING and self._stream is not None:
            self._stream.expired()
        elif self.phase in {Phase.FRESH, Phase.IDLE}:
            self.close()
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._connections.leave(self)
        if self._raw is not None:
            self._raw.abort()

    # Inside.

    def _pump(self) -> None:
        session = self._session
        if session is None:
            return
        try:
            if self._stream is None:
                session.do_handshake()
                self._connections.move(self, Phase.FRESH)
                self._stream = self._open_stream(self)
            while self._incoming.pending and not (self.is_held or self.is_clogged or self.phase is Phase.CLOSING):
                data = session.read(_READ_BYTES)
                if not data:
                    self.close()
                    return
                self._stream.received(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            # Not worth more than a debug line: port scanners and probes without TLS do this all day.
            _log.debug("connection ended: %s", error)
            self._flush()
            self._end()
            return
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    def _end(self) -> None:
        self._connections.move(self, Phase.CLOSING)
        if self._raw is not None:
            self._raw.close()

    def _read_or_not(self) -> None:
        if self._raw is None or self.phase is Phase.CLOSING:
            return
        if self.is_held or self.is_clogged:
            self._raw.pause_reading()
        else:
            self._raw.resume_reading()
            self._pump()

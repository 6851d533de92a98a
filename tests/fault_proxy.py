"""A proxy between the webhook and a real API server that goes wrong on demand.

It ends TLS with a certificate of its own, and asks the API server with the certificate of the identity it was given;
whoever knows its token may do through it what that identity may. Every connection carries one request, so that each
request meets the fault that is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from control_plane import free_port
from identities import Authority, write_private

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from kube_api import Api

T = TypeVar("T")

# Into how many drops whatever arrives of a list is cut, and their distance in time.
DROPS = 20
DROP_INTERVAL_S = 0.1


class Fault(StrEnum):
    """What the proxy does to requests. Open streams break when a fault begins, unless it says otherwise."""

    NONE = "nothing is wrong"
    CUT = "every open watch is cut in the middle of its next line"  # and a new one holds
    SILENCE = "connections open and no byte passes"  # open streams stay open; the end of it lets the bytes pass
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    THROTTLED = "429 with Retry-After"
    BROKEN = "500"
    EXPIRED = "every watch is answered with 410"
    EXPIRED_EVENT = "every watch is answered with an ERROR event that says 410"
    SLOW_LISTS = "every watch is answered with 410, and lists arrive in drops"
    REFUSED = "nobody listens"


_STATUSES = {
    Fault.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    Fault.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Fault.THROTTLED: HTTPStatus.TOO_MANY_REQUESTS,
    Fault.BROKEN: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_WATCH_STATUSES = {Fault.EXPIRED: HTTPStatus.GONE, Fault.SLOW_LISTS: HTTPStatus.GONE}


class FaultProxy:
    """A running proxy, in a thread of its own; a context manager.

    Args:
        upstream: The API server, and who asks it.
        directory: For its certificates, its kubeconfig and the token's file.
    """

    def __init__(self, upstream: Api, directory: Path) -> None:
        self._target = urlsplit(upstream.url)
        self._authority = Authority(directory)
        self._token_file = directory / "token"
        self.port = free_port()
        self._serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._serving.load_cert_chain(*self._authority.server("127.0.0.1"))
        self._asking = ssl.create_default_context(cafile=str(upstream.bundle))
        self._asking.load_cert_chain(*upstream.identity)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._fault = Fault.NONE
        self._injections = 0
        self._token = "first"
        self.hand_out("first")

    def __enter__(self) -> Self:
        self._thread.start()
        self._flow = asyncio.Event()
        self.inject(Fault.NONE)
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def inject(self, fault: Fault) -> None:
        """Let a fault begin, and another one end."""
        self._run(self._inject(fault))

    def require(self, token: str) -> None:
        """Accept this token and no other from now on, and break the open streams."""
        self._token = token
        self._run(self._break())

    def hand_out(self, token: str) -> None:
        """Write the token where the kubeconfig says that it is read."""
        write_private(self._token_file, token.encode())

    def kubeconfig(self) -> str:
        """Return a kubeconfig that leads here."""
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self._authority.bundle)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": cluster}],
            "users": [{"name": "proxy", "user": {"tokenFile": str(self._token_file)}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        return json.dumps(config)

    def _run(self, coroutine: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    async def _inject(self, fault: Fault) -> None:
        self._fault = fault
        self._injections += 1
        if fault is Fault.SILENCE:
            self._flow.clear()
        else:
            self._flow.set()
        if fault is Fault.REFUSED:
            if self._server is not None:
                self._server.close()
            self._server = None
        elif self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._serving)
        if fault not in {Fault.NONE, Fault.CUT, Fault.SILENCE}:
            await self._break()

    async def _break(self) -> None:
        for writer in self._connections.values():
            writer.transport.abort()

    async def _close(self) -> None:
        await self._inject(Fault.REFUSED)
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await self._flow.wait()
                answering = asyncio.ensure_future(self._answer(head, writer))
                # A client that hangs up ends its request, as it would without us.
                leaving = asyncio.ensure_future(reader.read())
                try:
                    await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    answering.cancel()
                    leaving.cancel()
                    await asyncio.gather(answering, leaving, return_exceptions=True)
            finally:
                writer.close()
                await writer.wait_closed()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        request, *headers = head.split("\r\n")
        is_watch = "watch=true" in request
        status = _STATUSES.get(self._fault)
        if is_watch:
            status = status or _WATCH_STATUSES.get(self._fault)
        if f"Authorization: Bearer {self._token}" not in headers:
            status = HTTPStatus.UNAUTHORIZED
        if status is not None:
            writer.write(_refusal(status))
        elif is_watch and self._fault is Fault.EXPIRED_EVENT:
            writer.write(_expired_event())
        else:
            kept = [line for line in headers if line and not line.startswith(("Authorization:", "Connection:"))]
            asked = "\r\n".join([request, *kept, "Connection: close", "", ""])
            await self._forward(asked.encode(), writer, is_watch=is_watch)
        await writer.drain()

    async def _forward(self, asked: bytes, writer: asyncio.StreamWriter, *, is_watch: bool) -> None:
        """Ask the API server and pass on what it answers, byte for byte, until it has said everything."""
        opened_in = self._injections
        host, port = self._target.hostname, self._target.port
        reader, asking = await asyncio.open_connection(host, port, ssl=self._asking)
        try:
            asking.write(asked)
            while piece := await reader.read(1 << 16):
                await self._flow.wait()
                if self._fault is Fault.CUT and is_watch and opened_in < self._injections:
                    writer.write(piece[: len(piece) // 2])
                    return
                if self._fault is Fault.SLOW_LISTS:
                    await _drip(piece, writer)
                else:
                    writer.write(piece)
                await writer.drain()
        finally:
            asking.transport.abort()


async def _drip(piece: bytes, writer: asyncio.StreamWriter) -> None:
    size = -(-len(piece) // DROPS)
    for start in range(0, len(piece), size):
        writer.write(piece[start : start + size])
        await writer.drain()
        await asyncio.sleep(DROP_INTERVAL_S)


def _status(status: HTTPStatus) -> bytes:
    """Return the body of a refusal as the API server writes it."""
    reason = {HTTPStatus.GONE: "Expired"}.get(status, status.phrase.replace(" ", ""))
    return json.dumps({"kind": "Status", "code": status, "reason": reason, "message": "by the proxy"}).encode()


def _refusal(status: HTTPStatus) -> bytes:
    body = _status(status)
    lines = [f"HTTP/1.1 {status} {status.phrase}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        lines.append("Retry-After: 1")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def _expired_event() -> bytes:
    line = b'{"type":"ERROR","object":%s}\n' % _status(HTTPStatus.GONE)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(line), line)

"""A server in this process, on real sockets: what only shows when its parts work together."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import resource
import socket
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from certs import CertificateSource, Names, ensure_pair
from webhook.review import Answer
from webhook.server.connections import Connections
from webhook.server.lifecycle import Server, _within_open_files
from webhook.server.limits import Limits, Timing
from webhook.server.listener import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

NAMES = Names.of_service("hami-quota", "hami-quota-system", loopback=True)
QUICK = Timing(drain_s=0, settle_s=0, finish_s=10, goodbye_s=0)
REQUEST = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class _Reviewer:
    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Answer | None:
        return Answer(status=200, body=b"allowed")


class _Service:
    """What is served: allows everything."""

    def __init__(self) -> None:
        self.reviewer = self.mutator = _Reviewer()
        self.is_stopped = False

    def app(self, draining: Callable[[], str]) -> Callable[..., Iterable[bytes]]:
        def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            start_response("200 OK", [])
            return [draining().encode()]

        return application

    def start(self) -> None:
        raise AssertionError("whoever made the service has started it")

    def stop(self) -> None:
        self.is_stopped = True


class _Running:
    """A running server, and ways to reach it."""

    def __init__(self, directory: Path, limits: Limits, timing: Timing) -> None:
        self.directory = directory
        ensure_pair(directory, NAMES, dt.datetime.now(dt.UTC))
        self.trust = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        self.service = _Service()
        self.serving: asyncio.Task[None] | None = None
        self.has_parent = True
        self._writers: list[asyncio.StreamWriter] = []
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.server = Server(
            service=self.service,
            certificates=CertificateSource(directory / "tls.crt", directory / "tls.key"),
            listening=[listening],
            on_beat=lambda: self.has_parent,
            limits=limits,
            timing=timing,
        )

    async def silent(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self._writers.append(writer)
        return reader, writer

    async def secure(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.silent(self.trust)

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ask(self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes = REQUEST) -> int:
        reader, writer = connection
        writer.write(request)
        return await read_status(reader)


async def read_status(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await reader.readexactly(size)
    return int(head.split()[1])


class EndedEarlyError(Exception):
    """Ends a server whose drain nobody waits for."""


@contextlib.asynccontextmanager
async def running(directory: Path, limits: Limits | None = None, timing: Timing = QUICK) -> AsyncIterator[_Running]:
    one = _Running(directory, limits or Limits(), timing)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        one.serving = group.create_task(one.server.run())
        await one.ask(await one.secure())
        try:
            yield one
        finally:
            one.server.stop()
            await one.hang_up()
    assert one.service.is_stopped


def test_each_kind_of_silence_comes_to_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Limits(handshake_s=0.1, request_s=0.2, idle_s=0.3)
        async with running(tmp_path, limits) as one:
            silent, _ = await one.silent()
            spare, _ = await one.secure()
            slow, slow_writer = await one.secure()
            slow_writer.write(REQUEST[:-1])
            used = await one.secure()
            assert await one.ask(used) == 200
            with contextlib.suppress(ConnectionResetError):
                assert await silent.read() == b""
            assert await spare.read() == b""
            assert await read_status(slow) == 408
            assert await slow.read() == b""
            assert await used[0].read() == b""

    asyncio.run(scenario())


def test_silent_peers_make_room_for_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Limits(connections=10)) as one:
            used = await one.secure()
            assert await one.ask(used) == 200
            for _ in range(50):
                await one.silent()
            for _ in range(5):
                assert await one.ask(await one.secure()) == 200
            assert await one.ask(used) == 200

    asyncio.run(scenario())


def test_requests_that_have_begun_are_finished_after_the_last_accept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            begun = await one.secure()
            begun[1].write(REQUEST[:-1])
            unused, _ = await one.secure()
            await one.ask(await one.secure())  # by now the server has read what came before
            one.server.stop()
            assert await unused.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await one.silent()
            assert not (await asyncio.wait([one.serving], timeout=0.2))[0]
            assert await one.ask(begun, REQUEST[-1:]) == 200
            assert await begun[0].read() == b""

    asyncio.run(scenario())


def test_while_it_drains_it_accepts_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, timing=replace(QUICK, drain_s=60)) as one:
            one.server.stop()
            reader, writer = await one.secure()
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.read()).endswith(b"shutting down")
            assert await one.ask(await one.secure()) == 200
            raise EndedEarlyError

    with pytest.raises(ExceptionGroup) as error:
        asyncio.run(scenario())
    assert error.group_contains(EndedEarlyError)


def test_a_server_without_its_parent_ends_without_draining(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, timing=replace(QUICK, drain_s=60)) as one:
            one.has_parent = False
            await one.serving

    asyncio.run(scenario())


def test_a_pair_that_cannot_be_used_is_reported_once_and_the_old_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            (tmp_path / "tls.crt").unlink()
            for _ in range(3):
                one.server._follow_certificate()
            assert await one.ask(await one.secure()) == 200

    asyncio.run(scenario())
    assert caplog.text.count("is not used") == 1


def test_a_beat_that_breaks_ends_the_server_instead_of_leaving_it_without_a_heart(tmp_path: Path) -> None:
    def broken() -> bool:
        raise RuntimeError("broken")

    async def scenario() -> None:
        async with running(tmp_path) as one:
            one.server._on_beat = broken
            await asyncio.sleep(30)

    with pytest.raises(ExceptionGroup) as error:
        asyncio.run(scenario())
    assert error.group_contains(RuntimeError)


class _Exhausted:
    """A listening socket of a process that has no descriptors left, until it has one again."""

    def __init__(self, listening: socket.socket) -> None:
        self.failures = 1
        self._listening = listening

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listening, name)


def _greeter() -> tuple[type[asyncio.Protocol], asyncio.Future[asyncio.BaseTransport]]:
    """Return a protocol, and the transport that it will be given."""
    accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    return Greeter, accepted


def test_accepting_goes_on_after_descriptors_have_run_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        listening = _Exhausted(socket.create_server(("127.0.0.1", 0)))
        greeter, accepted = _greeter()
        listener = Listener(listening, Connections(Limits()), greeter)  # type: ignore[arg-type]
        listener.start()
        _, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        transport = await asyncio.wait_for(accepted, 10)
        listener.close()
        transport.close()
        writer.close()

    asyncio.run(scenario())
    assert caplog.text.count("Too many open files") == 1


def test_a_connection_in_the_queue_is_taken_in_before_listening_ends() -> None:
    async def scenario() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        greeter, accepted = _greeter()
        listener = Listener(listening, Connections(Limits()), greeter)
        listener.start()
        client = socket.create_connection(listening.getsockname())  # the loop has had no turn to accept it
        listener.close()
        transport = await asyncio.wait_for(accepted, 10)
        transport.close()
        client.close()

    asyncio.run(scenario())


def test_connections_stay_within_the_limit_on_open_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert _within_open_files(Limits(connections=500)).connections == 500
    assert raised == [(756, 1000)]
    assert _within_open_files(Limits(connections=5000)).connections == 744
    assert "at most 744 connections" in caplog.text

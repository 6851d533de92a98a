"""One serving process from its first accept to its last answer.

serving    accepts and answers
draining   readiness is false; goes on accepting, since endpoints lag behind; every answer closes its connection
finishing  accepts no more; what has begun is answered; connections without a request are ended
stopped    the service's threads have ended
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from certs import CertificateSource, Failed, Reloaded
from webhook.server.connections import Connections, Phase
from webhook.server.front import Front, Reviewer
from webhook.server.http1 import HttpStream
from webhook.server.limits import Limits, Timing
from webhook.server.listener import Listener
from webhook.server.tls import TlsConnection
from webhook.server.wsgi import Application, Bridge

_log = logging.getLogger(__name__)

_BEAT_S = 1.0

# Descriptors for what is no counted peer: listeners, files, the API server, and a batch that was accepted just now.
_OTHER_FILES = 256


class Service(Protocol):
    """What is served; see `compose.Service`."""

    @property
    def reviewer(self) -> Reviewer:
        """Who answers POST /validate."""
        ...

    @property
    def mutator(self) -> Reviewer:
        """Who answers POST /mutate."""
        ...

    def app(self, draining: Callable[[], str]) -> Application:
        """Return the WSGI application. `draining` says why no new work should come; "" while it may."""
        ...

    def start(self) -> None:
        """Start every thread."""

    def stop(self) -> None:
        """End every thread."""


class Server:
    """Serves on listening sockets until it is told to stop.

    Args:
        service: What is served. It has been started; it is stopped here.
        certificates: The serving pair; looked at on every beat.
        listening: The sockets.
        limits: The bounds on connections.
        timing: How it stops.
        on_beat: Called once a second while the loop turns; returns whether the parent process is still there.
    """

    def __init__(  # noqa: PLR0913 - the collaborators of a process, by name
        self,
        *,
        service: Service,
        certificates: CertificateSource,
        listening: Sequence[socket.socket],
        on_beat: Callable[[], bool],
        limits: Limits | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._service = service
        self._certificates = certificates
        self._listening = listening
        self._on_beat = on_beat
        self._limits = limits or Limits()
        self._timing = timing or Timing()
        self._stopping = asyncio.Event()
        self._is_draining = False
        self._certificate_problem = ""

    def stop(self, *, drain: bool = True) -> None:
        """Begin to stop; without `drain`, accept nothing more from now on."""
        if not drain:
            self._timing = replace(self._timing, drain_s=0.0)
        self._stopping.set()

    async def run(self) -> None:
        """Serve, until all has been answered after `stop`."""
        connections = Connections(_within_open_files(self._limits))
        self._follow_certificate()  # it may have been renewed since the parent process read it
        host, port = self._listening[0].getsockname()[:2]
        service = self._service
        front = Front(
            {b"/validate": service.reviewer, b"/mutate": service.mutator},
            Bridge(service.app(self._draining), host, port),
        )
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(self._beat(connections))
            listeners = [self._listen(one, connections, front) for one in self._listening]
            _log.info("serving on https://%s:%s", host, port)
            try:
                await self._stopping.wait()
                await self._drain(listeners, connections)
            finally:
                for listener in listeners:
                    listener.close()
                front.close()
                await asyncio.get_running_loop().run_in_executor(None, self._service.stop)
                beating.cancel()
        _log.info("stopped")

    def _draining(self) -> str:
        return "shutting down" if self._is_draining else ""

    def _listen(self, listening: socket.socket, connections: Connections, front: Front) -> Listener:
        context: ssl.SSLContext = self._certificates.context

        def stream(connection: TlsConnection) -> HttpStream:
            return HttpStream(connection, connections, front.answer)

        listener = Listener(listening, connections, lambda: TlsConnection(context, connections, stream))
        listener.start()
        return listener

    async def _beat(self, connections: Connections) -> None:
        """Do once a second what is due once a second, whatever the server is doing otherwise."""
        while True:
            if not self._on_beat() and not self._stopping.is_set():
                _log.warning("the parent process is gone")
                self.stop(drain=False)
            connections.expire()
            self._follow_certificate()
            await asyncio.sleep(_BEAT_S)

    def _follow_certificate(self) -> None:
        found = self._certificates.poll()
        if isinstance(found, Reloaded):
            _log.info("serving a new certificate: %s", found.certificate)
        problem = found.reason if isinstance(found, Failed) else ""
        if problem and problem != self._certificate_problem:
            _log.warning("the certificate on disk is not used, the earlier one still is: %s", problem)
        self._certificate_problem = problem

    async def _drain(self, listeners: Sequence[Listener], connections: Connections) -> None:
        timing = self._timing
        self._is_draining = connections.is_draining = True
        _log.info("draining for %g s: not ready, and every answer ends its connection", timing.drain_s)
        await asyncio.sleep(timing.drain_s)
        for listener in listeners:
            listener.close()
        await asyncio.sleep(timing.settle_s)
        connections.end_unused()
        if not await _until(lambda: not connections.count(Phase.READING, Phase.SERVING), timing.finish_s):
            _log.warning("%d requests are cut short", connections.count(Phase.READING, Phase.SERVING))
        await _until(lambda: not len(connections), timing.goodbye_s)


async def _until(is_met: Callable[[], bool], at_most_s: float) -> bool:
    """Wait for a condition and return whether it was met in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + at_most_s
    while not is_met() and loop.time() < end:  # noqa: ASYNC110 - twice in a process's life; an event costs each request
        await asyncio.sleep(0.02)
    return is_met()


def _within_open_files(limits: Limits) -> Limits:
    """Raise the limit on open files as far as it may be, and return limits that stay within it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft >= wanted:
        return limits
    connections = max(soft - _OTHER_FILES, soft // 2)
    _log.warning("at most %d connections at a time: the limit on open files is %d", connections, soft)
    return replace(limits, connections=connections)

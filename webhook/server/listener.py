"""Accepts connections from one listening socket."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from webhook.server.connections import Connections

_log = logging.getLogger(__name__)

# Connections taken in one turn of the loop: a flood of them must not keep the loop from those that are open.
_BATCH = 64

# What accept() reports when the process or the machine has run out of something, and how long to leave it alone then.
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_AFTER_S = 0.5


class Listener:
    """Accepts until it is closed. Before each accept it makes room among the connections.

    asyncio's own server is not used because it cannot do that, and because on Python 3.11 its accept loop goes on after
    EMFILE: it logs and plans a retry once for every place in the backlog.
    """

    def __init__(
        self, listening: socket.socket, connections: Connections, new_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._listening = listening
        self._connections = connections
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._setting_up: set[asyncio.Task[object]] = set()
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)  # noqa: FBT003 - not our signature

    def start(self) -> None:
        """Begin to accept, or go on."""
        self._retry = None
        self._loop.add_reader(self._listening, self._accept, _BATCH)

    def close(self) -> None:
        """Take in what has been waiting to be accepted, then listen no more. Once is enough.

        A connection in the kernel's queue has a client that was told it is connected, and that may have sent a request.
        """
        if self._listening.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listening)
        self._accept(socket.SOMAXCONN)
        if self._retry is not None:
            self._retry.cancel()
        self._listening.close()

    def _accept(self, at_most: int) -> None:
        for _ in range(at_most):
            self._connections.make_room(len(self._setting_up))
            try:
                peer, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                _log.error("no connection can be accepted for %s s: %s", _RETRY_AFTER_S, error.strerror)
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(_RETRY_AFTER_S, self.start)
                return
            task = self._loop.create_task(self._set_up(peer))
            self._setting_up.add(task)
            task.add_done_callback(self._setting_up.discard)

    async def _set_up(self, peer: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._new_protocol, peer)
        except OSError as error:
            _log.debug("a connection was lost before it was set up: %s", error)
            peer.close()

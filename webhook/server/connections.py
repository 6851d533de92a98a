"""What all connections are doing, how long each may do it, and which one goes when there are too many.

One event loop owns this; nothing here is safe to call from another thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from webhook.server.limits import Limits


class Phase(StrEnum):
    """What a connection is doing.

    HANDSHAKE -> FRESH -> READING -> SERVING -> IDLE -> READING -> ...        any -> CLOSING
    """

    HANDSHAKE = "handshake"
    """Accepted; there is no TLS session yet."""
    FRESH = "fresh"
    """A TLS session on which no byte of a request has come. Go's client opens such spares in bursts."""
    READING = "reading"
    """A part of a request is here."""
    SERVING = "serving"
    """A whole request is being answered by a thread."""
    IDLE = "idle"
    """Answered, and kept for the next request."""
    CLOSING = "closing"
    """We have said goodbye; what still comes is dropped until the peer has said it too."""


class Connection(Protocol):
    """A connection as this module sees it."""

    phase: Phase

    def expire(self) -> None:
        """End it in the way its phase asks for: its time is over."""

    def abort(self) -> None:
        """End it at once."""


# Who goes first when there is no room. A connection that a thread works for never does.
_LEAST_USEFUL = (Phase.HANDSHAKE, Phase.CLOSING, Phase.FRESH, Phase.IDLE, Phase.READING)


class Connections:
    """Every open connection, by phase.

    A phase has one time limit, so the order in which connections enter it is the order in which they run out of time:
    entering, leaving, and finding the late ones cost the same whether there are ten or ten thousand.

    Attributes:
        is_draining: Whether the server stops: every answer is then the last on its connection.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_draining = False
        self._limits = limits
        self._clock = clock
        self._time_s = {
            Phase.HANDSHAKE: limits.handshake_s,
            Phase.FRESH: limits.idle_s,
            Phase.READING: limits.request_s,
            Phase.SERVING: float("inf"),  # the review's own deadline bounds it
            Phase.IDLE: limits.idle_s,
            Phase.CLOSING: limits.closing_s,
        }
        self._late_at: dict[Phase, dict[Connection, float]] = {phase: {} for phase in Phase}
        self._held_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._late_at.values()))

    def count(self, *phases: Phase) -> int:
        """Return how many connections are in one of these phases."""
        return sum(len(self._late_at[phase]) for phase in phases)

    def enter(self, connection: Connection) -> None:
        """Take in a new connection, in the phase it says."""
        self._late_at[connection.phase][connection] = self._clock() + self._time_s[connection.phase]

    def move(self, connection: Connection, phase: Phase) -> None:
        """Put a connection into a phase, anew if it is there already; without effect once it has left."""
        if self._late_at[connection.phase].pop(connection, None) is not None:
            connection.phase = phase
            self.enter(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a connection; once is enough."""
        self._late_at[connection.phase].pop(connection, None)

    def hold(self, size: int) -> bool:
        """Reserve memory for a part of a request and return whether there is any left; `size` may be negative."""
        self._held_bytes += size
        return self._held_bytes <= self._limits.held_bytes

    def expire(self) -> None:
        """End every connection whose time is over."""
        now = self._clock()
        for connections in self._late_at.values():
            late = []
            for connection, late_at in connections.items():
                if late_at > now:
                    break
                late.append(connection)
            for connection in late:
                connection.expire()

    def make_room(self, coming: int) -> None:
        """Push out the connection that has been of no use for longest, if one more would be too many.

        Args:
            coming: How many have been accepted and have not entered yet.
        """
        if len(self) + coming < self._limits.connections:
            return
        for phase in _LEAST_USEFUL:
            for connection in self._late_at[phase]:
                connection.abort()
                return

    def end_unused(self) -> None:
        """End every connection on which no request has begun."""
        for phase in (Phase.HANDSHAKE, Phase.FRESH, Phase.IDLE):
            for connection in tuple(self._late_at[phase]):
                connection.expire()

"""Every bound of the server: on its connections, and on how it stops."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds on connections.

    Attributes:
        handshake_s: From accept to a TLS session. Go's client gives up after 10 s as well.
        request_s: From the first byte of a request to its last: the default timeout of a webhook call.
        idle_s: How long a session may wait for a request. Longer than the 90 s after which the API server's client
            drops an idle connection: it must be the one that closes, for a request that crosses our goodbye fails.
        closing_s: How long the peer may take to say goodbye.
        connections: How many there may be. The next one pushes out the one that has been of no use for longest.
        held_bytes: How much of unfinished requests may be held in all.
    """

    handshake_s: float = 10.0
    request_s: float = 10.0
    idle_s: float = 120.0
    closing_s: float = 5.0
    connections: int = 16384
    held_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How a server stops. In all less than the 30 s that a pod is given by default.

    Attributes:
        drain_s: How long to go on accepting after the signal to stop: until every client has heard of it.
        settle_s: How long a connection taken in at the end may take until its request begins.
        finish_s: How long requests that have begun may take.
        goodbye_s: How long peers may take to close their side.
    """

    drain_s: float = 5.0
    settle_s: float = 0.5
    finish_s: float = 12.0
    goodbye_s: float = 1.0

    @property
    def total_s(self) -> float:
        """All of it, and some for the service's threads to end."""
        return self.drain_s + self.settle_s + self.finish_s + self.goodbye_s + 5.0

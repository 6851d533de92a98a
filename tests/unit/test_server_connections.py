from __future__ import annotations

import pytest

from webhook.server.connections import Connections, Phase
from webhook.server.limits import Limits

LIMITS = Limits(handshake_s=10, request_s=20, idle_s=100, closing_s=5, connections=3, held_bytes=100)


class _Peer:
    """A connection that remembers how it ended."""

    def __init__(self, connections: Connections, phase: Phase = Phase.HANDSHAKE) -> None:
        self.phase = phase
        self.ended = ""
        self._connections = connections
        connections.enter(self)

    def expire(self) -> None:
        self.ended = "expired"
        self._connections.leave(self)

    def abort(self) -> None:
        self.ended = "aborted"
        self._connections.leave(self)


class _Clock:
    """Time in the test's hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def connections(clock: _Clock) -> Connections:
    return Connections(LIMITS, clock)


@pytest.mark.parametrize(
    ("phase", "want_last_s"),
    [
        pytest.param(Phase.HANDSHAKE, 10, id="a peer that does not shake hands"),
        pytest.param(Phase.FRESH, 100, id="a spare session"),
        pytest.param(Phase.READING, 20, id="a request that does not end"),
        pytest.param(Phase.IDLE, 100, id="a session between two requests"),
        pytest.param(Phase.CLOSING, 5, id="a peer that does not say goodbye"),
    ],
)
def test_each_phase_has_its_time(connections: Connections, clock: _Clock, phase: Phase, want_last_s: float) -> None:
    peer = _Peer(connections, phase)
    clock.now = want_last_s - 0.1
    connections.expire()
    assert not peer.ended
    clock.now = want_last_s
    connections.expire()
    assert peer.ended == "expired"
    assert len(connections) == 0


def test_a_request_that_is_answered_is_not_ended(connections: Connections, clock: _Clock) -> None:
    peer = _Peer(connections, Phase.SERVING)
    clock.now = 1e9
    connections.expire()
    assert not peer.ended


def test_entering_a_phase_anew_begins_its_time_anew(connections: Connections, clock: _Clock) -> None:
    early, late = _Peer(connections, Phase.IDLE), _Peer(connections, Phase.IDLE)
    clock.now = 60
    connections.move(early, Phase.IDLE)
    clock.now = 120
    connections.expire()
    assert (early.ended, late.ended) == ("", "expired")


def test_a_connection_that_left_stays_away(connections: Connections) -> None:
    peer = _Peer(connections)
    connections.leave(peer)
    connections.move(peer, Phase.IDLE)
    connections.leave(peer)
    assert len(connections) == 0


def test_room_is_made_by_those_that_have_been_of_no_use_for_longest(connections: Connections) -> None:
    used = _Peer(connections, Phase.IDLE)
    silent = [_Peer(connections, Phase.HANDSHAKE), _Peer(connections, Phase.HANDSHAKE)]
    connections.make_room(0)
    assert [peer.ended for peer in (*silent, used)] == ["aborted", "", ""]
    connections.make_room(1)
    assert [peer.ended for peer in (*silent, used)] == ["aborted", "aborted", ""]


def test_no_room_is_made_before_it_is_needed(connections: Connections) -> None:
    peers = [_Peer(connections) for _ in range(2)]
    connections.make_room(0)
    assert [peer.ended for peer in peers] == ["", ""]


def test_nobody_who_is_being_answered_makes_room(connections: Connections) -> None:
    peers = [_Peer(connections, Phase.SERVING) for _ in range(3)]
    connections.make_room(0)
    assert [peer.ended for peer in peers] == ["", "", ""]


def test_those_without_a_request_can_be_ended(connections: Connections) -> None:
    peers = {phase: _Peer(connections, phase) for phase in Phase}
    connections.end_unused()
    ended = {phase for phase, peer in peers.items() if peer.ended}
    assert ended == {Phase.HANDSHAKE, Phase.FRESH, Phase.IDLE}
    assert connections.count(Phase.READING, Phase.SERVING) == 2


def test_memory_is_held_for_all_together_and_given_back(connections: Connections) -> None:
    assert connections.hold(60)
    assert connections.hold(40)
    assert not connections.hold(1)
    connections.hold(-41)
    assert connections.hold(20)

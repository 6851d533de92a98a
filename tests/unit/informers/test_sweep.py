from __future__ import annotations

import logging
import threading

import pytest
from builders import World, pod

from webhook.errors import ApiServerError
from webhook.informers import sweep
from webhook.informers.sweep import SWEEP_AFTER_S, Sweep


class Lookup:
    """What stands in the API server, by namespace and name; an error is raised."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], str | ApiServerError | None] = {}
        self.asked: list[tuple[str, str]] = []
        self.was_asked = threading.Event()

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        assert timeout_s > 0
        self.asked.append((namespace, name))
        self.was_asked.set()
        found = self.stored.get((namespace, name))
        if isinstance(found, ApiServerError):
            raise found
        return found


@pytest.fixture
def world() -> World:
    world = World()
    world.quota(mem=10000)
    return world


@pytest.fixture
def lookup() -> Lookup:
    return Lookup()


def admit(world: World, name: str, mem: int) -> None:
    assert world.admits(pod(name).app("main", mem=mem))


def test_a_young_admission_is_left_alone(world: World, lookup: Lookup):
    admit(world, "a", 4000)
    world.now += SWEEP_AFTER_S - 1
    assert Sweep(world.ledger, lookup).run_once() == 0
    assert lookup.asked == []
    assert world.used() == 4000


@pytest.mark.parametrize(
    ("stored", "want_freed", "want_used"),
    [
        pytest.param(None, 1, 0, id="nothing stands under its name: it never appeared"),
        pytest.param("uid-other", 1, 0, id="another pod has its name: it can never appear"),
        pytest.param("uid-a", 0, 4000, id="it is stored: the informer is late"),
        pytest.param(ApiServerError(503, "busy"), 0, 4000, id="a failed look-up says nothing"),
    ],
)
def test_an_old_admission_is_looked_up(
    world: World, lookup: Lookup, stored: str | ApiServerError | None, want_freed: int, want_used: int
):
    admit(world, "a", 4000)
    world.now += SWEEP_AFTER_S
    lookup.stored["team-a", "a"] = stored
    assert Sweep(world.ledger, lookup).run_once() == want_freed
    assert lookup.asked == [("team-a", "a")]
    assert world.used() == want_used


def test_one_failed_look_up_does_not_keep_the_others_from_theirs(
    world: World, lookup: Lookup, caplog: pytest.LogCaptureFixture
):
    world.quota(namespace="team-b", mem=10000)
    for name in ("a", "b", "c"):
        admit(world, name, 1000)
    assert world.admits(pod("d", namespace="team-b").app("main", mem=1000), namespace="team-b")
    world.now += SWEEP_AFTER_S
    lookup.stored["team-a", "b"] = ApiServerError(0, "connection refused")
    with caplog.at_level(logging.WARNING):
        assert Sweep(world.ledger, lookup).run_once() == 3
    assert caplog.messages == ["pod team-a/b, admitted and not seen, cannot be looked up: connection refused"]
    assert (world.used(), world.used(namespace="team-b")) == (1000, 0)
    # The next round asks about what is left, and about nothing else.
    lookup.asked.clear()
    lookup.stored["team-a", "b"] = None
    assert Sweep(world.ledger, lookup).run_once() == 1
    assert lookup.asked == [("team-a", "b")]
    assert world.used() == 0


def test_a_pod_that_was_seen_is_not_looked_up(world: World, lookup: Lookup):
    admit(world, "a", 4000)
    world.see(pod("a").app("main", mem=4000))
    world.now += 10 * SWEEP_AFTER_S
    assert Sweep(world.ledger, lookup).run_once() == 0
    assert lookup.asked == []
    assert world.used() == 4000


def test_the_thread_sweeps_until_it_is_stopped(world: World, lookup: Lookup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep, "SWEEP_INTERVAL_S", 0.001)
    admit(world, "a", 4000)
    world.now += SWEEP_AFTER_S
    lookup.stored["team-a", "a"] = "uid-a"
    subject = Sweep(world.ledger, lookup)
    subject.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "sweep")
    for _ in range(2):
        assert lookup.was_asked.wait(10)
        lookup.was_asked.clear()
    subject.stop()
    thread.join(10)
    assert not thread.is_alive()

"""A pod's record through its life."""

from __future__ import annotations

from typing import Any

import pytest
from builders import ALLOCATED, CORES, COUNT, MEMORY, PodBuilder, World, backends, device_config, pod

from webhook.devices.registry import load_backends
from webhook.usage import PodRecord, Stage, is_shrink_gate_open, next_record

# One sidecar, one init container, one app, all on one card: 2000, 20000 and 10000 MiB.
WANTED = (
    pod("a").sidecar("proxy", mem=2000, cores=10).init("load", mem=20000, cores=20).app("server", mem=10000, cores=30)
)
PEAK = {MEMORY: 22000, CORES: 40, COUNT: 2}
STEADY = {MEMORY: 12000, CORES: 40, COUNT: 2}
GIVEN = "GPU-a,NVIDIA,2100,10:;GPU-a,NVIDIA,20100,20:;GPU-a,NVIDIA,10100,30:;"
GIVEN_PEAK = {MEMORY: 22200, CORES: 40, COUNT: 2}
GIVEN_STEADY = {MEMORY: 12200, CORES: 40, COUNT: 2}
RUNNING = WANTED.allocated(GIVEN).phase("Running")
DONE = RUNNING.statuses(proxy="running", load=0)


@pytest.fixture
def world() -> World:
    return World()


def facts(record: PodRecord | None) -> tuple[Stage, dict[str, int]]:
    """Return the stage of a record and what it contributes."""
    assert record is not None
    return record.stage, dict(record.charge)


def test_a_pod_goes_from_pending_to_allocated_to_shrunk_to_released(world: World) -> None:
    assert facts(world.see(WANTED)) == (Stage.PENDING, PEAK)
    assert facts(world.see(RUNNING)) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert facts(world.see(RUNNING.statuses(proxy="running", load="running"))) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert facts(world.see(DONE)) == (Stage.SHRUNK, GIVEN_STEADY)
    assert world.see(DONE.phase("Succeeded")) is None
    assert world.ledger.records("team-a") == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(world: World, phase: str) -> None:
    assert world.see(RUNNING.phase(phase)) is None


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "SomethingNew"])
def test_a_pod_in_any_other_phase_holds_what_it_has(world: World, phase: str) -> None:
    assert facts(world.see(RUNNING.phase(phase))) == (Stage.ALLOCATED, GIVEN_PEAK)


def test_a_pod_that_asks_for_nothing_of_ours_has_no_record(world: World) -> None:
    assert world.see(pod("a").app("server", limits={"cpu": "1"})) is None


def test_a_pod_that_asks_for_nothing_and_is_said_to_hold_cards_has_one(world: World) -> None:
    subject = pod("a").app("server").allocated("GPU-a,NVIDIA,4000,10:;")

    assert facts(world.see(subject)) == (Stage.ALLOCATED, {MEMORY: 4000, CORES: 10, COUNT: 1})


def test_pending_pods_shrink_by_the_same_gate(world: World) -> None:
    assert facts(world.see(WANTED.statuses(load=0))) == (Stage.SHRUNK, STEADY)


def test_what_was_shrunk_never_grows_back(world: World) -> None:
    """A sandbox that is rebuilt runs its init containers again; the gate stays open (A15)."""
    world.see(DONE)

    assert facts(world.see(RUNNING.statuses(proxy="running", load="running"))) == (Stage.SHRUNK, GIVEN_STEADY)
    assert facts(world.see(RUNNING)) == (Stage.SHRUNK, GIVEN_STEADY)


def test_a_crash_looping_sidecar_changes_nothing(world: World) -> None:
    for state in ("running", 1, "waiting", 137, {"lastState": {"terminated": {"exitCode": 1}}}):
        assert facts(world.see(RUNNING.statuses(proxy=state, load="running"))) == (Stage.ALLOCATED, GIVEN_PEAK)
    for state in ("running", 1, "waiting", 0, None):
        assert facts(world.see(RUNNING.statuses(proxy=state, load=0))) == (Stage.SHRUNK, GIVEN_STEADY)


def test_a_sidecars_exit_0_gap_does_not_open_the_gate(world: World) -> None:
    """It would drop the sidecar's own use, though it is about to run again."""
    assert facts(world.see(RUNNING.statuses(proxy=0, load="running"))) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert facts(world.see(RUNNING.statuses(proxy=0, load=0))) == (Stage.SHRUNK, GIVEN_STEADY)


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(RUNNING.statuses(load=1), False, id="an init container that failed holds"),
        pytest.param(RUNNING.statuses(load=137), False, id="one that was killed too"),
        pytest.param(RUNNING.statuses(load="waiting"), False, id="one that waits too"),
        pytest.param(RUNNING.statuses(load=None), False, id="one without a state too"),
        pytest.param(RUNNING.statuses(proxy=0), False, id="a missing status too"),
        pytest.param(RUNNING, False, id="no statuses too"),
        pytest.param(RUNNING.statuses(load=0), True, id="exit 0 opens it"),
        pytest.param(RUNNING.statuses(load=0, stranger=1), True, id="a status of nobody has no say"),
        pytest.param(
            RUNNING.statuses(load={"lastState": {"terminated": {"exitCode": 0}}, "state": {"running": {}}}),
            False,
            id="the last state is never read",
        ),
        pytest.param(
            pod().init("i1", mem=1).init("i2", mem=1).app("a").statuses(i1=0), False, id="one of two is missing"
        ),
        pytest.param(
            pod().init("i1", mem=1).init("i2", mem=1).app("a").statuses(i2=0, i1=0), True, id="both, in any order"
        ),
        pytest.param(pod().sidecar("s", mem=1).app("a"), True, id="sidecars alone: open at once"),
    ],
)
def test_the_gate_opens_when_every_init_container_has_ended_with_0(subject: PodBuilder, want: bool) -> None:
    assert is_shrink_gate_open(subject.build()) is want


def test_with_sidecars_alone_the_shrink_changes_nothing(world: World) -> None:
    subject = pod("a").sidecar("proxy", mem=2000).app("server", mem=3000)

    assert facts(world.see(subject)) == (Stage.PENDING, {MEMORY: 5000, COUNT: 2})
    assert facts(world.see(subject.statuses(proxy="running"))) == (Stage.PENDING, {MEMORY: 5000, COUNT: 2})


def test_an_init_container_on_another_card_adds_to_what_is_recorded(world: World) -> None:
    subject = pod("a").init("i", mem=6000).app("a", mem=4000).allocated("GPU-a,NVIDIA,6000,0:;GPU-b,NVIDIA,4000,0:;")

    assert facts(world.see(subject)) == (Stage.ALLOCATED, {MEMORY: 10000, COUNT: 2})
    assert facts(world.see(subject.statuses(i=0))) == (Stage.SHRUNK, {MEMORY: 4000, COUNT: 1})


def test_two_instances_of_an_init_container_on_one_card_are_two(world: World) -> None:
    """HAMi takes the larger of them (A16); each is memory that is taken."""
    text = "GPU-a,NVIDIA,3000,10:GPU-a,NVIDIA,8000,10:;GPU-a,NVIDIA,500,10:;"
    subject = pod("a").init("load", gpu=2, mem=3000).app("server", mem=500).allocated(text)

    assert facts(world.see(subject)) == (Stage.ALLOCATED, {MEMORY: 11000, CORES: 20, COUNT: 2})


def test_the_same_event_again_changes_nothing(world: World) -> None:
    first = world.see(DONE)
    version = world.ledger._books["team-a"].version

    assert world.see(DONE) == first
    assert world.ledger._books["team-a"].version == version


def test_a_rewritten_annotation_is_collapsed_again(world: World) -> None:
    world.see(DONE)
    text = "GPU-a,NVIDIA,1,0:;GPU-a,NVIDIA,2,0:;GPU-a,NVIDIA,4,0:;"

    assert facts(world.see(DONE.allocated(text))) == (Stage.SHRUNK, {MEMORY: 5, COUNT: 2})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("GPU-a,NVIDIA,2100", id="a field is missing"),
        pytest.param("garbage:;", id="garbage without commas, which HAMi counts as nothing (A19)"),
        pytest.param("GPU-a,NVIDIA,-2100,10:;GPU-a,NVIDIA,1,1:;GPU-a,NVIDIA,1,1:;", id="negative figures (A35)"),
        pytest.param("GPU-a,NVIDIA,2100,10:;", id="a number of segments that fits no layout"),
    ],
)
def test_an_annotation_that_does_not_decode_keeps_the_last_figure(world: World, text: str) -> None:
    before = world.see(RUNNING)
    after = world.see(RUNNING.allocated(text))

    assert facts(after) == facts(before) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert after is not None
    assert after.problem.startswith(ALLOCATED)


@pytest.mark.parametrize("text", ["GPU-a,NVIDIA,2100", "garbage:;", "GPU-a,NVIDIA,-1,0:;;;", "GPU-a,NVIDIA,2100,10:;"])
def test_an_annotation_that_never_decoded_leaves_the_pods_own_request(world: World, text: str) -> None:
    record = world.see(WANTED.allocated(text))

    assert facts(record) == (Stage.PENDING, PEAK)
    assert record is not None
    assert record.problem.startswith(ALLOCATED)


def test_an_annotation_that_vanishes_keeps_the_last_figure_and_is_told(world: World) -> None:
    world.see(RUNNING)
    after = world.see(WANTED.phase("Running"))

    assert facts(after) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert after is not None
    assert after.problem


def test_a_figure_that_was_kept_shrinks_with_the_pod(world: World) -> None:
    world.see(RUNNING)
    world.see(RUNNING.allocated("garbage"))

    assert facts(world.see(DONE.allocated("garbage"))) == (Stage.SHRUNK, GIVEN_STEADY)


def test_after_a_restart_a_figure_that_does_not_decode_is_the_pods_own_request_at_steady_state() -> None:
    assert facts(World().see(DONE.allocated("garbage"))) == (Stage.SHRUNK, STEADY)


def test_a_text_that_decodes_again_is_believed_again(world: World) -> None:
    world.see(RUNNING.allocated("garbage"))
    record = world.see(RUNNING)

    assert facts(record) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert record is not None
    assert record.problem == ""


def test_a_terminating_pod_keeps_what_it_holds_until_it_is_gone(world: World) -> None:
    record = world.see(RUNNING.deleting("2026-01-01T00:00:30Z"))

    assert facts(record) == (Stage.ALLOCATED, GIVEN_PEAK)
    assert record is not None
    assert record.terminating_since == "2026-01-01T00:00:30Z"

    world.gone(RUNNING)
    assert world.ledger.records("team-a") == {}


def test_a_terminating_pod_first_seen_after_a_restart_is_counted() -> None:
    assert facts(World().see(RUNNING.deleting())) == (Stage.ALLOCATED, GIVEN_PEAK)


def test_a_terminating_pod_still_shrinks(world: World) -> None:
    world.see(RUNNING)

    assert facts(world.see(DONE.deleting())) == (Stage.SHRUNK, GIVEN_STEADY)


def test_a_restart_finds_a_shrunk_pod_shrunk() -> None:
    """HAMi books it at its peak until its next update (A22)."""
    assert facts(World().see(DONE)) == (Stage.SHRUNK, GIVEN_STEADY)


def test_a_sparse_annotation_is_laid_at_the_containers_that_ask() -> None:
    """Some HAMi releases leave empty segments out (A13): read by position, the app would be an init container."""
    subject = pod("a").init("prep").app("server", mem=4000).app("idle")
    dense = subject.allocated(";GPU-a,NVIDIA,4000,0:;;")
    sparse = subject.allocated("GPU-a,NVIDIA,4000,0:;")

    for given in (dense, sparse):
        assert facts(World().see(given)) == (Stage.ALLOCATED, {MEMORY: 4000, COUNT: 1})
        assert facts(World().see(given.statuses(prep=0))) == (Stage.SHRUNK, {MEMORY: 4000, COUNT: 1})


@pytest.mark.parametrize("asks", [{"mem": "16Gi"}, {"pct": "16Gi"}])
def test_a_pod_that_asks_what_cannot_be_used_is_told_and_contributes_what_is_recorded(
    world: World, asks: dict[str, Any]
) -> None:
    subject = pod("a").app("server", **asks)
    record = world.see(subject)
    assert record is not None
    assert dict(record.charge) == {}
    assert "16Gi" in record.problem

    assert facts(world.see(subject.allocated("GPU-a,NVIDIA,16000,0:;"))) == (Stage.ALLOCATED, {MEMORY: 16000, COUNT: 1})


def test_a_family_that_is_not_recorded_yet_counts_with_the_pods_own_request() -> None:
    hygon = "hygon: {resourceCountName: hygon.com/dcunum, resourceMemoryName: hygon.com/dcumem}\n"
    world = World(load_backends(device_config() + hygon))
    other = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "500"}
    subject = pod("a").init("load", limits=other, mem=7).app("server", mem=4000)

    record = world.see(subject.allocated("GPU-a,NVIDIA,8,0:;GPU-a,NVIDIA,4100,0:;"))

    assert record is not None
    assert dict(record.figure.peak) == {MEMORY: 4100, COUNT: 1, "hygon.com/dcunum": 1, "hygon.com/dcumem": 500}
    assert dict(record.figure.steady) == {MEMORY: 4100, COUNT: 1}


def test_an_estimate_keeps_the_pod_to_be_sized_anew_and_an_allocation_does_not(world: World) -> None:
    subject = pod("a").app("server", pct=50)

    estimated = world.see(subject)
    assert estimated is not None
    assert estimated.estimated == subject.build()
    assert [record.uid for _, record in world.ledger.estimated()] == ["uid-a"]

    allocated = world.see(subject.allocated("GPU-a,NVIDIA,20000,0:;"))
    assert allocated is not None
    assert allocated.estimated is None
    assert world.ledger.estimated() == []


def test_an_estimate_follows_the_registered_cards(world: World) -> None:
    subject = pod("a").app("server", pct=50)
    world.see(subject)
    world.node("node-1", 40000)

    assert facts(world.see(subject)) == (Stage.PENDING, {MEMORY: 20000, COUNT: 1})

    world.node("node-1", 80000)
    assert facts(world.see(subject)) == (Stage.PENDING, {MEMORY: 40000, COUNT: 1})


def test_a_recorded_figure_does_not_follow_the_cards(world: World) -> None:
    subject = pod("a").app("server", pct=50).allocated("GPU-a,NVIDIA,20000,0:;")
    world.node("node-1", 80000)

    assert facts(world.see(subject)) == (Stage.ALLOCATED, {MEMORY: 20000, COUNT: 1})


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(WANTED, {}, id="pending"),
        pytest.param(WANTED.statuses(load=0), {}, id="pending and shrunk"),
        pytest.param(RUNNING, GIVEN_PEAK, id="allocated"),
        pytest.param(WANTED.allocated("garbage"), {}, id="an annotation that never decoded"),
    ],
)
def test_pending_pods_count_nothing_where_hamis_laxness_is_wanted(subject: PodBuilder, want: dict[str, Any]) -> None:
    record = World(hami_compat=True).see(subject)

    assert record is not None
    assert dict(record.charge) == want


def test_a_record_holds_what_scopes_ask(world: World) -> None:
    record = world.see(WANTED.spec(priorityClassName="high", activeDeadlineSeconds=5))

    assert record is not None
    assert record.facts.priority_class == "high"
    assert record.facts.is_terminating


def test_a_record_is_a_function_of_the_pod_and_the_record_before(world: World) -> None:
    subject = DONE.build()
    inventory = world.ledger.inventory
    before = next_record(None, RUNNING.build(), world.usage, inventory)

    assert next_record(before, subject, world.usage, inventory) == next_record(before, subject, world.usage, inventory)
    assert before == next_record(None, RUNNING.build(), world.usage, inventory)


def test_memory_is_recorded_in_mib_whatever_the_factor() -> None:
    world = World(backends(memoryFactor=10))
    subject = pod("a").app("server", mem=60)

    assert facts(world.see(subject)) == (Stage.PENDING, {MEMORY: 600, COUNT: 1})
    assert facts(world.see(subject.allocated("GPU-a,NVIDIA,600,0:;"))) == (Stage.ALLOCATED, {MEMORY: 600, COUNT: 1})

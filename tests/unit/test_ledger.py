"""The ledger: reservations, records, seats and versions. Its laws are under tests/property."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from builders import CORES, COUNT, MEMORY, World, node, pod, quota_object

from webhook.errors import Undecided
from webhook.ledger import QuotaSnapshot, Reservation
from webhook.policy import Mode
from webhook.quotas import read_quota, scope_facts

POD = pod("a").app("server", mem=4000)
FACTS = scope_facts(POD.build())


@dataclass
class Answer:
    """The least that `update` needs of a decision."""

    reservation: Reservation | None


def reservation(uid: str = "uid-a", mem: int = 4000, name: str = "a", admitted_at: float = 1000.0) -> Reservation:
    """Return a reservation of memory."""
    return Reservation(uid=uid, name=name, facts=FACTS, charge={MEMORY: mem}, admitted_at=admitted_at)


@pytest.fixture
def world() -> World:
    """A world with room for 10000 MiB in team-a."""
    world = World()
    world.quota(mem=10_000)
    return world


# From reservation to record.


def test_an_admitted_pod_is_reserved_until_it_is_seen(world: World) -> None:
    world.create(POD)
    assert world.ledger.reservations("team-a").keys() == {"uid-a"}
    assert world.used() == 4000

    world.see(POD)
    assert world.ledger.reservations("team-a") == {}
    assert world.ledger.records("team-a").keys() == {"uid-a"}
    assert world.used() == 4000

    world.gone(POD)
    assert world.used() == 0


def test_a_reservation_is_given_back_once(world: World) -> None:
    world.create(POD)

    assert world.ledger.forget("team-a", "uid-a") is True
    assert world.ledger.forget("team-a", "uid-a") is False
    assert world.used() == 0


def test_forgetting_does_not_touch_a_record(world: World) -> None:
    world.see(POD)

    assert world.ledger.forget("team-a", "uid-a") is False
    assert world.used() == 4000


def test_the_same_request_again_reserves_once(world: World) -> None:
    """The API server calls again after a timeout, with the same pod UID."""
    for _ in range(3):
        assert world.admits(POD)
    assert world.used() == 4000


def test_the_same_pod_asked_again_with_another_size_reserves_the_larger(world: World) -> None:
    """Whoever reaches the port could else free what another pod holds, by asking for less in its name."""
    assert world.admits(pod("a").app("server", mem=9000))
    assert world.admits(POD)
    assert world.used() == 9000
    assert world.admits(pod("a").app("server", mem=10_000))
    assert world.used() == 10_000


def test_a_pod_seen_before_its_answer_left_is_not_reserved_again(world: World) -> None:
    world.see(POD)

    assert world.admits(POD)
    assert world.ledger.reservations("team-a") == {}
    assert world.used() == 4000


def test_a_pod_that_ended_before_it_was_seen_gives_its_reservation_back(world: World) -> None:
    world.create(POD)
    world.see(POD.phase("Failed"))

    assert world.used() == 0
    assert world.ledger.reservations("team-a") == {}


def test_a_pod_deleted_before_it_was_seen_gives_its_reservation_back(world: World) -> None:
    world.create(POD)
    world.gone(POD)

    assert world.used() == 0


def test_an_unknown_pod_that_is_deleted_changes_nothing(world: World) -> None:
    world.see(POD)
    world.gone(pod("unknown").app("server", mem=5000))

    assert world.used() == 4000


def test_late_deletes_and_replays_release_once(world: World) -> None:
    other = pod("b").app("server", mem=3000)
    world.see(POD)
    world.see(other)
    for _ in range(3):
        world.see(POD.phase("Succeeded"))
        world.gone(POD)

    assert world.used() == 3000


def test_a_pod_admitted_without_a_name_and_seen_with_one_is_one_pod(world: World) -> None:
    unnamed = POD.metadata(name=None, generateName="job-")
    assert world.admits(unnamed)

    world.see(POD.metadata(name="job-x7k2p", generateName="job-"))
    assert world.used() == 4000
    assert world.ledger.statistics().reservations == 0

    world.gone(POD)
    assert world.used() == 0


def test_a_record_may_change_its_name(world: World) -> None:
    """It never does in a cluster; snapshots written by hand may hold it."""
    world.see(POD)
    world.see(POD.metadata(name="b"))

    assert world.used() == 4000
    world.gone(POD)
    assert world.used() == 0


# Seats: at most one pod of a name can be stored.


def test_claims_of_one_name_are_one_seat_and_the_largest_counts(world: World) -> None:
    """A StatefulSet's pod that native admission refuses comes again under its name with another UID."""
    for number in range(5):
        assert world.admits(POD.metadata(uid=f"uid-{number}"))
    assert world.used() == 4000

    assert world.admits(pod("a").app("server", mem=6000).metadata(uid="uid-large"))
    assert world.used() == 6000

    world.ledger.forget("team-a", "uid-large")
    assert world.used() == 4000


def test_a_seat_counts_the_largest_amount_by_amount() -> None:
    world = World()
    world.quota(mem=10_000, cores=100)
    world.create(pod("a").app("server", mem=4000, cores=10).metadata(uid="uid-1"))
    world.create(pod("a").app("server", mem=1000, cores=60).metadata(uid="uid-2"))

    assert (world.used("mem"), world.used("cores")) == (4000, 60)


def test_pods_without_a_name_share_no_seat(world: World) -> None:
    for number in range(2):
        assert world.admits(POD.metadata(uid=f"uid-{number}", name=None, generateName="job-"))

    assert world.used() == 8000


def test_names_of_two_namespaces_are_two(world: World) -> None:
    world.quota(namespace="team-b", mem=10_000)
    world.create(POD)
    world.create(POD.metadata(uid="uid-b"), namespace="team-b")

    assert (world.used(), world.used(namespace="team-b")) == (4000, 4000)


def test_a_seat_that_is_larger_than_a_new_claim_is_what_is_compared(world: World) -> None:
    """Whichever of the two is stored, the larger may be: under a limit that was lowered neither has room."""
    world.see(pod("big").app("server", mem=6000))
    world.create(POD)
    small = pod("a").app("server", mem=1).metadata(uid="uid-small")
    assert world.admits(small, dry_run=True)

    world.quota(mem=9000)
    denied = world.create(small)

    assert [(item.requested, item.used, item.limit) for item in denied.exceeded] == [(4000, 6000, 9000)]


# Versions.


def test_a_decision_runs_again_when_the_namespace_changed_under_it(world: World) -> None:
    seen: list[int] = []

    def decide(snapshot: QuotaSnapshot) -> Answer:
        seen.append(snapshot.uses[0].used.get(MEMORY, 0))
        if len(seen) == 1:
            world.see(pod("other").app("server", mem=7000))
        return Answer(None if seen[-1] else reservation())

    answer = world.ledger.update("team-a", "uid-a", "a", decide)

    assert seen == [0, 7000]
    assert answer.reservation is None
    assert world.used() == 7000
    assert world.ledger.statistics().conflicts == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.create(pod("b").app("server", mem=1)), id="a reservation"),
        pytest.param(lambda world: world.see(pod("b").app("server", mem=1)), id="a record"),
        pytest.param(lambda world: world.quota(mem=5), id="a quota"),
        pytest.param(lambda world: world.quota("new", cores=5), id="a new quota"),
        pytest.param(lambda world: world.no_quota(), id="a deleted quota"),
        pytest.param(lambda world: world.ledger.set_mode_label("team-a", "off"), id="the mode"),
        pytest.param(lambda world: world.node("node-1", 40000), id="the registered cards"),
        pytest.param(lambda world: world.ledger.forget("team-a", "uid-held"), id="a reservation given back"),
        pytest.param(lambda world: world.gone(pod("known").app("server", mem=1)), id="a released pod"),
    ],
)
def test_whatever_a_decision_reads_makes_it_run_again(world: World, change) -> None:
    world.create(pod("held").app("server", mem=1))
    world.see(pod("known").app("server", mem=1))
    runs: list[QuotaSnapshot] = []

    def decide(snapshot: QuotaSnapshot) -> Answer:
        runs.append(snapshot)
        if len(runs) == 1:
            change(world)
        return Answer(reservation())

    world.ledger.update("team-a", "uid-a", "a", decide)

    assert len(runs) == 2


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda world: world.see(pod("b", namespace="team-b").app("server", mem=1)), id="another namespace"
        ),
        pytest.param(lambda world: world.quota(mem=10_000), id="a quota that says what it said"),
        pytest.param(lambda world: world.see(pod("known").app("server", mem=1)), id="a record that says what it said"),
        pytest.param(lambda world: world.gone(pod("unknown").app("server", mem=1)), id="an unknown pod that is gone"),
    ],
)
def test_what_changes_nothing_costs_no_second_run(world: World, change) -> None:
    world.see(pod("known").app("server", mem=1))
    runs: list[QuotaSnapshot] = []

    def decide(snapshot: QuotaSnapshot) -> Answer:
        runs.append(snapshot)
        change(world)
        return Answer(reservation())

    world.ledger.update("team-a", "uid-a", "a", decide)

    assert len(runs) == 1


def test_a_denial_is_not_run_again(world: World) -> None:
    runs = []

    def decide(snapshot: QuotaSnapshot) -> Answer:
        runs.append(snapshot)
        world.see(pod(f"other-{len(runs)}").app("server", mem=1))
        return Answer(None)

    world.ledger.update("team-a", "uid-a", "a", decide)

    assert len(runs) == 1


def test_a_namespace_that_never_rests_is_undecided_and_nothing_is_reserved(world: World) -> None:
    runs = []

    def decide(snapshot: QuotaSnapshot) -> Answer:
        runs.append(snapshot)
        world.see(pod("other").app("server", mem=len(runs)))
        return Answer(reservation())

    with pytest.raises(Undecided, match="namespace team-a changed 100 times"):
        world.ledger.update("team-a", "uid-a", "a", decide)

    assert world.ledger.reservations("team-a") == {}


def test_a_decision_that_fails_reserves_nothing_and_leaves_the_namespace_usable(world: World) -> None:
    def decide(snapshot: QuotaSnapshot) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.ledger.update("team-a", "uid-a", "a", decide)

    assert world.admits(POD)


def test_a_change_that_fails_leaves_the_namespace_usable(world: World) -> None:
    def change(previous: object, inventory: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.ledger.record_pod("team-a", "uid-a", change)

    assert world.admits(POD)


# Quotas.


def test_a_quota_is_replaced_in_one_step(world: World) -> None:
    """There is no instant without a limit: whoever looks meanwhile finds the old one or the new one."""
    world.create(POD)
    found: list[int] = []
    looking, is_over = threading.Event(), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found.extend(use.quota.limits[MEMORY] for use in world.ledger.snapshot("team-a").uses or [None])
            looking.set()

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(look)
        assert looking.wait(10)
        for turn in range(300):
            world.quota(mem=10_000 + turn % 2)
        is_over.set()
        work.result(10)

    assert set(found) <= {10_000, 10_001}


def test_a_replaced_quota_has_the_new_limits_and_the_use_there_was(world: World) -> None:
    world.create(POD)

    world.quota(mem=8000, cores=50)

    [use] = world.ledger.snapshot("team-a").uses
    assert dict(use.quota.limits) == {MEMORY: 8000, CORES: 50}
    assert dict(use.used) == {MEMORY: 4000}


def test_a_quota_made_later_finds_its_use_at_once() -> None:
    world = World()
    world.see(POD.spec(priorityClassName="batch"))
    world.see(pod("b").app("server", mem=3000, cores=20))
    selector = [{"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}]

    world.quota("all", mem=10_000, cores=100, gpu=5)
    world.quota("batch", mem=10_000, selector=selector)

    assert world.ledger.totals("team-a") == {
        "all": {MEMORY: 7000, CORES: 20, COUNT: 2},
        "batch": {MEMORY: 4000},
    }


def test_each_quota_counts_for_itself(world: World) -> None:
    world.quota("cores", cores=100)
    world.create(pod("a").app("server", mem=4000, cores=30))
    assert world.ledger.totals("team-a") == {"gpu-cap": {MEMORY: 4000}, "cores": {CORES: 30}}

    world.no_quota("gpu-cap")
    assert world.ledger.totals("team-a") == {"cores": {CORES: 30}}


def test_a_pod_that_crosses_into_a_scope_is_counted_there(world: World) -> None:
    world.quota("short", mem=1000, scopes=["Terminating"])
    world.see(POD)
    assert world.used(quota="short") == 0

    world.see(POD.spec(activeDeadlineSeconds=60))
    assert world.used(quota="short") == 4000

    world.see(POD)
    assert world.used(quota="short") == 0


def test_setting_a_quota_says_whether_it_changed_anything(world: World) -> None:
    same = read_quota(quota_object(mem=10_000), world.rules.keys)
    other = read_quota(quota_object(mem=10_001), world.rules.keys)

    assert world.ledger.set_quota("team-a", same) is False
    assert world.ledger.set_quota("team-a", other) is True


def test_dropping_an_unknown_quota_changes_nothing(world: World) -> None:
    world.no_quota("unknown")

    assert world.ledger.quotas("team-a").keys() == {"gpu-cap"}


# Snapshots.


def test_a_snapshot_leaves_the_pod_in_question_out_and_tells_its_seat_apart(world: World) -> None:
    world.create(POD)
    world.create(pod("a").app("server", mem=1000).metadata(uid="uid-earlier"))
    world.see(pod("b").app("server", mem=3000))

    [use] = world.ledger.snapshot("team-a", "uid-a", "a").uses

    assert dict(use.used) == {MEMORY: 3000}
    assert dict(use.seat) == {MEMORY: 1000}


def test_a_snapshot_does_not_change_with_the_ledger(world: World) -> None:
    before = world.ledger.snapshot("team-a")
    world.create(POD)
    world.quota(mem=1)

    assert dict(before.uses[0].used) == {}
    assert dict(before.uses[0].quota.limits) == {MEMORY: 10_000}


def test_a_snapshot_says_how_much_of_the_use_is_being_deleted(world: World) -> None:
    world.see(POD.deleting())
    world.see(pod("b").app("server", mem=3000))
    [use] = world.ledger.snapshot("team-a").uses

    assert (dict(use.used), dict(use.terminating)) == ({MEMORY: 7000}, {MEMORY: 4000})

    world.gone(POD)
    assert dict(world.ledger.snapshot("team-a").uses[0].terminating) == {}


def test_a_snapshot_has_the_mode_of_the_namespaces_label() -> None:
    world = World(default_mode=Mode.WARN)
    assert world.ledger.snapshot("team-a").mode is Mode.WARN

    world.ledger.set_mode_label("team-a", "audit")
    assert world.ledger.snapshot("team-a").mode is Mode.AUDIT

    world.ledger.set_mode_label("team-a", None)
    assert world.ledger.snapshot("team-a").mode is Mode.WARN


def test_only_other_admissions_of_the_age_are_to_be_looked_up() -> None:
    world = World(lookup_after_s=10)
    world.quota(mem=100_000)
    world.create(POD)
    world.now += 5
    world.create(pod("b").app("server", mem=1))
    world.now += 5

    assert [item.uid for item in world.ledger.snapshot("team-a").unseen] == ["uid-a"]
    assert [item.uid for item in world.ledger.snapshot("team-a", "uid-a", "a").unseen] == []
    assert [(namespace, item.uid) for namespace, item in world.ledger.unseen(10)] == [("team-a", "uid-a")]

    world.now += 5
    assert [item.uid for item in world.ledger.snapshot("team-a").unseen] == ["uid-a", "uid-b"]
    assert world.ledger.unseen(16) == []


def test_the_age_of_an_admission_begins_anew_with_its_last_review() -> None:
    world = World(lookup_after_s=10)
    world.quota(mem=100_000)
    world.create(POD)
    world.create(pod("b").app("server", mem=1))
    world.now += 9
    world.create(POD)
    world.now += 1

    assert [item.uid for item in world.ledger.snapshot("team-a").unseen] == ["uid-b"]


# Namespaces.


def test_a_namespace_that_is_gone_is_forgotten(world: World) -> None:
    world.no_quota()
    world.ledger.set_mode_label("team-a", "off")
    world.ledger.drop_namespace("team-a")

    assert world.ledger.namespaces() == []
    assert world.ledger.statistics().namespaces == 0
    assert world.ledger.snapshot("team-a").mode is Mode.ENFORCE


def test_what_the_pods_of_a_namespace_still_hold_stays_until_they_are_gone(world: World) -> None:
    world.see(POD)
    world.ledger.drop_namespace("team-a")
    assert world.used() == 4000

    world.gone(POD)
    world.no_quota()
    assert world.ledger.namespaces() == []


def test_what_was_admitted_into_a_namespace_stays_too(world: World) -> None:
    world.create(POD)
    world.no_quota()
    world.ledger.drop_namespace("team-a")

    assert world.ledger.reservations("team-a").keys() == {"uid-a"}


def test_a_namespace_that_is_looked_at_does_not_appear() -> None:
    world = World()
    world.ledger.snapshot("nobody")
    world.ledger.totals("nobody")

    assert world.ledger.namespaces() == []


def test_a_namespace_made_anew_under_a_decision_is_decided_on_anew(world: World) -> None:
    """Its book starts from the first version again, and a decision on the old one must not pass for one on the new."""
    seen: list[dict[str, int]] = []

    def decide(snapshot: QuotaSnapshot) -> Answer:
        seen.append(dict(snapshot.uses[0].quota.limits))
        if len(seen) == 1:
            world.no_quota()
            world.ledger.drop_namespace("team-a")
            world.quota(mem=1)
        return Answer(reservation())

    world.ledger.update("team-a", "uid-a", "a", decide)

    assert seen == [{MEMORY: 10_000}, {MEMORY: 1}]


class Turnstile:
    """A lock whose first comer is held up before it gets in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_first = True
        self.is_reached, self.may_pass = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        if self._is_first:
            self._is_first = False
            self.is_reached.set()
            assert self.may_pass.wait(10)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_namespace_dropped_while_someone_waits_for_it_is_made_anew() -> None:
    """Whoever found the old book before it was dropped must not write into what nobody will read again."""
    world = World()
    world.ledger.snapshot("team-a")
    turnstile = world.ledger._books["team-a"].lock = Turnstile()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.see, POD)
        assert turnstile.is_reached.wait(10)
        world.ledger.drop_namespace("team-a")
        turnstile.may_pass.set()
        waiting.result(10)

    assert world.ledger.records("team-a").keys() == {"uid-a"}


def test_a_namespace_dropped_by_some_while_others_use_it_loses_nothing() -> None:
    world = World()
    threads, rounds = 8, 60
    barrier = threading.Barrier(2 * threads)

    def use(number: int) -> None:
        subject = pod(f"p{number}").app("server", mem=number + 1)
        barrier.wait()
        for _ in range(rounds):
            world.see(subject)
            world.gone(subject)
        world.see(subject)

    def drop() -> None:
        barrier.wait()
        for _ in range(rounds):
            world.ledger.drop_namespace("team-a")

    with ThreadPoolExecutor(2 * threads) as pool:
        work = [pool.submit(use, number) for number in range(threads)] + [pool.submit(drop) for _ in range(threads)]
        for one in work:
            one.result()

    assert world.ledger.records("team-a").keys() == {f"uid-p{number}" for number in range(threads)}
    world.quota(mem=10_000)
    assert world.used() == sum(range(threads + 1))


# Many at once.


def test_a_burst_is_admitted_up_to_the_limit_and_no_further(world: World) -> None:
    count = 16
    barrier = threading.Barrier(count)

    def create(number: int) -> bool:
        subject = pod(f"p{number}").app("server", mem=4000)
        barrier.wait()
        return world.admits(subject)

    with ThreadPoolExecutor(count) as pool:
        allowed = list(pool.map(create, range(count)))

    assert sum(allowed) == 2
    assert world.used() == 8000


def test_a_burst_of_one_pod_is_one_pod(world: World) -> None:
    count = 16
    barrier = threading.Barrier(count)

    def create(_: int) -> bool:
        barrier.wait()
        return world.admits(POD)

    with ThreadPoolExecutor(count) as pool:
        assert all(pool.map(create, range(count)))

    assert world.used() == 4000
    assert world.ledger.statistics().reservations == 1


def test_namespaces_do_not_wait_for_each_other(world: World) -> None:
    """While one decision takes its time, another namespace is decided and events of both are applied."""
    world.quota(namespace="team-b", mem=10_000)
    started, go_on = threading.Event(), threading.Event()

    def slow(snapshot: QuotaSnapshot) -> Answer:
        started.set()
        assert go_on.wait(10)
        return Answer(None)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(partial(world.ledger.update, "team-a", "uid-slow", "slow", slow))
        assert started.wait(10)
        try:
            assert world.admits(POD, namespace="team-b")
            world.see(POD)
            assert world.admits(pod("c").app("server", mem=1))
        finally:
            go_on.set()
        waiting.result(10)


def test_figures_about_the_ledger_itself(world: World) -> None:
    world.create(POD)
    world.see(pod("b", namespace="team-b").app("server", mem=1))
    statistics = world.ledger.statistics()

    assert (statistics.namespaces, statistics.quotas, statistics.records, statistics.reservations) == (2, 1, 1, 1)
    assert world.ledger.namespaces() == ["team-a", "team-b"]


def test_nodes_without_cards_are_not_kept(world: World) -> None:
    world.node("node-1", 40000)
    world.node("node-2")
    assert world.ledger.nodes() == ["node-1"]

    world.node("node-1")
    assert world.ledger.nodes() == []


def test_setting_a_node_says_whether_anything_changed(world: World) -> None:
    cards = {"NVIDIA": world.rules.backends[0].cards(node("node-1", 40000))}

    assert world.ledger.set_node("node-1", cards) is True
    assert world.ledger.set_node("node-1", cards) is False
    assert world.ledger.set_node("node-1", {}) is True
    assert world.ledger.set_node("node-1", {}) is False


def test_a_namespace_that_a_review_merely_named_is_forgotten(world: World) -> None:
    world.ledger.snapshot("nowhere")
    world.ledger.prune()
    assert "nowhere" not in world.ledger._books
    assert "team-a" in world.ledger._books

"""The law of the ledger: its totals are the sum over the claims, after any order of events, from many threads."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders import CORES, COUNT, MEMORY, PodBuilder, World, pod
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from property.strategies import allocations, pods, statuses
from webhook.ledger import QuotaLedger
from webhook.policy import Mode
from webhook.reports.usage import namespace_use
from webhook.usage import next_record

NAMES = ("a", "b", "c")
UIDS = ("u0", "u1", "u2", "u3", "u4")
QUOTAS = ("all", "batch", "short")
SCOPES = {
    "all": {},
    "batch": {"selector": [{"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}]},
    "short": {"scopes": ["Terminating"]},
}


def expected(ledger: QuotaLedger, namespace: str = "team-a") -> dict[str, dict[str, int]]:
    """Return the totals by quota, worked out from nothing but the claims that the ledger shows.

    A record wins over a reservation of its UID, and of the claims of one name the largest counts, amount by amount.
    """
    claims = {**ledger.reservations(namespace), **ledger.records(namespace)}
    totals = {}
    for name, quota in ledger.quotas(namespace).items():
        seats: dict[str, dict[str, int]] = defaultdict(dict)
        for uid, claim in claims.items():
            if quota.applies_to(claim.facts):
                seat = seats[claim.name or uid]
                for resource in quota.limits.keys() & claim.charge.keys():
                    seat[resource] = max(seat.get(resource, 0), claim.charge[resource])
        totals[name] = {
            resource: amount
            for resource in quota.limits
            if (amount := sum(seat.get(resource, 0) for seat in seats.values()))
        }
    return totals


def held(ledger: QuotaLedger, namespace: str = "team-a") -> dict[str, dict[str, int]]:
    """Return the totals that the ledger keeps, without zeros."""
    return {
        name: {resource: amount for resource, amount in amounts.items() if amount}
        for name, amounts in ledger.totals(namespace).items()
    }


def init_and_app(uid: str, name: str, mem: int, scope: str = "") -> PodBuilder:
    """Return a pod with one init container and one app, in one scope or none."""
    spec = {"batch": {"priorityClassName": "batch"}, "short": {"activeDeadlineSeconds": 5}}.get(scope, {})
    subject = pod(name).init("load", mem=2 * mem, cores=10).app("server", mem=mem, cores=20)
    return subject.metadata(uid=uid).spec(**spec)


class LedgerMachine(RuleBasedStateMachine):
    """Any event of any pod at any time, over few names and UIDs, so that they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.quota("all", mem=100_000, cores=400)

    subjects = st.builds(
        init_and_app,
        st.sampled_from(UIDS),
        st.sampled_from(NAMES),
        st.integers(1, 20_000),
        st.sampled_from(("", "batch", "short")),
    )

    @rule(subject=subjects, dry_run=st.booleans())
    def create(self, subject: PodBuilder, *, dry_run: bool) -> None:
        """A create is judged."""
        self.world.create(subject, dry_run=dry_run)

    @rule(subject=subjects, phase=st.sampled_from(("Pending", "Running", "Running", "Succeeded", "Failed")))
    def see_pending(self, subject: PodBuilder, phase: str) -> None:
        """A pod without an allocation is seen."""
        self.world.see(subject.phase(phase))

    @rule(
        subject=subjects,
        text=st.sampled_from(
            (
                "GPU-0,NVIDIA,700,5:;GPU-0,NVIDIA,900,7:;",
                "GPU-0,NVIDIA,700,5:;GPU-1,NVIDIA,900,7:;",
                ";;",
                "garbage",
                "",
            )
        ),
        state=st.sampled_from((0, 1, "running", None)),
        is_deleting=st.booleans(),
    )
    def see_allocated(self, subject: PodBuilder, text: str, state: object, *, is_deleting: bool) -> None:
        """A pod with an allocation is seen, wherever it stands."""
        shown = subject.allocated(text).statuses(load=state).phase("Running")
        self.world.see(shown.deleting() if is_deleting else shown)

    @rule(uid=st.sampled_from(UIDS))
    def gone(self, uid: str) -> None:
        """A pod is deleted, seen or not."""
        self.world.ledger.release_pod("team-a", uid)

    @rule(uid=st.sampled_from(UIDS))
    def forget(self, uid: str) -> None:
        """An admission turns out never to have been stored."""
        self.world.ledger.forget("team-a", uid)

    @rule(name=st.sampled_from(QUOTAS), mem=st.integers(0, 100_000), cores=st.none() | st.integers(0, 400))
    def set_quota(self, name: str, mem: int, cores: int | None) -> None:
        """A quota is made or changed."""
        self.world.quota(name, mem=mem, **SCOPES[name], **({} if cores is None else {"cores": cores}))

    @rule(name=st.sampled_from(QUOTAS))
    def drop_quota(self, name: str) -> None:
        """A quota is deleted."""
        self.world.no_quota(name)

    @rule(label=st.sampled_from((None, "audit", "off")))
    def set_mode(self, label: str | None) -> None:
        """The namespace's label changes."""
        self.world.ledger.set_mode_label("team-a", label)

    @rule()
    def drop_namespace(self) -> None:
        """The namespace is deleted, pods still in it."""
        self.world.ledger.drop_namespace("team-a")

    @invariant()
    def totals_equal_the_sum_over_the_claims(self) -> None:
        """The law."""
        assert held(self.world.ledger) == expected(self.world.ledger)

    @invariant()
    def terminating_is_part_of_used(self) -> None:
        """What is being deleted is not yet given back."""
        for use in self.world.ledger.snapshot("team-a").uses:
            assert all(amount <= use.used.get(resource, 0) for resource, amount in use.terminating.items())

    @invariant()
    def a_snapshot_for_a_pod_splits_the_total(self) -> None:
        """What others hold and what stands under the pod's own name never exceed the total."""
        totals = held(self.world.ledger)
        for name in NAMES:
            for use in self.world.ledger.snapshot("team-a", "new", name).uses:
                whole = {r: use.used.get(r, 0) + use.seat.get(r, 0) for r in (*use.used, *use.seat)}
                assert {r: amount for r, amount in whole.items() if amount} == totals[use.quota.name]

    @invariant()
    def what_is_shown_as_used_is_what_is_held(self) -> None:
        """Split by what holds it, use adds up to the total; what is terminating is the ledger's."""
        ledger = self.world.ledger
        use = namespace_use(ledger.view("team-a"), self.world.rules.keys, {MEMORY})
        if ledger.quotas("team-a"):
            totals = held(ledger)
            terminating = {item.quota.name: item.terminating for item in ledger.snapshot("team-a").uses}
            for row in use.keys:
                assert row.used == totals[row.quota].get(row.key.resource, 0)
                assert row.terminating == terminating[row.quota].get(row.key.resource, 0)

    @invariant()
    def no_pod_is_both_reserved_and_recorded(self) -> None:
        """A pod that was seen needs its reservation no longer."""
        ledger = self.world.ledger
        assert not ledger.reservations("team-a").keys() & ledger.records("team-a").keys()


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


@given(st.data())
def test_the_order_in_which_pods_are_seen_is_irrelevant(data) -> None:
    """Each pod's own events keep their order, as an informer delivers them; between pods any order does."""
    lives = []
    for number in range(data.draw(st.integers(1, 4))):
        subject = data.draw(pods()).metadata(name=f"p{number}", uid=f"uid-p{number}")
        life = [subject]
        for _ in range(data.draw(st.integers(0, 3))):
            shown = subject.allocated(data.draw(allocations(subject))) if data.draw(st.booleans()) else subject
            life.append(shown.statuses(**data.draw(statuses(subject))))
        lives.append(life)
    turns = data.draw(st.permutations([number for number, life in enumerate(lives) for _ in life]))

    one_by_one, mixed = World(), World()
    for world in (one_by_one, mixed):
        world.quota(mem=0, cores=0, gpu=0)
    for life in lives:
        for shown in life:
            one_by_one.see(shown)
    streams = [iter(life) for life in lives]
    for turn in turns:
        mixed.see(next(streams[turn]))

    assert held(mixed.ledger) == held(one_by_one.ledger) == expected(mixed.ledger)
    assert mixed.ledger.records("team-a") == one_by_one.ledger.records("team-a")


@given(st.data())
def test_replaying_events_changes_nothing(data) -> None:
    subject = data.draw(pods())
    shown = subject.allocated(data.draw(allocations(subject))).statuses(**data.draw(statuses(subject)))
    world = World()
    world.quota(mem=0, cores=0, gpu=0)
    world.see(shown)
    before = held(world.ledger)

    for _ in range(3):
        world.see(shown)

    assert held(world.ledger) == before


@given(st.data())
def test_a_record_never_grows_once_it_was_shrunk(data) -> None:
    """Figures of a fixed allocation: the gate stays open, whatever statuses come."""
    subject = data.draw(pods())
    shown = subject.allocated(data.draw(allocations(subject)))
    world = World()
    record, is_open = None, False
    for _ in range(5):
        record = next_record(
            record, shown.statuses(**data.draw(statuses(subject))).build(), world.usage, world.ledger.inventory
        )
        assert record is not None
        assert record.is_gate_open >= is_open
        is_open = record.is_gate_open
        assert dict(record.charge) == dict(record.figure.steady if is_open else record.figure.peak)


@given(
    limit=st.integers(0, 50_000),
    asked=st.lists(st.tuples(st.integers(1, 20_000), st.booleans()), max_size=12),
)
def test_what_is_admitted_never_exceeds_the_limit(limit: int, asked: list[tuple[int, bool]]) -> None:
    world = World()
    world.quota(mem=limit)
    for number, (mem, is_seen) in enumerate(asked):
        subject = pod(f"p{number}").app("server", mem=mem)
        before = world.used()
        assert world.admits(subject) is (before + mem <= limit)
        if is_seen and subject.document["metadata"]["uid"] in world.ledger.reservations("team-a"):
            world.see(subject)
        assert world.used() <= limit


def one_step(world: World, dice: random.Random, number: int) -> None:
    """Do something to the ledger, as one of several threads."""
    subject = init_and_app(f"u{number}-{dice.randrange(3)}", dice.choice(NAMES), dice.randint(1, 9000))
    pod_steps = (
        lambda: world.create(subject),
        lambda: world.create(subject),
        lambda: world.see(subject),
        lambda: world.see(subject.allocated("GPU-0,NVIDIA,700,5:;GPU-1,NVIDIA,900,7:;").statuses(load=0)),
        lambda: world.gone(subject),
        lambda: world.ledger.forget("team-a", subject.document["metadata"]["uid"]),
    )
    # Informers have a thread each: quotas change from one, namespaces from another.
    other_steps = {
        0: lambda: world.quota("all", mem=dice.randint(20_000, 90_000), cores=400),
        1: lambda: world.quota("short", mem=5, scopes=["Terminating"]),
        2: lambda: world.no_quota("short"),
    }
    steps = (*pod_steps, other_steps.get(number, lambda: world.ledger.drop_namespace("team-a")))
    dice.choice(steps)()


@pytest.mark.parametrize("seed", range(3))
def test_totals_equal_the_sum_from_several_threads(seed: int) -> None:
    """Creates, sightings, deletions, look-ups, quota changes and namespace deletions, all at once."""
    threads, rounds = 8, 80
    world = World()
    world.quota("all", mem=60_000, cores=400)
    barrier = threading.Barrier(threads)

    def run(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        barrier.wait()
        for _ in range(rounds):
            one_step(world, dice, number)

    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(run, number) for number in range(threads)]:
            one.result()

    assert held(world.ledger) == expected(world.ledger)


@pytest.mark.parametrize("seed", range(3))
def test_admission_from_several_threads_never_exceeds_the_limit(seed: int) -> None:
    """Pods of random sizes, seen in between: at every moment the sum of what was admitted fits."""
    threads, rounds, limit = 8, 40, 40_000
    world = World()
    world.quota(mem=limit)
    barrier = threading.Barrier(threads)
    most = []

    def run(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        alive: list[PodBuilder] = []
        barrier.wait()
        for turn in range(rounds):
            subject = pod(f"p{number}-{turn}").app("server", mem=dice.randint(1, 6000))
            if world.admits(subject):
                alive.append(subject)
                if dice.random() < 0.7:
                    world.see(subject)
            most.append(world.used())
            if alive and dice.random() < 0.5:
                world.gone(alive.pop(dice.randrange(len(alive))))

    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(run, number) for number in range(threads)]:
            one.result()

    assert max(most) <= limit
    assert held(world.ledger) == expected(world.ledger)


def test_the_mode_of_a_namespace_is_no_part_of_its_totals() -> None:
    world = World()
    world.quota(mem=10_000, cores=100, gpu=9)
    world.see(pod("a").app("server", mem=4000, cores=5))
    for mode in Mode:
        world.ledger.set_mode_label("team-a", str(mode))
        assert held(world.ledger)["gpu-cap"] == {MEMORY: 4000, CORES: 5, COUNT: 1}

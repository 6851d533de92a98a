"""Cases from the field that admission and recorded usage answer without a server: one test a case, named after it.

Each docstring is the symptom that people met. Inputs and right outcomes are those of the issue threads.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders import CORES, COUNT, MEMORY, World, backends, pod, quota_object, text

from webhook.admission import Verdict
from webhook.quotas import read_quota


def world_with(**limits: int | str) -> World:
    """Return a world with the quota `q{...}` in team-a."""
    world = World()
    world.quota("q", **limits)
    return world


# Effective request.


def test_a_sidecar_is_added_and_not_maxed_away() -> None:
    """A sidecar is treated like an init container that ends, so the card gets oversold."""
    subject = pod("a").sidecar("s", mem=4000).app("a", mem=4000)

    for limit, want in ((6000, False), (7999, False), (8000, True)):
        decision = world_with(mem=limit).create(subject)
        assert decision.charge[MEMORY] == 8000
        assert decision.is_allowed is want


def test_declaration_order_decides_whether_a_sidecar_runs_beside_an_init_container() -> None:
    """Whether a sidecar is declared before or after an init container changes the charge; docs and code disagreed."""
    first = pod("p1").sidecar("s", mem=2000).init("i", mem=20_000).app("a", mem=10_000)
    second = pod("p2").init("i", mem=20_000).sidecar("s", mem=2000).app("a", mem=10_000)

    denied, admitted = world_with(mem=21_000).create(first), world_with(mem=21_000).create(second)

    assert (denied.charge[MEMORY], denied.is_allowed) == (22_000, False)
    assert (admitted.charge[MEMORY], admitted.is_allowed) == (20_000, True)


def test_an_init_container_without_gpu_shifts_nobody() -> None:
    """An init container that asks for no GPU shifts positions, so the pod slips under the quota."""
    subject = pod("p").init("prep").app("a", mem=16_000).app("b", mem=16_000)
    without = pod("p").app("a", mem=16_000).app("b", mem=16_000)
    world = world_with(mem=24_000)

    assert [world.create(one).charge[MEMORY] for one in (subject, without)] == [32_000, 32_000]
    assert not world.admits(subject)

    running = subject.allocated(";GPU-a,NVIDIA,16000,0:;GPU-b,NVIDIA,16000,0:;").phase("Running")
    world.see(running)
    assert world.used(quota="q") == 32_000
    world.see(running.statuses(prep=0))
    assert world.used(quota="q") == 32_000


# Units, counts, defaults, parsing.


def test_memory_and_cores_are_per_card_and_every_container_counts() -> None:
    """The quota counted one card's worth, and only the first container."""
    world = world_with(mem=4096, cores=50)
    subject = pod("p1").app("a", gpu=2, mem=2048, cores=20)

    first = world.create(subject)
    assert (first.charge[MEMORY], first.charge[CORES], first.is_allowed) == (4096, 40, True)
    second = world.create(subject.metadata(name="p2", uid="uid-p2"))
    assert [(item.key.resource, item.used + item.requested, item.limit) for item in second.exceeded] == [
        (CORES, 80, 50),
        (MEMORY, 8192, 4096),
    ]

    both = world_with(mem=2000).create(pod("p").app("x", mem=1024).app("y", mem=1024))
    assert (both.charge[MEMORY], both.is_allowed) == (2048, False)


def test_a_share_and_a_whole_card_are_charged_at_admission() -> None:
    """A percentage request, or no memory field at all, counts as 0 at admission, yet the card is charged later."""
    world = world_with(mem=24_000)
    world.node("node-1", 40_000, 40_000)
    world.node("node-2", 40_000)

    shares = world.create(pod("p1").app("a", pct=40).app("b", pct=40))
    whole = world.create(pod("p2").app("c", gpu=2))
    one = world.create(pod("p3").app("d", pct=40))

    assert (shares.charge[MEMORY], shares.is_allowed) == (32_000, False)
    assert (whole.charge[MEMORY], whole.is_allowed) == (80_000, False)
    assert (one.charge[MEMORY], one.is_allowed) == (16_000, True)
    assert world.create(pod("p4").app("e", pct=101)).verdict is Verdict.INVALID
    assert world.create(pod("p5").app("f", pct=0)).charge[MEMORY] == 40_000


def test_memory_without_a_count_is_charged_for_the_default_count() -> None:
    """The user sets memory but no GPU count, so nothing is charged."""
    subject = pod("p").app("a", mem=7000, gpu=None)

    admitted = world_with(mem=8000).create(subject)
    assert (admitted.charge[MEMORY], admitted.charge[COUNT], admitted.is_allowed) == (7000, 1, True)
    assert not world_with(mem=6000).admits(subject)


@pytest.mark.parametrize("amount", ["16Gi", "-1", "1500m"])
@pytest.mark.parametrize("limits", [{"mem": 24_000}, {}], ids=["a quota", "no quota"])
def test_memory_that_is_no_plain_number_of_mib_is_refused(amount: str, limits: dict[str, int]) -> None:
    """`16Gi` as memory is read as 17179869184 units, wraps to 0 and passes every check."""
    world = world_with(**limits)

    decision = world.create(pod("p").app("a", mem=amount))

    assert decision.verdict is Verdict.INVALID
    assert not decision.is_allowed
    assert "plain integer, MiB, e.g. 16384" in text(decision)
    assert world.used(quota="q") == 0


def test_amounts_come_back_from_the_api_server_in_canonical_form() -> None:
    """Stored objects come back with 10000 as "10k", so a bare int() fails on ordinary input."""
    world = world_with(mem="10k")

    decision = world.create(pod("p").app("b", mem="8k"))

    assert (decision.charge[MEMORY], decision.is_allowed) == (8000, True)
    assert decision.uses[0].quota.limits[MEMORY] == 10_000


def test_the_memory_factor_enters_once_on_each_side() -> None:
    """Request and quota are in chunks, recorded usage in MiB; the factor is applied twice or to one side only."""
    world = World(backends(memoryFactor=10))
    world.quota("q", mem=100)
    world.see(pod("running").app("r", mem=60).allocated("GPU-a,NVIDIA,600,0:;"))

    denied = world.create(pod("b").app("b", mem=60))
    assert not denied.is_allowed
    assert text(denied).splitlines() == [
        (
            "exceeded quota: q, requested: limits.nvidia.com/gpumem=60, "
            "used: limits.nvidia.com/gpumem=60, limited: limits.nvidia.com/gpumem=100"
        ),
        "(namespace team-a, units of 10 MiB: app b 60; 20 too many)",
    ]
    assert world.admits(pod("c").app("c", mem=40))


# ResourceQuota objects.


@pytest.mark.parametrize("order", [("strict", "loose"), ("loose", "strict")])
def test_two_quotas_each_hold(order: tuple[str, str]) -> None:
    """Two quotas in one namespace share one slot; last event wins; deleting either lifts the limit."""
    limits = {"strict": 1000, "loose": 5000}
    world = World()
    for name in order:
        world.quota(name, mem=limits[name])
    subject = pod("p").app("a", mem=3000)

    assert [item.quota for item in world.create(subject).exceeded] == ["strict"]
    world.no_quota("loose")
    assert [item.quota for item in world.create(subject).exceeded] == ["strict"]
    assert world.admits(pod("small").app("a", mem=900))

    world.gone(pod("small"))
    world.quota("loose", mem=5000)
    world.no_quota("strict")
    assert world.admits(subject, dry_run=True)
    assert not world.admits(pod("p").app("a", mem=5001))


def test_a_limit_of_0_blocks_until_it_is_deleted() -> None:
    """A limit of "0" is taken for "no limit"."""
    world = world_with(mem=0)

    assert not world.admits(pod("a").app("a", mem=1))
    untouched = world.create(pod("b").app("b"))
    assert (untouched.verdict, untouched.is_allowed) == (Verdict.NOT_OURS, True)

    world.no_quota("q")
    assert world.admits(pod("a").app("a", mem=1))


@pytest.mark.parametrize(
    ("key", "want_allowed"),
    [
        ("limits.nvidia.com/gpumem", False),
        ("requests.nvidia.com/gpumem", True),
        ("nvidia.com/gpumem", True),
        ("limits.nvidia.com/gpumemory", True),
    ],
)
def test_a_wrong_key_is_told_and_not_enforced(key: str, want_allowed: bool) -> None:
    """The user writes the wrong key and believes a limit is in force."""
    world = World()
    quota = read_quota(quota_object("q", hard={key: "6000"}), world.rules.keys)
    world.ledger.set_quota("team-a", quota)

    assert world.admits(pod("p").app("a", mem=7000)) is want_allowed
    assert any("key not enforced" in said for said in quota.suspicions) is want_allowed


def test_scopes_decide_which_pods_a_quota_counts() -> None:
    """Quotas with scopes apply only to some pods. `Terminating` means a deadline, not that the pod is being deleted."""
    world = World()
    world.quota("all", mem=8000)
    world.quota("batch", mem=2000, selector=[{"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}])
    world.quota("short", mem=1000, scopes=["Terminating"])

    assert world.admits(pod("p1").app("a", mem=5000).spec(priorityClassName="urgent"), dry_run=True)
    batch = world.create(pod("p2").app("a", mem=3000).spec(priorityClassName="batch"))
    assert [item.quota for item in batch.exceeded] == ["batch"]
    short = world.create(pod("p3").app("a", mem=1500).spec(activeDeadlineSeconds=600))
    assert [item.quota for item in short.exceeded] == ["short"]

    world.see(pod("p4").app("a", mem=1500).deleting())
    assert [world.used(quota=name) for name in ("all", "batch", "short")] == [1500, 0, 0]


# Usage over a pod's life.


def test_usage_is_given_back_once() -> None:
    """Usage is not given back at the end, or given back twice, or reduced by a delete for a pod never counted."""
    world = world_with(mem=10_000)
    first = pod("p1").app("a", mem=4000).allocated("GPU-a,NVIDIA,4000,0:;").phase("Running")
    world.see(first)
    world.see(pod("p2").app("a", mem=3000).allocated("GPU-a,NVIDIA,3000,0:;").phase("Running"))
    assert world.used(quota="q") == 7000

    used = []
    for event in (
        lambda: world.see(first.phase("Succeeded")),
        lambda: world.see(first.phase("Succeeded")),
        lambda: world.gone(first),
        lambda: world.gone(pod("p9").app("a", mem=5000).allocated("GPU-a,NVIDIA,5000,0:;")),
    ):
        event()
        used.append(world.used(quota="q"))
    assert used == [3000, 3000, 3000, 3000]


def test_the_shrink_waits_for_every_init_container_and_releases_what_is_left() -> None:
    """Usage stays at the init peak for ever, or shrinks too early because only the reported statuses are looked at."""
    world = world_with(mem=24_000)
    subject = (
        pod("p")
        .init("i1", mem=20_000)
        .init("i2", mem=8000)
        .app("a", mem=10_000)
        .allocated("GPU-a,NVIDIA,20000,0:;GPU-a,NVIDIA,8000,0:;GPU-a,NVIDIA,10000,0:;")
        .phase("Running")
    )
    other = pod("new").app("b", mem=12_000)

    world.see(subject.statuses(i1=0))
    assert world.used(quota="q") == 20_000
    assert not world.admits(other, dry_run=True)

    world.see(subject.statuses(i1=0, i2=0))
    assert world.used(quota="q") == 10_000
    assert world.admits(other)
    assert world.used(quota="q") == 22_000

    world.gone(subject)
    assert world.used(quota="q") == 12_000


def test_a_pod_without_init_containers_has_nothing_to_shrink() -> None:
    """The gate has nothing to wait for, and nothing changes."""
    world = world_with(mem=24_000)
    subject = pod("p").app("a", mem=10_000).allocated("GPU-a,NVIDIA,10000,0:;")

    for event in (subject.phase("Pending"), subject.phase("Running"), subject.phase("Running").statuses()):
        world.see(event)
        assert world.used(quota="q") == 10_000


def test_recorded_usage_is_per_card_and_may_exceed_the_limit() -> None:
    """Admission works on the pod total, recorded usage works per card; treating one like the other hides usage."""
    world = world_with(mem=8000)
    subject = pod("p").init("i", mem=6000).app("a", mem=4000)
    running = subject.allocated("GPU-a,NVIDIA,6000,0:;GPU-b,NVIDIA,4000,0:;").phase("Running")

    admitted = world.create(subject)
    assert (admitted.charge[MEMORY], admitted.is_allowed) == (6000, True)

    world.see(running.statuses(i="running"))
    assert world.used(quota="q") == 10_000
    denied = world.create(pod("next").app("b", mem=1))
    assert [(item.used, item.limit, item.too_many) for item in denied.exceeded] == [(10_000, 8000, 2001)]

    world.see(running.statuses(i=0))
    assert world.used(quota="q") == 4000
    assert world.admits(pod("next").app("b", mem=4000))


def test_a_terminating_pod_holds_its_card_until_it_is_gone() -> None:
    """A pod being deleted is released at once, or held for hours after its node died.

    We keep it until it is gone, as HAMi does: the card is in use, and no clock says when it is not.
    """
    world = world_with(mem=8000)
    running = pod("p1").app("a", mem=5000).allocated("GPU-a,NVIDIA,5000,0:;").phase("Running")
    world.see(running)

    world.see(running.deleting("2026-01-01T00:00:30Z"))
    assert world.used(quota="q") == 5000
    world.now += 3600
    assert world.used(quota="q") == 5000

    for _ in range(2):
        world.gone(running)
        assert world.used(quota="q") == 0


# The allocation annotation.


def test_empty_slots_and_placeholders_keep_their_positions() -> None:
    """Empty slots are skipped, or a placeholder breaks the parser, so a device is laid at the wrong container."""
    world = world_with(mem=100_000, cores=1000)
    first = pod("p1").init("p").app("a", mem=6144, cores=30).allocated(";GPU-a,NVIDIA,6144,30:;")
    for event in (first, first.statuses(p=0)):
        world.see(event)
        assert (world.used("mem", quota="q"), world.used("cores", quota="q")) == (6144, 30)
    world.gone(first)

    world.see(pod("p2").app("x").app("y", mem=1000).app("z").allocated(",,0,0:;GPU-a,NVIDIA,1000,0:;,,0,0:;"))
    assert (world.used("mem", quota="q"), world.used("cores", quota="q")) == (1000, 0)


def test_a_live_pod_whose_annotation_does_not_decode_stays_in_the_books() -> None:
    """A live pod whose annotation cannot be decoded is dropped from the books, so its share is sold again."""
    world = world_with(mem=10_000)
    world.quota("q", namespace="team-b", mem=10_000)
    subject = pod("p").app("a", mem=4000)

    record = world.see(subject.allocated("GPU-a,NVIDIA,4000").phase("Running"))
    assert world.used(quota="q") == 4000
    assert record is not None
    assert "hami.io/vgpu-devices-allocated" in record.problem

    world.see(pod("other", namespace="team-b").app("a", mem=1))
    assert world.used(quota="q", namespace="team-b") == 1

    repaired = world.see(subject.allocated("GPU-a,NVIDIA,4200,0:;").phase("Running"))
    assert world.used(quota="q") == 4200
    assert repaired is not None
    assert repaired.problem == ""


@pytest.mark.parametrize("scheduler", [None, "other"])
def test_a_user_cannot_dictate_recorded_usage(scheduler: str | None) -> None:
    """A user submits a pod that already carries the allocation annotation and so dictates its own recorded usage."""
    world = world_with(mem=10_000)
    subject = pod("p").app("a", mem=8000).spec(schedulerName=scheduler)

    decision = world.create(subject.allocated("GPU-a,NVIDIA,1,0:;"), user="dev-1")

    assert decision.verdict is Verdict.FORGED
    assert not decision.is_allowed
    assert "hami.io/vgpu-devices-allocated" in text(decision)
    assert world.admits(subject.annotated({"team": "x", "prometheus.io/scrape": "true"}), user="dev-1")


# Over-admission, reservations, dry run, order of webhooks.


def test_a_burst_of_creates_is_admitted_up_to_the_limit() -> None:
    """A burst of creates all read the same "used" before any pod is visible; all pass."""
    world = world_with(mem=10_000)
    pods = [pod(f"p{number}").app("a", mem=4000) for number in range(10)]
    barrier = threading.Barrier(len(pods))

    def create(number: int) -> bool:
        barrier.wait()
        return world.admits(pods[number])

    with ThreadPoolExecutor(len(pods)) as pool:
        allowed = [one for one, is_allowed in zip(pods, pool.map(create, range(len(pods))), strict=True) if is_allowed]

    assert len(allowed) == 2
    for one in allowed:
        world.see(one)
        assert world.used(quota="q") == 8000
    for one in allowed:
        world.see(one.allocated("GPU-a,NVIDIA,4000,0:;"))
        assert world.used(quota="q") == 8000


def test_a_dry_run_holds_nothing() -> None:
    """Server-side dry run eats quota."""
    world = world_with(mem=10_000)

    assert all(world.admits(pod(f"p{number}").app("a", mem=6000), dry_run=True) for number in range(3))
    assert world.admits(pod("real").app("a", mem=6000))
    denied = world.create(pod("fifth").app("a", mem=6000))
    assert not denied.is_allowed
    assert text(world.create(pod("fifth").app("a", mem=6000), dry_run=True)) == text(denied)


def test_what_another_injector_adds_is_judged() -> None:
    """Another injector adds a container after our mutating webhook ran."""
    decision = world_with(mem=5000).create(pod("p").sidecar("inj", mem=2000).app("a", mem=4000))

    assert not decision.is_allowed
    assert [(item.requested, item.limit) for item in decision.exceeded] == [(6000, 5000)]


# The admission exchange.


def test_updates_and_deletions_are_not_judged_like_creates() -> None:
    """An UPDATE of an existing pod is judged like a create; the job controller cannot remove its finalizer."""
    world = world_with(mem=10_000)
    subject = pod("p").app("a", mem=9000)
    world.see(subject)
    world.quota("q", mem=4000)

    for document, request in (
        (subject.metadata(finalizers=[]), {"operation": "UPDATE"}),
        (subject.metadata(labels={"x": "y"}), {"operation": "UPDATE"}),
        (None, {"operation": "DELETE"}),
    ):
        decision = world.create(document, **request)
        assert (decision.verdict, decision.is_allowed) == (Verdict.NOT_OURS, True)
    assert world.ledger.statistics().reservations == 0
    assert world.used(quota="q") == 9000


def test_a_controllers_pod_is_judged_in_the_requests_namespace() -> None:
    """Pods made by controllers arrive without namespace and name; the quota of namespace "" is consulted."""
    world = world_with(mem=4000)
    subject = pod("p").app("a", mem=5000).metadata(name=None, namespace=None, uid=None, generateName="job-")

    decision = world.create(subject, namespace="team-a")

    assert not decision.is_allowed
    assert (decision.namespace, decision.pod_name) == ("team-a", "job-*")
    assert "namespace team-a" in text(decision)
    assert not world.admits(subject.metadata(namespace="team-b"), namespace="team-a")
    assert world.admits(subject.metadata(namespace="team-a"), namespace="team-b")


def test_privileged_containers_are_refused_beside_devices_and_schedulers_respected() -> None:
    """Privileged containers escape isolation yet get through beside a GPU container."""
    world = world_with(mem=10_000)

    refused = world.create(pod("p1").app("a", privileged=True).app("b", mem=1000))
    assert refused.verdict is Verdict.INVALID
    assert "container a is privileged" in text(refused)
    assert world.admits(pod("p2").app("a", privileged=True))
    assert world.admits(pod("p3").app("a", mem=1000).spec(schedulerName="default-scheduler"))
    other = world.create(pod("p4").app("a", mem=1000).spec(schedulerName="volcano"))
    assert other.is_allowed
    assert "volcano" in other.cautions[0]


def test_a_denial_says_everything_there_is_to_know() -> None:
    """The words "exceeding resource quota" tell the user nothing."""
    world = World()
    world.quota(mem=10_000)
    world.see(pod("someone-elses").app("secret", mem=8000))

    assert text(world.create(pod("p").init("i", mem=4000).app("a", mem=1000))) == (
        "exceeded quota: gpu-cap, requested: limits.nvidia.com/gpumem=4000, "
        "used: limits.nvidia.com/gpumem=8000, limited: limits.nvidia.com/gpumem=10000\n"
        "(namespace team-a, MiB: init i 4000; 2000 too many)"
    )


# The customer's own cases: one node, a single card of 24 Gi, written in MiB.


def test_sidecar_design_oversubscription_is_prevented() -> None:
    """A sidecar of 10 Gi and an app of 10 Gi were accounted as 10, so a pod of 12 Gi was scheduled beside them."""
    world = world_with(mem=24_576)
    first = world.create(pod("p").sidecar("s", mem=10_240).app("a", mem=10_240))

    assert (first.charge[MEMORY], first.is_allowed) == (20_480, True)
    assert not world.admits(pod("later").app("b", mem=12_288))


@pytest.mark.parametrize(
    ("subject", "given", "want"),
    [
        pytest.param(
            pod("p").sidecar("s", mem=2048).init("i", mem=20_480).app("a", mem=10_240),
            "GPU-a,NVIDIA,2048,0:;GPU-a,NVIDIA,20480,0:;GPU-a,NVIDIA,10240,0:;",
            22_528,
            id="the sidecar first",
        ),
        pytest.param(
            pod("p").init("i", mem=20_480).sidecar("s", mem=2048).app("a", mem=10_240),
            "GPU-a,NVIDIA,20480,0:;GPU-a,NVIDIA,2048,0:;GPU-a,NVIDIA,10240,0:;",
            20_480,
            id="the init container first",
        ),
    ],
)
def test_sidecar_design_shrink_is_restored(subject, given: str, want: int) -> None:
    """The gate never opened for a pod with a sidecar, and 20 Gi were held for ever."""
    world = world_with(mem=24_576)

    assert world.create(subject).charge[MEMORY] == want
    running = subject.allocated(given).phase("Running")
    world.see(running.statuses(i="running", s="running"))
    assert world.used(quota="q") == want
    world.see(running.statuses(i=0, s="running"))
    assert world.used(quota="q") == 12_288
    assert world.admits(pod("later").app("b", mem=12_288))

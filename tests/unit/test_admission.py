"""The decision: in which order it is made, what modes make of it, and what it reserves."""

from __future__ import annotations

from typing import Any

import pytest
from builders import ALLOCATED, CORES, COUNT, MEMORY, PodBuilder, World, backends, pod, text

from webhook.admission import Candidate, Verdict
from webhook.policy import Mode

FITS = pod("a").app("server", mem=4000)
TOO_LARGE = pod("a").app("server", mem=12_000)
INVALID = pod("a").app("server", mem="16Gi")
FORGED = FITS.allocated("GPU-a,NVIDIA,1,0:;")
NO_GPU = pod("a").app("server", limits={"cpu": "1"})
KUBELET = {"user": "system:node:node-1", "groups": ["system:nodes", "system:authenticated"]}
MIRROR = {"kubernetes.io/config.mirror": "hash"}


@pytest.fixture
def world() -> World:
    """A world with room for 10000 MiB in team-a."""
    world = World()
    world.quota(mem=10_000)
    return world


# What is none of our business.


@pytest.mark.parametrize(
    ("subject", "request_fields"),
    [
        pytest.param(TOO_LARGE, {"operation": "UPDATE"}, id="an update"),
        pytest.param(TOO_LARGE, {"operation": "DELETE"}, id="a deletion"),
        pytest.param(None, {"operation": "DELETE"}, id="a deletion without an object"),
        pytest.param(TOO_LARGE, {"operation": "CONNECT", "subResource": "exec"}, id="a connection"),
        pytest.param(TOO_LARGE, {"subResource": "binding"}, id="a binding"),
        pytest.param(TOO_LARGE, {"subResource": "eviction"}, id="an eviction"),
        pytest.param(TOO_LARGE, {"operation": "UPDATE", "subResource": "resize"}, id="a resize"),
        pytest.param(TOO_LARGE, {"resource": {"group": "", "resource": "services"}}, id="another resource"),
        pytest.param(TOO_LARGE, {"resource": {"group": "x.io", "resource": "pods"}}, id="pods of another group"),
        pytest.param(NO_GPU, {}, id="a pod that asks for nothing of ours"),
        pytest.param(pod("a"), {}, id="a pod without containers"),
        pytest.param(NO_GPU.annotated({"team": "x", "hami.io/other": "y"}), {}, id="annotations of others"),
        pytest.param({"spec": {"containers": 7}}, {"operation": "UPDATE"}, id="an update of an object nobody can read"),
    ],
)
def test_what_is_none_of_our_business_is_allowed_without_a_look_at_the_ledger(
    world: World, subject: PodBuilder | dict[str, Any] | None, request_fields: dict[str, Any]
) -> None:
    world.quota(mem=0)

    decision = world.create(subject, **request_fields)

    assert decision.verdict is Verdict.NOT_OURS
    assert decision.is_allowed
    assert not isinstance(world.subject(subject, **request_fields), Candidate)
    assert world.used() == 0


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(pod("a").app("server", gpu=0), id="a count of 0"),
        pytest.param(pod("a").app("server", gpu=0, cores=100), id="a count of 0 with the cores defaulting adds"),
    ],
)
def test_a_pod_that_names_our_resources_and_asks_for_none_is_allowed(world: World, subject: PodBuilder) -> None:
    world.quota(mem=0, cores=0, gpu=0)

    decision = world.create(subject)

    assert decision.verdict is Verdict.NOT_OURS
    assert decision.is_allowed
    assert decision.reservation is None


def test_an_amount_that_has_no_effect_is_allowed_with_a_warning_and_charged_nothing() -> None:
    world = World(backends(defaultGPUNum=0))
    world.quota(mem=0)

    decision = world.create(pod("a").app("server", mem=4000, gpu=None))

    assert decision.is_allowed
    assert decision.cautions == (f"container server: {MEMORY} has no effect without {COUNT}",)
    assert not decision.charge


# The order of refusals.


@pytest.mark.parametrize(
    ("subject", "want", "want_problem"),
    [
        pytest.param({"spec": {"containers": 7}}, Verdict.INVALID, "object: ", id="an object that cannot be read"),
        pytest.param({"metadata": 7}, Verdict.INVALID, "object: ", id="an object that is no pod"),
        pytest.param(FORGED, Verdict.FORGED, ALLOCATED, id="an annotation of HAMi's"),
        pytest.param(INVALID, Verdict.INVALID, "16Gi", id="an amount that cannot be used"),
        pytest.param(pod("a").app("server", pct=101), Verdict.INVALID, "101", id="more than a whole card"),
        pytest.param(FITS.spec(nodeName="n"), Verdict.INVALID, "spec.nodeName 'n'", id="a node that is assigned"),
        pytest.param(
            pod("a").app("server", mem=1, privileged=True),
            Verdict.INVALID,
            "server is privileged",
            id="a privileged one",
        ),
    ],
)
def test_a_pod_that_cannot_be_used_is_refused_whatever_quotas_say(
    subject: PodBuilder | dict[str, Any], want: Verdict, want_problem: str
) -> None:
    world = World()

    decision = world.create(subject)

    assert decision.verdict is want
    assert not decision.is_allowed
    assert want_problem in decision.problems[0]
    assert want_problem in text(decision)
    assert decision.reservation is None


def test_a_forged_pod_is_refused_before_its_amounts_are_read(world: World) -> None:
    assert world.create(INVALID.allocated("x")).verdict is Verdict.FORGED


def test_an_unusable_amount_is_told_before_a_quota_that_is_exceeded(world: World) -> None:
    decision = world.create(INVALID.app("worker", mem=20_000))

    assert decision.verdict is Verdict.INVALID
    assert not decision.exceeded


def test_every_unusable_amount_is_told(world: World) -> None:
    decision = world.create(pod("a").init("load", mem="1Gi", cores=5).app("server", mem=-1).app("worker", mem="16Gi"))

    assert [problem.split(":")[0] for problem in decision.problems] == ["container server", "container worker"]


def test_an_unsized_pod_is_told_before_a_quota_that_is_exceeded(world: World) -> None:
    world.quota(mem=10_000, cores=10)

    decision = world.create(pod("a").app("server", gpu=1))

    assert decision.verdict is Verdict.UNSIZED
    assert [(item.quota, item.resource, item.containers) for item in decision.unsized] == [
        ("gpu-cap", MEMORY, ("server",))
    ]


def test_hamis_own_reasons_do_not_touch_pods_that_ask_for_no_devices() -> None:
    world = World()

    assert world.admits(pod("a").app("server", privileged=True))
    assert world.admits(pod("a").app("server", privileged=True, gpu=0))


# Quotas.


def test_what_fits_is_reserved(world: World) -> None:
    decision = world.create(FITS)

    assert decision.verdict is Verdict.FITS
    assert decision.charge == {MEMORY: 4000, COUNT: 1}
    assert decision.reservation is not None
    assert (decision.reservation.uid, decision.reservation.name) == ("uid-a", "a")
    assert decision.reservation.admitted_at == world.now
    assert world.used() == 4000


def test_what_does_not_fit_is_refused_and_not_reserved(world: World) -> None:
    decision = world.create(TOO_LARGE)

    assert decision.verdict is Verdict.EXCEEDED
    assert not decision.is_allowed
    assert decision.reservation is None
    assert world.used() == 0


def test_a_pod_that_no_quota_concerns_is_allowed_and_not_reserved() -> None:
    world = World()
    world.quota("batch", mem=1, selector=[{"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}])
    world.quota("cpu", hard={"limits.cpu": "1"})

    decision = world.create(TOO_LARGE)

    assert decision.verdict is Verdict.FITS
    assert decision.reservation is None
    assert decision.uses == ()


def test_every_quota_and_key_that_is_exceeded_is_told_sorted(world: World) -> None:
    world.quota("zeta", mem=1, cores=1)
    world.quota("alpha", gpu=1, mem=5000)

    decision = world.create(pod("a").app("server", gpu=2, mem=6000, cores=50))

    assert [(item.quota, item.key.resource) for item in decision.exceeded] == [
        ("alpha", COUNT),
        ("alpha", MEMORY),
        ("gpu-cap", MEMORY),
        ("zeta", CORES),
        ("zeta", MEMORY),
    ]


def test_the_count_is_limited_unless_that_is_switched_off() -> None:
    for count_quota, want in ((True, False), (False, True)):
        world = World(count_quota=count_quota)
        world.quota(gpu=1)
        assert world.admits(pod("a").app("server", gpu=2, mem=1)) is want


def test_the_namespace_is_the_requests_and_not_the_objects(world: World) -> None:
    decision = world.create(TOO_LARGE.metadata(namespace="team-b"), namespace="team-a")

    assert decision.verdict is Verdict.EXCEEDED
    assert decision.namespace == "team-a"


def test_a_pod_without_uid_is_kept_by_the_uid_of_its_request(world: World) -> None:
    decision = world.create(FITS.metadata(uid=None), uid="review-9")

    assert decision.reservation is not None
    assert decision.reservation.uid == "review-9"


def test_the_pod_is_judged_after_hamis_defaulting(world: World) -> None:
    world.quota(cores=150)

    assert world.create(pod("a").app("server", mem=1, gpu=None)).charge == {MEMORY: 1, COUNT: 1}
    whole = world.create(pod("b").app("server", gpu=2))
    assert whole.charge == {CORES: 200, COUNT: 2}
    assert not whole.is_allowed


# Sizes and cores.


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({"mem": 100_000}, Verdict.UNSIZED, id="a memory quota"),
        pytest.param({"mem": 0}, Verdict.UNSIZED, id="a memory quota of 0"),
        pytest.param({"cores": 100, "gpu": 1}, Verdict.FITS, id="quotas on cores and count alone"),
        pytest.param({"cores": 50}, Verdict.EXCEEDED, id="a core quota that is exceeded"),
    ],
)
def test_a_request_without_a_size_is_refused_where_memory_is_limited(limits: dict[str, int], want: Verdict) -> None:
    world = World()
    world.quota(**limits)

    assert world.create(pod("a").app("server", gpu=1)).verdict is want


def test_a_size_by_estimate_is_told(world: World) -> None:
    world.node("node-1", 8000)

    [said] = world.create(pod("a").app("server", pct=50)).cautions

    assert said.startswith("container server: ")
    assert "the largest card it could get" in said
    assert "4000 MiB" in said


def test_a_size_by_configuration_is_told() -> None:
    world = World(assumed_card_memory_mib={"NVIDIA": 8000})
    world.quota(mem=10_000)

    [said] = world.create(pod("a").app("server", pct=50)).cautions

    assert "the configured card size" in said
    assert "4000 MiB" in said


def test_cards_without_a_share_of_their_cores_are_told_where_cores_are_limited(world: World) -> None:
    world.quota("cores", cores=100)
    subject = pod("a").sidecar("proxy", mem=1).app("server", mem=1).app("worker", mem=1, cores=10).app("idle")

    decision = world.create(subject)

    assert decision.is_allowed
    assert decision.cautions == (f"quota cores: proxy, server set no {CORES}: compute is not limited",)


def test_cards_without_a_share_of_their_cores_are_refused_where_that_is_required() -> None:
    world = World(require_cores=True)
    world.quota("cores", cores=100)
    subject = pod("a").app("server", mem=1)

    decision = world.create(subject)

    assert decision.verdict is Verdict.INVALID
    assert text(decision) == f"quota cores: container server sets no {CORES}: its compute is not limited"
    assert world.admits(pod("a").app("server", mem=1, cores=10))


def test_cores_are_not_required_where_no_quota_limits_them() -> None:
    world = World(require_cores=True)
    world.quota(mem=100)

    assert world.admits(pod("a").app("server", mem=1))


# Modes.


@pytest.mark.parametrize(
    ("mode", "subject", "want_allowed"),
    [
        (mode, subject, mode in allowed)
        for subject, allowed in (
            (FITS, {"enforce", "warn", "audit", "off"}),
            (TOO_LARGE, {"warn", "audit", "off"}),
            (INVALID, {"warn", "audit", "off"}),
            (pod("a").app("server", gpu=1), {"warn", "audit", "off"}),
            (pod("a").app("server", mem=1, privileged=True), {"warn", "audit", "off"}),
            (FORGED, {"off"}),
        )
        for mode in ("enforce", "warn", "audit", "off")
    ],
    ids=[
        f"{kind} in {mode}"
        for kind in ("fits", "exceeded", "unusable", "unsized", "privileged", "forged")
        for mode in ("enforce", "warn", "audit", "off")
    ],
)
def test_a_mode_decides_what_becomes_of_a_refusal(
    world: World,
    mode: str,
    subject: PodBuilder,
    want_allowed: bool,
) -> None:
    world.ledger.set_mode_label("team-a", mode)

    assert world.admits(subject) is want_allowed


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_a_lax_mode_admits_reserves_and_counts_what_would_have_been_refused(world: World, mode: str) -> None:
    world.ledger.set_mode_label("team-a", mode)

    decision = world.create(TOO_LARGE)

    assert decision.is_allowed
    assert decision.is_refused
    assert decision.verdict is Verdict.EXCEEDED
    assert decision.reservation is not None
    assert world.used() == 12_000


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(pod("a").app("server", mem=4000, privileged=True), id="privileged"),
        pytest.param(FITS.spec(nodeName="node-1"), id="with a node assigned"),
    ],
)
def test_a_lax_mode_reserves_what_hami_itself_would_refuse(world: World, subject: PodBuilder) -> None:
    world.ledger.set_mode_label("team-a", "audit")

    assert world.create(subject).verdict is Verdict.INVALID
    assert world.used() == 4000


def test_off_answers_at_once_and_reserves_nothing(world: World) -> None:
    world.ledger.set_mode_label("team-a", "off")

    decision = world.create(TOO_LARGE)

    assert (decision.verdict, decision.mode) == (Verdict.FITS, Mode.OFF)
    assert decision.cautions == ()
    assert decision.reservation is None


def test_the_default_mode_holds_where_no_label_says_otherwise() -> None:
    world = World(default_mode=Mode.AUDIT)
    world.quota(mem=1)
    assert world.admits(FITS)

    world.ledger.set_mode_label("team-a", "enforce")
    assert not world.admits(FITS)


# Dry run.


def test_a_dry_run_is_judged_the_same_and_reserves_nothing(world: World) -> None:
    for _ in range(3):
        assert world.admits(pod("a").app("server", mem=6000), dry_run=True)
    assert world.used() == 0

    real = world.create(TOO_LARGE)
    dry = world.create(TOO_LARGE, dry_run=True)
    assert not dry.is_allowed
    assert text(dry) == text(real)


def test_a_dry_run_counts_what_real_requests_hold(world: World) -> None:
    world.create(pod("b").app("server", mem=7000))

    assert not world.admits(FITS, dry_run=True)


# Mirror pods.


def test_a_mirror_pod_is_charged_and_never_refused(world: World) -> None:
    """The kubelet shows a static pod that already runs."""
    subject = TOO_LARGE.annotated(MIRROR).spec(nodeName="node-1")

    decision = world.create(subject, **KUBELET)

    assert decision.is_allowed
    assert decision.verdict is Verdict.FITS
    assert world.used() == 12_000
    assert not world.admits(pod("b").app("server", mem=1))


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(
            pod("a").app("server", mem=1, privileged=True).spec(nodeName="node-1"), id="privileged, on a node"
        ),
        pytest.param(pod("a").app("server", gpu=1), id="without a size"),
        pytest.param(pod("a").app("server", mem="16Gi"), id="an amount of memory that cannot be used"),
        pytest.param(pod("a").app("server", pct=101), id="a share that cannot be used"),
    ],
)
def test_a_mirror_pod_is_not_refused_for_any_reason(world: World, subject: PodBuilder) -> None:
    assert world.admits(subject.annotated(MIRROR), **KUBELET)


@pytest.mark.parametrize(
    "request_fields",
    [
        pytest.param({"user": "dev-1"}, id="a user"),
        pytest.param({"user": "system:node:x", "groups": ["devs"]}, id="a name alone"),
        pytest.param({"userInfo": {"username": "x"}}, id="no groups"),
        pytest.param({"userInfo": {"username": "x", "groups": None}}, id="groups that are null"),
    ],
)
def test_a_mirror_annotation_of_anyone_but_a_kubelet_means_nothing(
    world: World, request_fields: dict[str, Any]
) -> None:
    assert not world.admits(TOO_LARGE.annotated(MIRROR), **request_fields)


def test_a_kubelets_pod_without_the_mirror_annotation_is_judged(world: World) -> None:
    assert not world.admits(TOO_LARGE, **KUBELET)


# Forged usage.


@pytest.mark.parametrize(
    "annotation",
    [
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-mig-allocations",
        "hami.io/vgpu-node",
        "hami.io/vgpu-time",
        "hami.io/bind-time",
        "hami.io/bind-phase",
    ],
)
@pytest.mark.parametrize("subject", [FITS, NO_GPU, INVALID], ids=["a GPU pod", "a pod without GPU", "an unusable pod"])
def test_annotations_that_only_hami_writes_are_refused_and_named(subject: PodBuilder, annotation: str) -> None:
    decision = World().create(subject.annotated({annotation: ""}))

    assert decision.verdict is Verdict.FORGED
    assert text(decision) == f"annotation {annotation}: only HAMi's components may set it"


def test_every_such_annotation_is_named() -> None:
    decision = World().create(FITS.allocated("x"))

    assert text(decision) == (
        "annotation hami.io/vgpu-devices-allocated, hami.io/vgpu-node: only HAMi's components may set it"
    )


def test_trusted_users_may_set_them_and_are_judged_like_everyone(world: World) -> None:
    hami = "system:serviceaccount:hami-system:hami-scheduler"
    world = World(trusted_users=frozenset({hami}))
    world.quota(mem=10_000)

    assert world.create(FORGED, user=hami).verdict is Verdict.FITS
    assert world.create(TOO_LARGE.allocated("x"), user=hami).verdict is Verdict.EXCEEDED
    assert world.create(FORGED, user="system:serviceaccount:hami-system:other").verdict is Verdict.FORGED


@pytest.mark.parametrize(
    "annotation", ["nvidia.com/use-gputype", "nvidia.com/use-gpuuuid", "hami.io/gpu-scheduler-policy"]
)
def test_annotations_that_users_write_are_theirs(world: World, annotation: str) -> None:
    assert world.admits(FITS.annotated({annotation: "x"}))


# Other schedulers, and HAMi's laxness.


def test_another_schedulers_pod_is_judged_all_the_same_with_a_warning(world: World) -> None:
    decision = world.create(FITS.spec(schedulerName="volcano"))

    assert decision.is_allowed
    assert decision.cautions == ("scheduler volcano: HAMi's webhook did not see this pod",)
    assert not world.admits(TOO_LARGE.spec(schedulerName="volcano"))
    assert not world.admits(INVALID.spec(schedulerName="volcano"))


@pytest.mark.parametrize("scheduler", ["hami-scheduler", "default-scheduler", ""])
def test_a_pod_that_hami_schedules_has_no_such_warning(world: World, scheduler: str) -> None:
    assert world.create(FITS.spec(schedulerName=scheduler)).cautions == ()


def test_where_hami_leaves_the_default_scheduler_alone_its_pods_are_warned_about() -> None:
    world = World(overwrite_default_scheduler=False)
    world.quota(mem=10_000)

    assert world.create(FITS.spec(schedulerName="default-scheduler")).cautions


def test_hamis_laxness_lets_unsized_requests_pass() -> None:
    world = World(hami_compat=True)
    world.quota(mem=10_000, cores=100)

    assert world.admits(pod("a").app("server", gpu=1))
    assert not world.admits(pod("b").app("server", gpu=2))


def test_hamis_laxness_counts_pending_pods_as_nothing() -> None:
    world = World(hami_compat=True)
    world.quota(mem=10_000)

    for number in range(5):
        subject = pod(f"p{number}").app("server", mem=4000)
        assert world.admits(subject)
        world.see(subject)
    assert world.used() == 0
    assert not world.admits(TOO_LARGE)

    world.see(pod("p0").app("server", mem=4000).allocated("GPU-a,NVIDIA,4000,0:;"))
    assert world.used() == 4000


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(TOO_LARGE, id="one that does not fit"),
        pytest.param(INVALID, id="one whose memory cannot be used"),
        pytest.param(pod("a").app("server", pct=101), id="one whose share cannot be used"),
        pytest.param(pod("a").app("server", mem=1, privileged=True), id="a privileged one"),
    ],
)
def test_hamis_laxness_lets_other_schedulers_pods_pass(subject: PodBuilder) -> None:
    world = World(hami_compat=True)
    world.quota(mem=10_000)

    assert world.admits(subject.spec(schedulerName="volcano"))


def test_hamis_laxness_does_not_let_forged_usage_pass() -> None:
    assert not World(hami_compat=True).admits(FORGED.spec(schedulerName="volcano"))


# Warnings at a share of a limit.


@pytest.mark.parametrize(
    ("held", "asked", "want"),
    [
        pytest.param(0, 7999, [], id="below all of them"),
        pytest.param(0, 8000, [80], id="at the first"),
        pytest.param(7999, 1, [80], id="one step to it"),
        pytest.param(8000, 999, [], id="from it to below the next"),
        pytest.param(8000, 1000, [90], id="from it to the next"),
        pytest.param(0, 9500, [90], id="past both at once: the higher"),
        pytest.param(9000, 1000, [], id="past the last"),
    ],
)
def test_an_admission_that_passes_a_share_of_a_limit_is_told_once(
    world: World, held: int, asked: int, want: list[int]
) -> None:
    if held:
        world.see(pod("held").app("server", mem=held))

    decision = world.create(pod("a").app("server", mem=asked))

    assert decision.is_allowed
    assert [item.percent for item in decision.passed] == want
    assert all((item.used, item.limit) == (held + asked, 10_000) for item in decision.passed)


def test_every_key_that_passes_is_told() -> None:
    world = World()
    world.quota(mem=1000, cores=100, gpu=10)

    decision = world.create(pod("a").app("server", mem=950, cores=85))

    assert [(item.key.resource, item.percent) for item in decision.passed] == [(CORES, 80), (MEMORY, 90)]


def test_a_limit_of_0_is_passed_by_nobody() -> None:
    world = World()
    world.quota(mem=0, gpu=10)

    assert world.create(pod("a").app("server", pct=0, limits={COUNT: "0"}, gpu=None), dry_run=True).passed == ()
    world.ledger.set_mode_label("team-a", "warn")
    assert world.create(FITS).passed == ()


def test_shares_of_limits_can_be_chosen() -> None:
    world = World(warn_at=(50,))
    world.quota(mem=10_000)

    assert [item.percent for item in world.create(pod("a").app("server", mem=5000)).passed] == [50]


def test_a_denial_passes_nothing(world: World) -> None:
    assert world.create(TOO_LARGE).passed == ()


# Admissions that were never seen.


def test_a_refusal_names_the_admissions_to_look_up_first(world: World) -> None:
    world.create(pod("ghost").app("server", mem=8000))
    world.now += 10

    refused = world.create(FITS)
    assert [item.uid for item in refused.unseen] == ["uid-ghost"]

    world.ledger.forget("team-a", "uid-ghost")
    assert world.admits(FITS)


def test_an_admission_needs_no_look_up(world: World) -> None:
    world.create(pod("ghost").app("server", mem=1000))
    world.now += 10

    assert world.create(FITS).unseen == ()


def test_a_young_admission_is_not_looked_up(world: World) -> None:
    world.create(pod("young").app("server", mem=8000))
    world.now += 9

    assert world.create(FITS).unseen == ()


def test_a_refusal_that_quotas_have_no_part_in_needs_no_look_up(world: World) -> None:
    world.create(pod("ghost").app("server", mem=8000))
    world.now += 10

    assert world.create(INVALID).unseen == ()
    assert world.create(pod("a").app("server", gpu=1)).unseen == ()

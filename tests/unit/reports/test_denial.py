"""A decision in words, exactly."""

from __future__ import annotations

import pytest
from builders import PodBuilder, World, backends, pod

from webhook.admission import Decision
from webhook.policy import Mode
from webhook.reports.denial import audit_annotations, denial, log_line, warnings

SUBJECT = pod("a").sidecar("proxy", mem=2000).app("server", mem=4000)


@pytest.fixture
def world() -> World:
    """A world where 4000 of 8000 MiB are in use."""
    world = World()
    world.quota(mem=8000)
    world.see(pod("other").app("secret", mem=4000))
    return world


def test_a_denial_has_the_api_servers_shape_and_the_arithmetic_below(world: World) -> None:
    assert denial(world.create(SUBJECT)) == (
        "exceeded quota: gpu-cap, requested: limits.nvidia.com/gpumem=6000, "
        "used: limits.nvidia.com/gpumem=4000, limited: limits.nvidia.com/gpumem=8000\n"
        "(namespace team-a, MiB: sidecar proxy 2000 + app server 4000 run together; 2000 too many)"
    )


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(
            pod().app("server", mem=5000), "(namespace team-a, MiB: app server 5000; 1000 too many)", id="one container"
        ),
        pytest.param(
            pod().sidecar("proxy", mem=1000).init("load", mem=9000).app("server", mem=2000),
            "(namespace team-a, MiB: sidecar proxy 1000 + init load 9000 run together; 6000 too many)",
            id="the init phase",
        ),
        pytest.param(
            pod().init("load", mem=9000).sidecar("proxy", mem=1000).app("server", mem=2000),
            "(namespace team-a, MiB: init load 9000; 5000 too many)",
            id="an init container before its sidecar",
        ),
        pytest.param(
            pod().app("server", mem=2000, gpu=3),
            "(namespace team-a, MiB: app server 6000; 2000 too many)",
            id="several cards of one container",
        ),
    ],
)
def test_the_arithmetic_names_the_containers_of_the_busiest_moment(
    world: World, subject: PodBuilder, want: str
) -> None:
    assert denial(world.create(subject)).splitlines()[1] == want


def test_every_exceeded_quota_has_a_line_and_every_key_its_arithmetic(world: World) -> None:
    world.quota("alpha", cores=50, gpu=2, mem=100_000)

    assert denial(world.create(pod().app("server", mem=3000, cores=40, gpu=2))).splitlines() == [
        (
            "exceeded quota: alpha, requested: limits.nvidia.com/gpu=2,limits.nvidia.com/gpucores=80, "
            "used: limits.nvidia.com/gpu=1,limits.nvidia.com/gpucores=0, "
            "limited: limits.nvidia.com/gpu=2,limits.nvidia.com/gpucores=50"
        ),
        (
            "exceeded quota: gpu-cap, requested: limits.nvidia.com/gpumem=6000, "
            "used: limits.nvidia.com/gpumem=4000, limited: limits.nvidia.com/gpumem=8000"
        ),
        "(namespace team-a, quota alpha, limits.nvidia.com/gpu, cards: app server 2; 1 too many)",
        (
            "(namespace team-a, quota alpha, limits.nvidia.com/gpucores, percent of a card's cores: app server 80; "
            "30 too many)"
        ),
        "(namespace team-a, quota gpu-cap, limits.nvidia.com/gpumem, MiB: app server 6000; 2000 too many)",
    ]


def test_figures_stand_in_the_keys_own_unit_rounded_up() -> None:
    world = World(backends(memoryFactor=10))
    world.quota(mem=100)
    world.see(pod("other").app("secret", mem=1).allocated("GPU-a,NVIDIA,601,0:;"))

    assert denial(world.create(pod().app("server", mem=40))).splitlines() == [
        (
            "exceeded quota: gpu-cap, requested: limits.nvidia.com/gpumem=40, "
            "used: limits.nvidia.com/gpumem=61, limited: limits.nvidia.com/gpumem=100"
        ),
        "(namespace team-a, units of 10 MiB: app server 40; 1 too many)",
    ]


def test_a_denial_says_what_terminating_pods_hold(world: World) -> None:
    world.see(pod("other").app("secret", mem=4000).deleting())

    assert denial(world.create(SUBJECT)).endswith("; 2000 too many; terminating pods hold 4000 of the used)")


def test_nothing_of_other_tenants_pods_is_said(world: World) -> None:
    said = denial(world.create(SUBJECT))

    assert "other" not in said
    assert "secret" not in said


def test_an_unsized_pod_is_told_what_to_specify() -> None:
    world = World()
    world.quota(mem=8000)
    world.quota("second", mem=8000)

    assert denial(world.create(pod().init("load", pct=5).app("server", gpu=1).app("fine", mem=1))).splitlines() == [
        "failed quota: gpu-cap: must specify nvidia.com/gpumem for: load, server",
        "failed quota: second: must specify nvidia.com/gpumem for: load, server",
        (
            "(namespace team-a: no card is registered that would give the memory asked as a percentage, "
            "or as whole cards, a size)"
        ),
    ]


def test_an_unusable_amount_is_told_with_what_is_accepted() -> None:
    assert denial(World().create(pod().app("server", mem="16Gi"))) == (
        "container server: nvidia.com/gpumem '16Gi' cannot be used: plain integer, MiB, e.g. 16384, at most 2147483647"
    )


# Warnings.


def test_an_admission_without_anything_to_say_has_no_warnings(world: World) -> None:
    assert warnings(world.create(pod("a").app("server", mem=1))) == []


def test_a_share_of_a_limit_that_is_passed_is_a_warning(world: World) -> None:
    assert warnings(world.create(pod("a").app("server", mem=3200))) == [
        "quota gpu-cap: limits.nvidia.com/gpumem passes 90%: 7200 of 8000 MiB"
    ]


def test_a_lax_mode_warns_of_what_it_would_refuse(world: World) -> None:
    world.ledger.set_mode_label("team-a", "warn")

    assert warnings(world.create(SUBJECT)) == [
        "would be refused: quota gpu-cap: 4000 used + 6000 > 8000 limits.nvidia.com/gpumem"
    ]


def test_an_audit_says_nothing_to_the_user(world: World) -> None:
    world.ledger.set_mode_label("team-a", "audit")

    assert warnings(world.create(SUBJECT)) == []


def test_every_warning_is_short_enough_to_arrive_whole(world: World) -> None:
    world.quota("q" * 250, cores=100)
    name = "c" * 63

    said = warnings(world.create(pod("a").app(name, mem=1).spec(schedulerName="s" * 200)))

    assert len(said) == 2
    assert all(len(line) <= 120 for line in said)


# Audit annotations.


def test_the_audit_log_keeps_mode_verdict_charge_used_and_limit(world: World) -> None:
    world.quota("alpha", cores=50)

    assert audit_annotations(world.create(SUBJECT), world.rules.keys) == {
        "mode": "enforce",
        "verdict": "exceeded",
        "charge": "limits.nvidia.com/gpu=2,limits.nvidia.com/gpumem=6000",
        "used": "alpha:limits.nvidia.com/gpucores=0,gpu-cap:limits.nvidia.com/gpumem=4000",
        "limit": "alpha:limits.nvidia.com/gpucores=50,gpu-cap:limits.nvidia.com/gpumem=8000",
    }


def test_the_audit_log_keeps_no_figures_where_there_are_none(world: World) -> None:
    assert audit_annotations(world.create(pod().app("server", mem="16Gi")), world.rules.keys) == {
        "mode": "enforce",
        "verdict": "invalid",
    }


def test_a_charge_that_carries_no_quota_is_left_out() -> None:
    world = World(count_quota=False)
    world.quota(mem=8000)

    assert audit_annotations(world.create(SUBJECT), world.rules.keys)["charge"] == "limits.nvidia.com/gpumem=6000"


def test_what_is_none_of_our_business_leaves_no_annotations(world: World) -> None:
    assert audit_annotations(world.create(pod().app("server")), world.rules.keys) == {}


# The log.


def test_a_refusal_is_one_line_in_the_log(world: World) -> None:
    line = log_line(world.create(SUBJECT))

    assert line.startswith("pod team-a/a refused: exceeded quota: gpu-cap, ")
    assert " | (namespace team-a, MiB: sidecar proxy 2000 " in line


@pytest.mark.parametrize("mode", [Mode.WARN, Mode.AUDIT])
def test_a_refusal_that_a_mode_lets_pass_says_so(world: World, mode: Mode) -> None:
    world.ledger.set_mode_label("team-a", str(mode))

    assert f"pod team-a/a would be refused (mode {mode}): " in log_line(world.create(SUBJECT))


def test_a_pod_still_to_be_named_is_logged_by_its_prefix(world: World) -> None:
    subject = SUBJECT.metadata(name=None, generateName="job-")

    assert log_line(world.create(subject)).startswith("pod team-a/job-* refused: ")


@pytest.mark.parametrize("nasty", ["x\ny", "x\r\ny", "x\x1b[31my", "x\u2028y", "x\x00y"])
def test_nothing_a_tenant_writes_breaks_the_line(nasty: str) -> None:
    decision = World().create(pod("a").app(nasty, mem=nasty))

    for line in (log_line(decision), log_line(Decision(verdict=decision.verdict, pod_name=nasty, problems=(nasty,)))):
        assert line.isascii()
        assert line.isprintable()

"""What a running ledger and a recount are found to differ in, and the document that the comparison is made on."""

from __future__ import annotations

import json

import pytest
from builders import MEMORY, PodBuilder, World, backends, pod

from webhook.errors import DecodeError
from webhook.reports.ledger_state import (
    InformerState,
    LedgerState,
    decode_ledger_state,
    encode_ledger_state,
    ledger_state,
)
from webhook.reports.verify import Difference, differences, lasting, report, summary

GATED = pod("gated").init("load", mem=5000).app("main", mem=1000)


def state(world: World) -> LedgerState:
    return ledger_state(world.ledger, world.rules, version="1.0", now=world.now)


def world_with(*pods: PodBuilder, mem: int = 8000, **policy: object) -> World:
    world = World(**policy)
    world.quota(mem=mem)
    for each in pods:
        world.see(each)
    return world


def told(held: World, recount: World) -> list[tuple[str, str, str, str]]:
    return [(item.what, item.resource, item.held, item.recount) for item in differences(state(held), state(recount))]


def reasons(held: World, recount: World) -> set[str]:
    return {item.reason for item in differences(state(held), state(recount))}


# The document.


def test_the_document_says_everything_in_order():
    world = world_with(GATED.statuses(load=0), pod("a").app("main", mem=300).deleting())
    world.create(pod("new").app("main", mem=7))
    world.now += 2.5
    world.ledger.set_mode_label("team-a", "warn")

    document = json.loads(
        encode_ledger_state(
            ledger_state(
                world.ledger,
                world.rules,
                version="1.0",
                now=world.now,
                informers=[InformerState(resource="pods", resource_version="41")],
            )
        )
    )

    [namespace] = document.pop("namespaces")
    assert document == {
        "version": "1.0",
        "notReady": "",
        "settings": {
            "defaultMode": "enforce",
            "countQuota": True,
            "hamiCompat": False,
            "assumedCardMemoryMib": {},
            "keys": {f"limits.nvidia.com/{name}": 1 for name in ("gpu", "gpucores", "gpumem")},
        },
        "informers": [{"resource": "pods", "resourceVersion": "41"}],
    }
    assert namespace == {
        "namespace": "team-a",
        "mode": "warn",
        "quotas": [
            {
                "name": "gpu-cap",
                "limits": {MEMORY: 8000},
                "used": {MEMORY: 1307},
                "inOwnUnits": {"limits": {f"limits.{MEMORY}": 8000}, "used": {f"limits.{MEMORY}": 1307}},
            }
        ],
        "records": [
            {
                "uid": "uid-a",
                "name": "a",
                "stage": "pending",
                "charge": {"nvidia.com/gpu": 1, MEMORY: 300},
                "peak": {"nvidia.com/gpu": 1, MEMORY: 300},
                "steady": {"nvidia.com/gpu": 1, MEMORY: 300},
                "gateOpen": False,
                "terminatingSince": "2026-01-01T00:00:30Z",
                "problem": "",
            },
            {
                "uid": "uid-gated",
                "name": "gated",
                "stage": "shrunk",
                "charge": {"nvidia.com/gpu": 1, MEMORY: 1000},
                "peak": {"nvidia.com/gpu": 1, MEMORY: 5000},
                "steady": {"nvidia.com/gpu": 1, MEMORY: 1000},
                "gateOpen": True,
                "terminatingSince": "",
                "problem": "",
            },
        ],
        "reservations": [{"uid": "uid-new", "name": "new", "charge": {"nvidia.com/gpu": 1, MEMORY: 7}, "ageS": 2.5}],
    }


def test_the_document_can_be_read_again():
    held = state(world_with(GATED))
    assert decode_ledger_state(encode_ledger_state(held)) == held
    with pytest.raises(DecodeError, match="ledger"):
        decode_ledger_state(b"{}")
    with pytest.raises(DecodeError):
        decode_ledger_state(b"\xff")


# The comparison.


def test_equal_ledgers_have_no_differences():
    world = world_with(GATED, pod("a").app("main", mem=300))
    assert differences(state(world), state(world)) == []
    assert summary(state(world)) == "equal: 2 pods and 1 keys of quotas in 1 namespaces"


def test_a_pod_that_was_missed_and_one_that_is_gone_are_told_with_the_use_they_change():
    held = world_with(pod("gone").app("main", mem=100))
    recount = world_with(pod("new").app("main", mem=300))

    assert told(held, recount) == [
        ("quota gpu-cap used", MEMORY, "100", "300"),
        ("pod gone (uid-gone)", "nvidia.com/gpu", "1", "absent"),
        ("pod gone (uid-gone)", MEMORY, "100", "absent"),
        ("pod new (uid-new)", "nvidia.com/gpu", "absent", "1"),
        ("pod new (uid-new)", MEMORY, "absent", "300"),
    ]
    assert reasons(held, recount) == {
        "",
        "the webhook has not seen this pod",
        "the webhook has not seen that this pod is gone",
    }


def test_a_gate_that_was_once_open_is_named_as_the_reason():
    held = world_with(GATED.statuses(load=0), GATED.statuses(load=1))
    recount = world_with(GATED.statuses(load=1))

    assert ("pod gated (uid-gate)", MEMORY, "1000", "5000") in told(held, recount)
    assert any("init containers had ended" in reason for reason in reasons(held, recount))


def test_a_figure_that_was_kept_is_named_as_the_reason():
    subject = pod("a").app("main", mem=100)
    broken = subject.allocated("nonsense")
    held = world_with(subject.allocated("GPU-a,NVIDIA,900,0:;"), broken)
    recount = world_with(broken)

    assert ("pod a (uid-a)", MEMORY, "900", "100") in told(held, recount)
    assert any("keeps the last figure that decoded (" in reason for reason in reasons(held, recount))


def test_an_admission_that_is_not_seen_is_a_difference_with_its_age():
    held, recount = world_with(), world_with()
    held.create(pod("new").app("main", mem=7))
    held.now += 3

    assert told(held, recount) == [
        ("quota gpu-cap used", MEMORY, "7", "0"),
        ("pod new (uid-new)", "nvidia.com/gpu", "1", "absent"),
        ("pod new (uid-new)", MEMORY, "7", "absent"),
    ]
    assert any(reason.startswith("admitted 3 s ago and not seen yet") for reason in reasons(held, recount))


def test_an_admission_that_the_recount_has_seen_already_is_no_difference():
    held, subject = world_with(), pod("new").app("main", mem=7)
    held.create(subject)
    assert told(held, world_with(subject)) == []


def test_quotas_differ_by_limit_and_a_limit_of_zero_is_not_the_same_as_none():
    held, recount = world_with(mem=8000), world_with(mem=9000)
    held.quota("extra", cores=10)
    recount.quota("gpu-cap", mem=9000, cores=0)

    assert told(held, recount) == [
        ("quota extra limit", "nvidia.com/gpucores", "10", "absent"),
        ("quota gpu-cap limit", "nvidia.com/gpucores", "absent", "0"),
        ("quota gpu-cap limit", MEMORY, "8000", "9000"),
    ]


def test_modes_differ_also_where_one_side_knows_nothing_of_the_namespace():
    held, recount = World(), World()
    held.ledger.set_mode_label("team-a", "off")
    assert told(held, recount) == [("mode", "", "off", "enforce")]


def test_options_that_change_what_is_counted_are_compared_first():
    held = World(backends(memoryFactor=10), hami_compat=True, assumed_card_memory_mib={"NVIDIA": 1})
    assert told(held, World(count_quota=False)) == [
        ("option --count-quota", "", "True", "False"),
        ("option --hami-compat", "", "True", "False"),
        ("option --assumed-card-memory", "", "NVIDIA=1", "nothing"),
        ("option --device-config", "limits.nvidia.com/gpu", "1", "absent"),
        ("option --device-config", "limits.nvidia.com/gpumem", "10", "1"),
    ]


# Twice.


def difference(held: int, recount: int, what: str = "quota gpu-cap used") -> Difference:
    return Difference(
        namespace="team-a", what=what, held=str(held), recount=str(recount), drift=str(held - recount), reason="why"
    )


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        pytest.param([difference(5, 4)], [], 0, id="what has gone by the second look was in flight"),
        pytest.param([], [difference(5, 4)], 0, id="what has come by the second look may be in flight"),
        pytest.param([difference(5, 4)], [difference(5, 4)], 1, id="what stays is told"),
        pytest.param([difference(5, 4)], [difference(9, 8)], 1, id="what drifts by the same while all moves is told"),
        pytest.param([difference(5, 4)], [difference(5, 3)], 0, id="what moves between the looks is in flight"),
        pytest.param([difference(5, 4)], [difference(5, 4, "pod a")], 0, id="something else is in flight"),
    ],
)
def test_only_what_is_there_twice_is_told(first: list[Difference], second: list[Difference], want: int):
    assert len(lasting(first, second)) == want


def test_a_report_says_each_reason_once():
    found = [difference(5, 4), difference(50, 40)]
    assert report(found).splitlines() == [
        "NAMESPACE  WHAT                RESOURCE  WEBHOOK  RECOUNT",
        "team-a     quota gpu-cap used  -               5        4",
        "team-a     quota gpu-cap used  -              50       40",
        "",
        "team-a: quota gpu-cap used: why",
    ]

"""What a pod asks for by resource name, and how sure that is."""

from __future__ import annotations

from typing import Any

import pytest
from builders import CORES, COUNT, MEMORY, PodBuilder, World, backends, pod

from webhook.defaulting import Refusal, defaulted
from webhook.inventory import Inventory
from webhook.pod_request import PodRequest, pod_request


def asked(subject: PodBuilder, world: World | None = None, **configured: Any) -> PodRequest:
    """Return what a pod asks for after defaulting."""
    families = world.rules.backends if world else backends(**configured)
    ready = defaulted(subject.build(), families)
    assert not isinstance(ready, Refusal)
    assumed = world.rules.policy.assumed_card_memory_mib if world else {}
    request = pod_request(ready, families, world.ledger.inventory if world else Inventory(), assumed)
    assert isinstance(request, PodRequest)
    return request


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(pod().app("a", mem=2048, cores=20, gpu=2), {MEMORY: 4096, CORES: 40, COUNT: 2}, id="times cards"),
        pytest.param(pod().app("x", mem=1024).app("y", mem=1024), {MEMORY: 2048, COUNT: 2}, id="every container"),
        pytest.param(
            pod().app("a", mem=2147483647, gpu=4), {MEMORY: 8589934588, COUNT: 4}, id="a sum that 32 bits cannot hold"
        ),
        pytest.param(pod().app("a", mem=1, cores=0), {MEMORY: 1, COUNT: 1}, id="zero amounts are left out"),
        pytest.param(pod().app("a").init("i"), {}, id="nothing"),
    ],
)
def test_a_charge_is_in_accounting_units_by_resource(subject: PodBuilder, want: dict[str, int]) -> None:
    assert asked(subject).charge == want


def test_memory_is_charged_in_mib_whatever_its_unit() -> None:
    assert asked(pod().app("a", mem=60, gpu=2), memoryFactor=10).charge[MEMORY] == 1200


def test_each_container_has_its_claim_in_declaration_order() -> None:
    request = asked(pod().sidecar("proxy", mem=1).init("prep").app("server", mem=2))

    assert [(str(claim.kind), claim.container, dict(claim.amounts)) for claim in request.claims] == [
        ("sidecar", "proxy", {MEMORY: 1, COUNT: 1}),
        ("init", "prep", {}),
        ("app", "server", {MEMORY: 2, COUNT: 1}),
    ]


def test_the_containers_that_ask_for_a_family_are_named() -> None:
    request = asked(pod().sidecar("proxy", mem=1).init("prep").app("server", mem=2).app("none", gpu=0))

    assert request.families == {"NVIDIA": ("proxy", "server")}
    assert asked(pod().app("a", gpu=0)).families == {}


def test_containers_with_cards_and_no_share_of_their_cores_are_named() -> None:
    request = asked(pod().init("i", mem=1).app("a", mem=1, cores=0).app("b", mem=1, cores=5).app("c", gpu=1))

    assert request.unthrottled == {CORES: ("i", "a")}


def test_a_family_without_a_core_name_throttles_nobody_and_names_nobody() -> None:
    assert asked(pod().app("a", mem=1), resourceCoreName=None).unthrottled == {}


def test_what_has_no_effect_is_named() -> None:
    request = asked(pod().app("a", mem=5, gpu=None).app("b", gpu=1), defaultGPUNum=0)

    assert [(item.container, item.resource) for item in request.ineffective] == [("a", MEMORY)]
    assert request.families == {"NVIDIA": ("b",)}


def test_what_no_size_is_known_for_is_named_and_charged_no_memory() -> None:
    request = asked(pod().app("a", pct=50).app("b", mem=5))

    assert [item.container for item in request.unsized] == ["a"]
    assert request.charge == {MEMORY: 5, COUNT: 2}


def test_what_was_sized_is_named_with_where_the_size_comes_from() -> None:
    world = World(assumed_card_memory_mib={"NVIDIA": 10_000})
    subject = pod().app("a", pct=50)
    assert [item.is_assumed for item in asked(subject, world).sized] == [True]
    assert asked(subject, world).charge[MEMORY] == 5000

    world.node("node-1", 40_000)
    assert [item.is_assumed for item in asked(subject, world).sized] == [False]
    assert asked(subject, world).charge[MEMORY] == 20_000
    assert asked(subject, world).unsized == ()


def test_memory_without_a_name_needs_no_size() -> None:
    """No quota can limit it."""
    request = asked(pod().app("a", gpu=1), resourceMemoryName=None)

    assert request.sized == ()
    assert request.charge == {COUNT: 1, CORES: 100}


def test_every_problem_is_told() -> None:
    subject = pod().init("i", mem="1.5").app("a", cores=101, mem=1).app("fine", mem=1)

    refused = pod_request(subject.build(), backends(), Inventory(), {})

    assert isinstance(refused, Refusal)
    assert [problem.split(":")[0] for problem in refused.problems] == ["container i", "container a"]


def test_a_sized_init_container_is_walked_like_any_other() -> None:
    world = World()
    world.node("node-1", 40_000)
    request = asked(pod().sidecar("proxy", mem=1000).init("load", pct=50).app("server", mem=3000), world)

    assert request.charge[MEMORY] == 21_000
    assert request.steady[MEMORY] == 4000

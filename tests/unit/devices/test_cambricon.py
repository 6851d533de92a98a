"""What one container asks of the Cambricon family, and the cards of a node."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import pod

from webhook.admission import Verdict
from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, Ineffective, Unusable
from webhook.errors import DecodeError

COUNT, MEMORY, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
BACKEND = families(
    {"cambricon": {"resourceCountName": COUNT, "resourceMemoryName": MEMORY, "resourceCoreName": CORES}}
)["MLU"]


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "1"}, (1, 0, 100, 100), id="a card alone is a whole card, its cores included"),
        pytest.param({COUNT: "1", MEMORY: "20"}, (1, 5120, None, 100), id="memory in units of 256 MiB"),
        pytest.param({COUNT: "2", MEMORY: "20", CORES: "30"}, (2, 5120, None, 30), id="cores in percent of a card"),
        pytest.param({COUNT: "1", MEMORY: "0"}, (1, 0, 100, 100), id="memory 0 is a whole card"),
        pytest.param({COUNT: "1", MEMORY: "20.0"}, (1, 5120, None, 100), id="a whole number with a fraction"),
        pytest.param({COUNT: "1", CORES: "0"}, (1, 0, 100, 0), id="no cores"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(BACKEND, limits) == want


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "1", MEMORY: "16Gi"}, MEMORY, "units of 256 MiB, e.g. 64, at most 8388607", id="bytes"),
        pytest.param({COUNT: "1", MEMORY: "1.5"}, MEMORY, "plain integer", id="a fraction of memory"),
        pytest.param({COUNT: "1", MEMORY: "8388608"}, MEMORY, "at most 8388607", id="one unit too many"),
        pytest.param({COUNT: "1", CORES: "101"}, CORES, "from 0 to 100", id="more cores than a card has"),
        pytest.param({COUNT: "4294967297"}, COUNT, "from 0 to 2147483647, cards", id="a count that wraps"),
        pytest.param({COUNT: "-1"}, COUNT, "from 0 to 2147483647, cards", id="a negative count"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    refused = ask(BACKEND, limits)

    assert isinstance(refused, Unusable)
    assert (refused.container, refused.resource, refused.value) == ("server", want_resource, limits[want_resource])
    assert want_accepted in refused.accepted


def test_design_3_more_cores_than_a_card_has_are_refused() -> None:
    """HAMi charges 150 and books 100: neither is what was meant."""
    assert isinstance(ask(BACKEND, {COUNT: "1", MEMORY: "20", CORES: "150"}), Unusable)


@pytest.mark.parametrize("limits", [{COUNT: "0"}, {COUNT: "0", CORES: "0"}])
def test_design_3_a_count_of_0_alone_asks_for_nothing(limits: dict[str, str]) -> None:
    """HAMi takes the pod over and allocates nothing; nothing is what we charge."""
    assert ask(BACKEND, limits) is None


@pytest.mark.parametrize("limits", [{MEMORY: "90"}, {MEMORY: "0"}, {CORES: "30"}, {CORES: "100"}])
def test_design_3_a_count_of_0_beside_amounts_is_refused(limits: dict[str, str]) -> None:
    """HAMi ignores the amounts in silence; whoever writes them expects to get them."""
    refused = ask(BACKEND, {COUNT: "0"} | limits)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


@pytest.mark.parametrize("resource", [MEMORY, CORES])
def test_an_amount_without_a_count_has_no_effect(resource: str) -> None:
    assert ask(BACKEND, {resource: "20"}) == Ineffective(container="server", resource=resource, count_name=COUNT)


def test_an_amount_without_a_count_is_refused_all_the_same_when_it_cannot_be_used() -> None:
    assert isinstance(ask(BACKEND, {MEMORY: "16Gi"}), Unusable)


@pytest.mark.parametrize(
    ("limits", "want"), [({COUNT: "1"}, True), ({COUNT: "0"}, True), ({MEMORY: "1"}, False), ({}, False)]
)
def test_a_limit_on_the_count_makes_a_pod_hamis(limits: dict[str, str], want: bool) -> None:
    assert defaults(BACKEND, limits) == Defaults(is_found=want)


def test_a_count_in_requests_alone_does_not_make_a_pod_hamis() -> None:
    assert defaults(BACKEND, {}, {COUNT: "1"}) == Defaults()


@pytest.mark.parametrize(
    ("capacity", "want"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({CORES: "0", MEMORY: "96"}, [], id="no cores"),
        pytest.param({CORES: "200"}, [0, 0], id="no memory"),
        pytest.param({CORES: "200", MEMORY: "192"}, [24576, 24576], id="two cards"),
        pytest.param({CORES: "150", MEMORY: "96"}, [16384, 16384], id="a rest makes a card too"),
        pytest.param({CORES: "1k", MEMORY: "960"}, [24576] * 10, id="as the API server writes thousands"),
        pytest.param({CORES: "100500m", MEMORY: "96"}, [], id="a capacity that is not whole"),
    ],
)
def test_a_node_has_the_cards_that_its_capacity_stands_for(capacity: dict[str, str], want: list[int]) -> None:
    assert BACKEND.cards(node(capacity=capacity)) == tuple(
        Card(f"n1-cambricon-mlu-{index}", CardKind("MLU", "", memory_mib, 100)) for index, memory_mib in enumerate(want)
    )


@pytest.mark.parametrize("capacity", [{CORES: "many"}, {CORES: "1e30"}])
def test_a_capacity_that_no_node_has_is_an_error(capacity: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match=r"status.capacity of cambricon.com/mlu.smlu.vcore"):
        BACKEND.cards(node(capacity=capacity))


def test_d1_a_whole_card_is_charged_the_largest_card_the_pod_could_get() -> None:
    """HAMi charges 0 and books the card later."""
    small = node(capacity={CORES: "100", MEMORY: "96"}, name="small")
    large = node(capacity={CORES: "100", MEMORY: "192"}, name="large")
    world = world_of(BACKEND, small, large, hard={f"limits.{MEMORY}": "1k"})

    assert world.create(pod("a").app("server", limits={COUNT: "2"})).charge == {COUNT: 2, MEMORY: 98304, CORES: 200}
    named = (
        pod("b").app("server", limits={COUNT: "1"}).annotated({"cambricon.com/use-gpuuuid": "small-cambricon-mlu-0"})
    )
    assert world.create(named).charge[MEMORY] == 24576


def test_d1_a_whole_card_of_unknown_size_is_refused_where_memory_is_limited() -> None:
    world = world_of(BACKEND, hard={f"limits.{MEMORY}": "1k"})

    assert world.create(pod().app("server", limits={COUNT: "1"})).verdict is Verdict.UNSIZED


def test_a_pod_names_cards_and_no_types() -> None:
    annotations = {
        "cambricon.com/use-gpuuuid": "a, b",
        "cambricon.com/nouse-gpuuuid": "c",
        "cambricon.com/use-mlutype": "MLU370",
        "cambricon.com/nouse-mlutype": "MLU",
    }

    assert BACKEND.constraint(annotations) == CardConstraint(
        use_uuids=frozenset({"a", "b"}), avoid_uuids=frozenset({"c"})
    )


def test_only_hami_writes() -> None:
    assert BACKEND.owned_annotations == (
        "hami.io/cambricon-mlu-devices-allocated",
        "hami.io/cambricon-mlu-devices-to-allocate",
        "CAMBRICON_DSMLU_ASSIGNED",
        "CAMBRICON_DSMLU_PROFILE",
    )

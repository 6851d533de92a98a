"""What one container asks of whole and of virtual XPUs, and the cards of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import pod

from webhook.admission import Verdict
from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, Ineffective, Unusable

WHOLE, COUNT, MEMORY = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
FAMILIES = families(
    {"kunlun": {"resourceCountName": WHOLE, "resourceVCountName": COUNT, "resourceVMemoryName": MEMORY}}
)
CARDS, VIRTUAL = FAMILIES["kunlun"], FAMILIES["XPU"]


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "2"}, (2, 98304, 100, 100), id="without memory, whole cards"),
        pytest.param({COUNT: "1", MEMORY: "1"}, (1, 24576, None, 25), id="a little memory is a quarter"),
        pytest.param({COUNT: "1", MEMORY: "24577"}, (1, 49152, None, 50), id="a little more is a half"),
        pytest.param({COUNT: "1", MEMORY: "49153"}, (1, 98304, None, 100), id="and then the whole card"),
        pytest.param({COUNT: "1", MEMORY: "1024.0"}, (1, 24576, None, 25), id="a whole number with a fraction"),
        pytest.param({COUNT: "0"}, None, id="no card"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(VIRTUAL, limits) == want


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param("0", id="nothing, a quarter to HAMi"),
        pytest.param("-16", id="a negative amount, a quarter to HAMi"),
        pytest.param("98305", id="more than a card has, a whole card to HAMi"),
        pytest.param("64Gi", id="bytes, a whole card to HAMi"),
        pytest.param("1500m", id="a fraction, rounded up by HAMi (design-3)"),
        pytest.param("much", id="no number"),
    ],
)
def test_d27_memory_of_no_size_on_offer_is_refused(memory: str) -> None:
    """HAMi takes anything for some size; what no card has was not meant."""
    refused = ask(VIRTUAL, {COUNT: "1", MEMORY: memory})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (MEMORY, memory)
    assert refused.accepted == "plain integer, MiB, from 1 to 98304, rounded up to one of 24576, 49152, 98304"


def test_counts_that_cannot_be_used_are_refused() -> None:
    refused = ask(VIRTUAL, {COUNT: "-2"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "-2")


def test_design_3_a_count_of_0_beside_memory_is_refused() -> None:
    """HAMi ignores the memory in silence; whoever writes it expects to get it."""
    refused = ask(VIRTUAL, {COUNT: "0", MEMORY: "1"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


def test_memory_without_a_count_has_no_effect() -> None:
    assert ask(VIRTUAL, {MEMORY: "1"}) == Ineffective(container="server", resource=MEMORY, count_name=COUNT)


@pytest.mark.parametrize(
    ("limits", "requests", "want"),
    [
        pytest.param({MEMORY: "1"}, None, Defaults(), id="no count"),
        pytest.param({COUNT: "1"}, None, Defaults(is_found=True), id="no memory"),
        pytest.param({COUNT: "1"}, {MEMORY: "1"}, Defaults(is_found=True), id="memory in requests alone"),
        pytest.param({COUNT: "1", MEMORY: "0"}, None, Defaults(is_found=True), id="memory of no size"),
        pytest.param(
            {COUNT: "1", MEMORY: "10k"},
            {COUNT: "1", MEMORY: "10k"},
            Defaults(is_found=True, limits={MEMORY: "24576"}, requests={MEMORY: "24576"}),
            id="memory rounded up",
        ),
        pytest.param(
            {COUNT: "1", MEMORY: "24Ki"},
            None,
            Defaults(is_found=True, limits={MEMORY: "24576"}, requests={MEMORY: "24576"}),
            id="a size in another spelling",
        ),
        pytest.param(
            {COUNT: "1", MEMORY: "24576"}, {MEMORY: "24576"}, Defaults(is_found=True), id="a size, which stays"
        ),
    ],
)
def test_hami_rounds_memory_up_to_a_size_on_offer(
    limits: dict[str, str], requests: dict[str, str] | None, want: Defaults
) -> None:
    assert defaults(VIRTUAL, limits, requests) == want


def test_without_a_name_for_memory_every_card_is_whole() -> None:
    backend = families({"kunlun": {"resourceVCountName": COUNT}})["XPU"]

    assert backend.managed_resources == (COUNT,)
    assert ask(backend, {COUNT: "1", MEMORY: "1"}) == (1, 98304, 100, 100)


def test_virtual_cards_are_in_force_only_where_their_count_has_a_name() -> None:
    assert "XPU" not in families({"kunlun": {"resourceCountName": WHOLE, "resourceVMemoryName": MEMORY}})
    assert "kunlun" not in families({"kunlun": {"resourceVCountName": COUNT}})


def test_cards_are_read_from_a_nodes_registration() -> None:
    cards = [{"id": "X", "devmem": 98304, "devcore": 100, "type": "XPU"}]

    assert VIRTUAL.cards(node({"hami.io/node-register-xpu": json.dumps(cards)})) == (
        Card("X", CardKind("XPU", "", 98304, 100)),
    )
    assert VIRTUAL.cards(node()) == ()


def test_whole_cards_are_counted_and_are_the_nodes_capacity() -> None:
    world = world_of(CARDS, hard={f"limits.{WHOLE}": "4"})

    assert ask(CARDS, {WHOLE: "8"}) == (8, 0, 100, 0)
    assert CARDS.cards(node(capacity={WHOLE: "1"})) == (Card("n1-kunlun-0", CardKind("kunlun", "", 98304, 100)),)
    assert world.create(pod().app("server", limits={WHOLE: "8"})).verdict is Verdict.EXCEEDED


@pytest.mark.parametrize("backend", [CARDS, VIRTUAL], ids=lambda backend: backend.key)
@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({}, CardConstraint(), id="none"),
        pytest.param({"hami.io/use-xpu-uuid": "a"}, CardConstraint(use_uuids=frozenset({"a"})), id="HAMi's list"),
        pytest.param({"baidu.com/use-gpuuuid": "a"}, CardConstraint(use_uuids=frozenset({"a"})), id="Baidu's list"),
        pytest.param(
            {"hami.io/use-xpu-uuid": "a,b", "baidu.com/use-gpuuuid": "b,c"},
            CardConstraint(use_uuids=frozenset({"b"})),
            id="a card must be in both lists",
        ),
        pytest.param(
            {"hami.io/use-xpu-uuid": "a", "baidu.com/use-gpuuuid": "c"},
            CardConstraint(use_uuids=frozenset({""})),
            id="lists that share no card admit none",
        ),
        pytest.param(
            {"hami.io/no-use-xpu-uuid": "a", "baidu.com/nouse-gpuuuid": "c"},
            CardConstraint(avoid_uuids=frozenset({"a", "c"})),
            id="a card must be in neither list",
        ),
        pytest.param({"hami.io/use-xpu-uuid": " , "}, CardConstraint(), id="an empty list is no constraint"),
    ],
)
def test_both_pairs_of_lists_apply(backend: Any, annotations: dict[str, str], want: CardConstraint) -> None:
    assert backend.constraint(annotations) == want

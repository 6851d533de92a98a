"""What one container asks of the Vastai family, and the cards of a node."""

from __future__ import annotations

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import pod

from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, ResourceNames, Unusable
from webhook.errors import DecodeError

COUNT = "vastaitech.com/va"
REGISTER = "hami.io/node-va-register"
BACKEND = families({"vastai": {"resourceCountName": COUNT, "resourceMemoryName": "example.com/ignored"}})["Vastai"]


def test_the_count_is_the_only_name() -> None:
    assert BACKEND.names == ResourceNames(count=COUNT)
    assert BACKEND.managed_resources == (COUNT,)


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "2"}, (2, 0, 100, 0), id="cards, of which nothing is booked"),
        pytest.param({COUNT: "1.0"}, (1, 0, 100, 0), id="a whole number with a fraction"),
        pytest.param({COUNT: "0"}, None, id="no card (design-3: HAMi takes the pod over and allocates nothing)"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(BACKEND, limits) == want


@pytest.mark.parametrize("value", ["-1", "500m", "4294967297"])
def test_a_count_that_cannot_be_used_is_refused(value: str) -> None:
    refused = ask(BACKEND, {COUNT: value})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, value)
    assert refused.accepted == "a plain integer from 0 to 2147483647, cards"


def test_a_limit_on_the_count_makes_a_pod_hamis() -> None:
    assert defaults(BACKEND, {COUNT: "1"}) == Defaults(is_found=True)
    assert defaults(BACKEND, {}, {COUNT: "1"}) == Defaults()


def test_d28_the_count_can_be_limited_and_needs_no_size() -> None:
    """HAMi has no name of this family to limit; we limit its count."""
    world = world_of(BACKEND, hard={f"limits.{COUNT}": "2"})

    assert world.create(pod("a").app("server", limits={COUNT: "2"})).charge == {COUNT: 2}
    assert not world.admits(pod("b").app("server", limits={COUNT: "1"}))


def test_a_node_registers_cards_of_100_cores_whatever_it_says() -> None:
    text = '[{"id": "a", "type": "Vastai", "devmem": 16384, "devcore": 304, "health": true}]'

    assert BACKEND.cards(node({REGISTER: text})) == (Card("a", CardKind("Vastai", "", 16384, 100)),)
    assert BACKEND.cards(node()) == BACKEND.cards(node({REGISTER: ""})) == ()


@pytest.mark.parametrize(
    "field",
    ['"count": "10"', '"count": 10.5', '"index": -1', '"numa": "0"', '"health": "true"', '"devcore": ""', '"id": 7'],
)
def test_a_card_that_hami_cannot_read_is_an_error(field: str) -> None:
    with pytest.raises(DecodeError, match=REGISTER):
        BACKEND.cards(node({REGISTER: f"[{{{field}}}]"}))


def test_a_pod_names_cards() -> None:
    annotations = {"vastaitech.com/use-gpuuuid": "a,b", "vastaitech.com/nouse-gpuuuid": "b"}

    assert BACKEND.constraint(annotations) == CardConstraint(
        use_uuids=frozenset({"a", "b"}), avoid_uuids=frozenset({"b"})
    )

"""Readings that families share."""

from __future__ import annotations

from typing import Any

import pytest

from webhook.api.quantity import parse_quantity
from webhook.devices.base import CardConstraint
from webhook.devices.reading import canonical, named_cards, quantity_or_none, rewritten


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        pytest.param(0, "0", id="nothing"),
        pytest.param(8192, "8192", id="no whole thousands"),
        pytest.param(5000, "5k", id="thousands"),
        pytest.param(1_500_000, "1500k", id="thousands of them"),
        pytest.param(2_000_000, "2M", id="millions"),
        pytest.param(10**18, "1E", id="the largest suffix"),
        pytest.param(10**30, "1000000000000E", id="and no larger one"),
    ],
)
def test_an_amount_is_written_as_the_api_server_writes_it(amount: int, want: str) -> None:
    assert canonical(amount) == want
    assert parse_quantity(want).whole() == amount


@pytest.mark.parametrize(
    ("amounts", "want"),
    [
        pytest.param({}, {"a.b/c": "10k"}, id="missing"),
        pytest.param({"a.b/c": "9999"}, {"a.b/c": "10k"}, id="another amount"),
        pytest.param({"a.b/c": "10e3"}, {"a.b/c": "10k"}, id="another spelling"),
        pytest.param({"a.b/c": "10000"}, {}, id="written out"),
        pytest.param({"a.b/c": 10000}, {}, id="a number"),
        pytest.param({"a.b/c": "10k"}, {}, id="as the API server writes it"),
    ],
)
def test_an_amount_is_rewritten_unless_it_is_there(amounts: dict[str, Any], want: dict[str, str]) -> None:
    assert rewritten(amounts, "a.b/c", 10000) == want


def test_what_is_no_quantity_is_none() -> None:
    assert quantity_or_none(None) is None
    assert quantity_or_none("some") is None
    assert quantity_or_none("5k") == parse_quantity("5000")


def test_without_annotations_to_look_at_every_card_is_admitted() -> None:
    assert named_cards({"a.b/use": "x"}) == CardConstraint()

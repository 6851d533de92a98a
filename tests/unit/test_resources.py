"""Arithmetic on amounts."""

from __future__ import annotations

import pytest

from webhook.resources import add, exceeding, largest, subtract


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        pytest.param({}, {}, {}, id="nothing and nothing"),
        pytest.param({"a": 1}, {}, {"a": 1}, id="nothing on the right"),
        pytest.param({}, {"a": 1}, {"a": 1}, id="nothing on the left"),
        pytest.param({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 5, "c": 4}, id="key by key"),
        pytest.param({"a": 2**31}, {"a": 2**31}, {"a": 2**32}, id="beyond 32 bits"),
        pytest.param({"a": 2**63}, {"a": 2**63}, {"a": 2**64}, id="beyond 64 bits"),
    ],
)
def test_add(left: dict, right: dict, want: dict) -> None:
    assert add(left, right) == want


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        pytest.param({"a": 3, "b": 2}, {"a": 1}, {"a": 2, "b": 2}, id="key by key"),
        pytest.param({"a": 3}, {"a": 3}, {}, id="what comes to 0 is left out"),
        pytest.param({}, {"a": 1}, {"a": -1}, id="an absent key is 0"),
        pytest.param({"a": 0}, {"a": 0}, {}, id="a written 0 goes too"),
    ],
)
def test_subtract(left: dict, right: dict, want: dict) -> None:
    assert subtract(left, right) == want


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        pytest.param({"a": 1, "b": 5}, {"a": 2, "b": 4, "c": 3}, {"a": 2, "b": 5, "c": 3}, id="key by key"),
        pytest.param({}, {"a": 1}, {"a": 1}, id="an absent key is 0"),
    ],
)
def test_largest(left: dict, right: dict, want: dict) -> None:
    assert largest(left, right) == want
    assert largest(right, left) == want


@pytest.mark.parametrize(
    ("total", "limits", "want"),
    [
        pytest.param({"a": 8000}, {"a": 8000}, [], id="equality fits"),
        pytest.param({"a": 8001}, {"a": 8000}, ["a"], id="one too many"),
        pytest.param({"a": 10**9}, {}, [], id="no limit is never exceeded"),
        pytest.param({"a": 1}, {"a": 0}, ["a"], id="a limit of 0 blocks"),
        pytest.param({}, {"a": 0}, [], id="nothing fits a limit of 0"),
        pytest.param({"a": 2, "b": 2, "c": 0}, {"c": 1, "b": 1, "a": 1}, ["b", "a"], id="in the order of the limits"),
    ],
)
def test_exceeding(total: dict, limits: dict, want: list) -> None:
    assert exceeding(total, limits) == want


def test_nothing_changes_its_arguments() -> None:
    left, right = {"a": 1}, {"a": 1, "b": 2}

    add(left, right)
    subtract(left, right)
    largest(left, right)

    assert (left, right) == ({"a": 1}, {"a": 1, "b": 2})

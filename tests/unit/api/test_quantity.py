"""Quantities, notation by notation."""

from __future__ import annotations

import pytest

from webhook.api.quantity import parse_quantity
from webhook.errors import DecodeError, QuantityError


@pytest.mark.parametrize(
    ("text", "want_whole"),
    [
        pytest.param("16384", 16384, id="plain digits"),
        pytest.param("007", 7, id="leading zeros are dropped"),
        pytest.param("+7", 7, id="a plus sign"),
        pytest.param("-7", -7, id="a minus sign"),
        pytest.param("5.", 5, id="a point with nothing behind it"),
        pytest.param("16.0", 16, id="a whole number spelt with a fraction"),
        pytest.param("16000m", 16, id="a whole number spelt in thousandths"),
        pytest.param("16000000u", 16, id="a whole number spelt in millionths"),
        pytest.param("16000000000n", 16, id="a whole number spelt in billionths"),
        pytest.param("10k", 10_000, id="k is a thousand"),
        pytest.param("1.5k", 1500, id="a fraction of a thousand"),
        pytest.param("2M", 2 * 10**6, id="M is a million"),
        pytest.param("2G", 2 * 10**9, id="G is 10^9"),
        pytest.param("2T", 2 * 10**12, id="T is 10^12"),
        pytest.param("2P", 2 * 10**15, id="P is 10^15"),
        pytest.param("2E", 2 * 10**18, id="E is 10^18"),
        pytest.param("8Ki", 8192, id="Ki is 1024"),
        pytest.param("1.5Gi", 1610612736, id="a fraction of a Gi"),
        pytest.param("16Gi", 17179869184, id="Gi is 1024^3"),
        pytest.param("1e4", 10_000, id="scientific, small e"),
        pytest.param("1E4", 10_000, id="scientific, capital E"),
        pytest.param("10e3", 10_000, id="scientific, not normalised"),
        pytest.param("1.25e2", 125, id="scientific with a fraction"),
        pytest.param("2000e-3", 2, id="scientific, negative exponent"),
        pytest.param("0e999999999", 0, id="zero stays zero whatever the exponent"),
        pytest.param("8Ei", 2**63 - 1, id="a binary suffix is capped at 64 bits"),
        pytest.param("-8Ei", -(2**63 - 1), id="and so is its negative"),
    ],
)
def test_a_whole_number_is_read_whatever_its_spelling(text: str, want_whole: int) -> None:
    assert parse_quantity(text).whole() == want_whole


@pytest.mark.parametrize(
    ("text", "want_nanos", "want_rounded"),
    [
        pytest.param("1500m", 1_500_000_000, 2, id="one and a half"),
        pytest.param(".5", 500_000_000, 1, id="nothing before the point"),
        pytest.param("-1m", -1_000_000, -1, id="a small negative rounds away from zero"),
        pytest.param("1n", 1, 1, id="the finest step"),
        pytest.param("0.1n", 1, 1, id="finer than a billionth rounds up to one"),
        pytest.param("-0.1n", -1, -1, id="finer than a billionth below zero rounds down to one"),
        pytest.param("1e-12", 1, 1, id="far finer than a billionth"),
        pytest.param("0.3Ki", 307_200_000_000, 308, id="a fraction with a binary suffix"),
    ],
)
def test_a_fraction_is_kept_to_the_billionth_and_is_no_whole_number(
    text: str, want_nanos: int, want_rounded: int
) -> None:
    quantity = parse_quantity(text)

    assert quantity.nanos == want_nanos
    assert quantity.whole() is None
    assert quantity.rounded_up() == want_rounded


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="nothing"),
        pytest.param(" 5", id="a leading blank"),
        pytest.param("5 ", id="a trailing blank"),
        pytest.param("5\n", id="a trailing newline"),
        pytest.param("1_000", id="an underscore"),
        pytest.param("10,000", id="a comma"),
        pytest.param("0x10", id="hexadecimal"),
        pytest.param("NaN", id="not a number"),
        pytest.param("inf", id="infinity"),
        pytest.param("٣", id="a digit of another script"),
        pytest.param("1..5", id="two points"),
        pytest.param("--1", id="two signs"),
        pytest.param("1e1.5", id="an exponent with a fraction"),
        pytest.param("16GB", id="an unknown suffix"),
        pytest.param("16KI", id="a suffix in the wrong case"),
        pytest.param("1Kii", id="a suffix and more"),
        pytest.param(None, id="null"),
        pytest.param(True, id="a boolean, though Python counts it as a number"),
        pytest.param([1], id="a list"),
        pytest.param({}, id="a mapping"),
    ],
)
def test_what_kubernetes_would_not_parse_is_an_error_that_names_field_and_value(value: object) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(value, "spec.hard")

    assert str(caught.value).startswith("spec.hard: ")
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, DecodeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text", [".", "+", "-.", "Gi", "Ti", "k", "e3"])
def test_a_text_without_a_digit_is_zero_as_kubernetes_has_it(text: str) -> None:
    assert parse_quantity(text).nanos == 0


@pytest.mark.parametrize("text", ["Pi", "Ei", "-Pi", "e-30"])
def test_a_text_without_a_digit_that_kubernetes_refuses_is_refused(text: str) -> None:
    """Upstream reads these on its slow path, which asks for a digit."""
    with pytest.raises(QuantityError):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "want_whole"),
    [
        pytest.param(16384, 16384, id="an integer"),
        pytest.param(16.0, 16, id="a float that is whole"),
        pytest.param(1e22, 10**22, id="a float that Python prints with an exponent"),
        pytest.param(1.5, None, id="a float that is not whole"),
    ],
)
def test_a_number_that_yaml_left_unquoted_is_read(value: float, want_whole: int | None) -> None:
    assert parse_quantity(value).whole() == want_whole


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_float_that_is_no_number_is_an_error(value: float) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(value)


def test_different_spellings_are_one_amount() -> None:
    assert len({parse_quantity(text) for text in ("10k", "1e4", "10000", "10000.0", "10000000m")}) == 1


def test_amounts_are_ordered_by_size() -> None:
    assert parse_quantity("1Ki") > parse_quantity("1k") > parse_quantity("999")


@pytest.mark.parametrize(
    ("text", "want_length"),
    [
        pytest.param("1e999999999", 70, id="a huge exponent costs no memory"),
        pytest.param("1e-999999999", 1, id="a tiny one neither"),
        pytest.param("9" * 1000, 70, id="a thousand digits"),
        pytest.param("0." + "0" * 997 + "1", 1, id="a long fraction"),
    ],
)
def test_absurd_texts_are_read_without_cost(text: str, want_length: int) -> None:
    assert len(str(parse_quantity(text).nanos)) <= want_length


def test_a_text_too_long_to_be_meant_is_an_error_that_does_not_repeat_it() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity("1" * 100_000)

    assert len(str(caught.value)) < 200


def test_huge_amounts_stay_huge() -> None:
    assert parse_quantity("1e30").whole() == 10**30
    assert parse_quantity("1e300") >= parse_quantity("1e60")
    assert parse_quantity("-1e300") <= parse_quantity("-1e60")

"""What kube-apiserver itself answered: the formula, the scopes of quotas, and quantities."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from vectors.files import Json, cases, load
from webhook.api.pod import convert_pod
from webhook.api.quantity import parse_quantity
from webhook.api.resource_quota import ResourceQuota
from webhook.effective import Claim, effective, kinds
from webhook.errors import QuantityError
from webhook.quotas import read_quota, scope_facts


@pytest.mark.parametrize(("document", "case"), cases("kube/effective_requests.json"))
def test_the_formula_is_what_the_api_server_charges(document: Json, case: Json) -> None:
    claims = []
    for kind, container in kinds(convert_pod(case["pod"])):
        amounts = {name: parse_quantity(value).rounded_up() for name, value in container.limits.items()}
        claims.append(Claim(container=container.name, kind=kind, amounts=amounts))

    charged = {name: amount for name, amount in effective(claims).items() if amount}

    assert charged == case["want"]


@pytest.mark.parametrize(("document", "case"), cases("kube/quota_scopes.json"))
def test_the_quotas_that_match_are_those_the_api_server_charged(document: Json, case: Json) -> None:
    spec = {**case["pod"]["spec"]}
    # What admission had filled in before quotas were matched.
    if "priorityClassName" in case["seen"]:
        spec["priorityClassName"] = case["seen"]["priorityClassName"]
    facts = scope_facts(convert_pod({"spec": spec}))
    quotas = {
        name: read_quota(msgspec.convert({"metadata": {"name": name}, "spec": scopes}, ResourceQuota), {})
        for name, scopes in document["quotas"].items()
    }

    assert sorted(name for name, quota in quotas.items() if quota.applies_to(facts)) == sorted(case["want"])
    assert facts.is_best_effort == (case["qosClass"] == "BestEffort")


QUANTITIES = [pytest.param(case, id=repr(case["in"])) for case in load("kube/quantities.json")["cases"]]

_SCALES = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000 ** (power + 1)) for power, suffix in enumerate("mun")},
    **{suffix: Fraction(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{suffix + "i": Fraction(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
}

_BILLION = 10**9
_MAX_INT64 = 2**63 - 1


def exact_nanos(text: str) -> int:
    """Return the billionths a well-formed quantity stands for, by its documented rules and nothing of ours.

    Finer than a billionth is rounded away from zero, and amounts with a binary suffix end at 2^63 - 1.
    """
    suffix = re.search(r"([numkMGTPE]|[KMGTPE]i)?$", text)
    assert suffix
    number = text.removesuffix(suffix[0])
    mantissa, _, exponent = number.lower().partition("e")
    sign = -1 if mantissa.startswith("-") else 1
    value = abs(Fraction(mantissa.rstrip(".") or "0")) * Fraction(10) ** int(exponent or 0)
    value *= _SCALES[suffix[0]]
    nanos = -((-value * _BILLION) // 1)
    if suffix[0].endswith("i"):
        nanos = min(nanos, _MAX_INT64 * _BILLION)
    return sign * int(nanos)


def away_from_zero(nanos: int) -> int:
    """Return a number of billionths as a whole number, rounded away from zero."""
    whole = -(-abs(nanos) // _BILLION)
    return whole if nanos >= 0 else -whole


def go_overflow(nanos: int) -> int:
    """Return what Go makes of a negative amount that it holds with more digits than 64 bits have.

    Upstream's conversion cuts the billionths to 64 bits, divides truncating, and adds one for a remainder, whatever
    the sign.
    """
    cut = (nanos + 2**63) % 2**64 - 2**63
    quotient = abs(cut) // _BILLION * (1 if cut >= 0 else -1)
    return quotient + (1 if cut % _BILLION else 0)


@pytest.mark.parametrize("case", QUANTITIES)
def test_a_quantity_is_read_as_kubernetes_reads_it(case: dict[str, Any]) -> None:
    try:
        quantity = parse_quantity(case["in"])
    except QuantityError:
        assert not case["ok"]
        return

    assert case["ok"]
    assert quantity.nanos == exact_nanos(case["in"])
    assert quantity.rounded_up() == away_from_zero(quantity.nanos)
    assert (quantity.whole() is not None) == case["is_integer"]
    assert (quantity.nanos > 0) - (quantity.nanos < 0) == case["sign"]
    if "value" not in case:
        assert abs(quantity.rounded_up()) > _MAX_INT64
    elif quantity.rounded_up() != case["value"]:
        # Only here does Kubernetes not say the number: ours stays exact, and this is all that differs.
        assert quantity.nanos < 0
        assert case["value"] == go_overflow(quantity.nanos)

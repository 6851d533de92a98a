"""Verdict and figures of HAMi's quota check for pods that ask two families at once."""

from __future__ import annotations

import pytest
from builders import World, quota_object

from vectors.files import FAMILIES, Json, backends, cases, is_ours, load
from vectors.test_quota import PINNED, record
from webhook.quotas import read_quota

NAME = "quota_mixed.json"


def is_in_force(case: Json) -> bool:
    """Return whether both families of a case, which its name begins with, are in force."""
    return all(family.startswith(FAMILIES) for family in case["id"].partition(" (")[0].split(" and "))


@pytest.mark.parametrize(("document", "case"), cases(NAME, lambda case: is_in_force(case) and is_ours(case)))
def test_the_figures_and_the_verdict_are_hamis(document: Json, case: Json) -> None:
    world = World(backends(document))
    world.ledger.set_quota("team-a", read_quota(quota_object(hard=case["limits"]), world.rules.keys))
    world.ledger.record_pod("team-a", "uid-other", lambda _previous, _inventory: record(case["used"]))
    want = case["want"] | case.get("want_design", {})

    decision = world.create({"kind": "Pod", **case["pod"]})

    assert decision.charge == want["memory"] | want["cores"] | want["cards"]
    assert decision.is_allowed == want["fits"]


def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own() -> None:
    left_out = [case for case in load(NAME)["cases"] if is_in_force(case) and not is_ours(case)]

    assert {tag for case in left_out for tag in case["weak_spot"].split(", ")} <= PINNED

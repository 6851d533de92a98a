"""Verdict and figures of HAMi's quota check, quota by quota."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from builders import World, quota_object

from vectors.files import Json, backends, cases, is_in_force, is_ours, load, names
from webhook.admission import Verdict
from webhook.quotas import ScopeFacts, read_quota
from webhook.usage import Figure, PodRecord, Stage

# The file with several families in a pod has another shape.
FILES = [name for name in names("quota*.json") if name != "quota_mixed.json"]

# Weak spots whose answer the design leaves to us; each has a test of its own under tests/unit.
PINNED = {"D9", "D16", "D18", "D20"}

_NO_SCOPES = ScopeFacts(
    is_terminating=False, is_best_effort=True, priority_class="", has_cross_namespace_affinity=False
)


def record(charge: dict[str, int]) -> PodRecord:
    """Return the record of a running pod that holds `charge`."""
    figure = Figure(peak=charge, steady=charge)
    return PodRecord(
        uid="uid-other",
        name="other",
        facts=_NO_SCOPES,
        stage=Stage.ALLOCATED,
        figure=figure,
        is_gate_open=True,
        last_decoded=figure,
        terminating_since="",
        estimated=None,
        problem="",
    )


def is_judged(case: Json) -> bool:
    """Return whether a case of a family in force says what we answer."""
    return is_in_force(case["id"]) and is_ours(case)


@pytest.mark.parametrize(("document", "case"), [param for name in FILES for param in cases(name, is_judged)])
def test_the_figures_and_the_verdict_are_hamis(document: Json, case: Json) -> None:
    world = World(backends(document))
    world.ledger.set_quota("team-a", read_quota(quota_object(hard=case["limits"]), world.rules.keys))
    limited = {name.removeprefix("limits.") for name in case["limits"]}
    used = {}
    for backend in world.rules.backends:
        if not limited.isdisjoint((backend.names.count, backend.names.memory, backend.names.cores)):
            used |= {backend.names.memory: case["used"]["memory"], backend.names.cores: case["used"]["cores"]}
    used = {name: amount for name, amount in used.items() if name and amount}
    world.ledger.record_pod("team-a", "uid-other", lambda _previous, _inventory: record(used))
    want = case["want"] | case.get("want_design", {})

    decision = world.create({"kind": "Pod", **case["pod"]})

    if want.get("refused"):
        assert not decision.is_allowed
        assert decision.verdict is Verdict.UNSIZED
        [unsized] = decision.unsized
        assert want.get("container") in (None, *unsized.containers)
        assert want.get("resource") in (None, unsized.resource)
        return
    total = partial(_total, world, decision.charge)
    # HAMi's record has cores in a family whose cores have no name; they are nobody's to limit.
    cores = want["cores"] if _have_cores(world, decision.charge) else 0
    assert (total("memory"), total("cores"), total("count")) == (want["memory"], cores, want["cards"])
    assert decision.is_allowed == want["fits"]


def _have_cores(world: World, charge: dict[str, int]) -> bool:
    """Return whether the cores of the families charged have a name."""
    return all(backend.names.cores for backend in world.rules.backends if backend.names.count in charge)


def _total(world: World, charge: dict[str, int], amount: str) -> int:
    """Return one amount of a charge, whichever family it is of."""
    resources = {getattr(backend.names, amount) for backend in world.rules.backends}
    return sum(charge.get(resource, 0) for resource in resources)


@pytest.mark.parametrize("name", FILES, ids=lambda name: Path(name).stem)
def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own(name: str) -> None:
    left_out = [case for case in load(name)["cases"] if is_in_force(case["id"]) and not is_ours(case)]

    assert {tag for case in left_out for tag in case["weak_spot"].split(", ")} <= PINNED

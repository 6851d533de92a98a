"""What is recorded of a pod's devices, card by card, at its peak and after the shrink."""

from __future__ import annotations

import pytest

from vectors.files import Json, backends, cases, device_keys, is_ours, load, scheduled_pod
from webhook.api.pod import convert_pod
from webhook.defaulting import Refusal
from webhook.effective import effective, steady_state
from webhook.inventory import Inventory
from webhook.pod_request import pod_request
from webhook.usage import UsageRules, card_claims, next_record

# Weak spots whose answer the design leaves to us; tests/unit/test_usage.py has it.
PINNED = {"A35"}

_AMOUNTS = {"memory": "mem", "cores": "cores", "slots": "slots"}


def is_in_force(case: Json) -> bool:
    """Return whether every device of a case is of a family in force."""
    return all(device_keys().issuperset(entry.get("devices", {})) for entry in case["init"] + case["apps"])


def by_card(amounts: dict[tuple[str, str], int]) -> Json:
    """Return amounts as the vectors write them."""
    cards: Json = {}
    for (uuid, amount), value in amounts.items():
        cards.setdefault(uuid, dict.fromkeys(_AMOUNTS.values(), 0))[_AMOUNTS[amount]] = value
    return cards


def without_zeros(amounts: dict[str, int]) -> dict[str, int]:
    """Return amounts without those that are 0."""
    return {name: amount for name, amount in amounts.items() if amount}


@pytest.mark.parametrize(("document", "case"), cases("collapse.json", lambda case: is_in_force(case) and is_ours(case)))
def test_the_recorded_devices_collapse_as_hami_collapses_them(document: Json, case: Json) -> None:
    families = backends(document)
    manifest = scheduled_pod(case, families)
    manifest["metadata"]["annotations"] = case["annotations"]
    pod = convert_pod(manifest)
    want = case.get("want_design", case["want"])

    record = next_record(None, pod, UsageRules(backends=families, assumed_card_memory_mib={}), Inventory())

    assert record is not None
    assert not record.problem
    counts = {backend.names.count for backend in families}
    for figure, used, cards in (
        (record.figure.peak, want["used_at_peak"], want["peak"]),
        (record.figure.steady, want["used_steady"], want["steady"]),
    ):
        assert without_zeros({name: figure[name] for name in figure.keys() - counts}) == without_zeros(used)
        slots = {
            backend.names.count: sum(card["slots"] for card in cards.get(backend.key, {}).values())
            for backend in families
        }
        assert without_zeros({name: figure.get(name, 0) for name in counts}) == without_zeros(slots)


@pytest.mark.parametrize(("document", "case"), cases("collapse.json", lambda case: is_in_force(case) and is_ours(case)))
def test_each_card_collapses_on_its_own(document: Json, case: Json) -> None:
    families = backends(document)
    pod = convert_pod(scheduled_pod(case, families))
    request = pod_request(pod, families, Inventory(), {})
    assert not isinstance(request, Refusal)
    want = case.get("want_design", case["want"])
    claims = {
        backend.key: card_claims(
            pod,
            backend,
            case["annotations"][backend.allocated_annotation],
            request.families.get(backend.key, ()),
            Inventory(),
        )
        for backend in families
        if backend.allocated_annotation in case["annotations"]
    }

    assert {key: by_card(effective(found)) for key, found in claims.items()} == want["peak"]
    assert {key: by_card(steady_state(found)) for key, found in claims.items()} == want["steady"]


def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own() -> None:
    left_out = [case for case in load("collapse.json")["cases"] if is_in_force(case) and not is_ours(case)]

    assert {tag for case in left_out for tag in case["weak_spot"].split(", ")} <= PINNED

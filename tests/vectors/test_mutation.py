"""What HAMi's webhook makes of a pod: the answer of `mutation`, and the patch applied by the jsonpatch library."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from vectors.files import Json, backends, cases, is_ours, load, names, tags
from webhook.defaulting import Refusal
from webhook.devices.base import DeviceBackend
from webhook.mutation import Operation, mutation
from webhook.policy import Policy

FILES = names("mutation/*.json")

# The configurations in force for the cases were read by a webhook with these flags.
POLICY = Policy()


def patch(document: Json, families: tuple[DeviceBackend, ...]) -> list[Operation] | Refusal:
    """Return what `mutation` says of a pod, which it leaves as it is."""
    before = copy.deepcopy(document)
    result = mutation(document, families, POLICY)
    assert document == before
    return result


def patched(document: Json, families: tuple[DeviceBackend, ...]) -> Json | None:
    """Return the pod with its patch applied; None for a pod that is refused."""
    operations = patch(document, families)
    return None if isinstance(operations, Refusal) else jsonpatch.apply_patch(document, operations)


def without_order(document: Any) -> Any:
    """Return a pod with its variables sorted, a missing value being an empty one."""
    document = copy.deepcopy(document)
    for container in [*document["spec"].get("initContainers", []), *document["spec"]["containers"]]:
        if "env" in container:
            container["env"] = sorted(({"value": ""} | variable for variable in container["env"]), key=str)
    return document


@pytest.mark.parametrize(("document", "case"), [param for name in FILES for param in cases(name, is_ours)])
def test_the_pod_is_what_hami_makes_of_it(document: Json, case: Json) -> None:
    want = case["want"] | case.get("want_design", {})

    got = patched(case["pod"], backends(document))

    assert (got is not None) == (want["allowed"] and not want.get("refused"))
    if got is not None:
        assert without_order(got) == without_order(want["pod"])


@pytest.mark.parametrize(("document", "case"), [param for name in FILES for param in cases(name)])
def test_the_result_has_nothing_left_to_patch(document: Json, case: Json) -> None:
    once = patched(case["pod"], backends(document))

    if once is not None:
        assert patch(once, backends(document)) == []


@pytest.mark.parametrize(("document", "case"), [param for name in FILES for param in cases(name)])
def test_the_patch_touches_nothing_twice_and_nothing_that_is_so_already(document: Json, case: Json) -> None:
    operations = patch(case["pod"], backends(document))
    if isinstance(operations, Refusal):
        return
    paths = [operation["path"] for operation in operations if not operation["path"].endswith("/-")]
    assert len(paths) == len(set(paths))
    for operation in operations:
        assert jsonpatch.apply_patch(case["pod"], [operation]) != case["pod"]


# The kinds of case in which HAMi's own answer is not ours and the vectors leave ours open. What each family makes of
# them, and why, stands beside the family's other tests in tests/unit/devices; what the pod comes to, in
# tests/unit/test_mutation.py.
PINNED = {"D3", "D4", "D5", "D7", "D8", "D10", "D11", "D13", "D14", "D23", "D24", "D27", "design-3", "design-8"}


@pytest.mark.parametrize("name", FILES, ids=lambda name: Path(name).stem)
def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own(name: str) -> None:
    left_out = [case for case in load(name)["cases"] if not is_ours(case)]
    assert set().union(*map(tags, left_out)) <= PINNED

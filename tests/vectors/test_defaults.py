"""What HAMi's defaulting makes of a pod, in the families of which the folder has mutation vectors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from vectors.files import FAMILIES, ROOT, Json, backends, cases, is_ours, load, tags
from webhook.api.pod import convert_pod
from webhook.defaulting import hami_refusal
from webhook.devices.base import Defaults, DeviceBackend, Unusable
from webhook.policy import Policy

FILES = sorted(str(path.relative_to(ROOT)) for family in FAMILIES for path in ROOT.glob(f"mutation/{family}*.json"))

# Weak spots whose answer the design leaves to us; each has a test of its own under tests/unit/devices.
PINNED = {"D3", "D4", "D5", "D7", "D8", "D10", "D11", "D13", "D14", "D23", "D24", "D27", "design-3", "design-8"}


def mutated(document: Json, families: tuple[DeviceBackend, ...]) -> Json | None:
    """Return a pod with every family's defaults applied, as HAMi's webhook applies them; None for one it refuses."""
    document = copy.deepcopy(document)
    pod = convert_pod(document)
    policy = Policy()
    written = [*document["spec"].get("initContainers", []), *document["spec"].get("containers", [])]
    if not pod.spec.containers:
        return None
    if not policy.is_hami_scheduled(pod.spec.scheduler_name):
        return document
    is_found = False
    for container, target in zip(pod.containers(), written, strict=True):
        for backend in families:
            defaults = backend.defaults(container, pod)
            if isinstance(defaults, Unusable):
                return None
            is_found = is_found or defaults.is_found
            apply(defaults, target, document)
    if not is_found:
        return document
    document["spec"]["schedulerName"] = "hami-scheduler"
    return None if hami_refusal(pod, policy, is_mirror=False) else document


def apply(defaults: Defaults, container: Json, pod: Json) -> None:
    """Change a container and its pod as the defaults of one family say."""
    for key, amounts in (("limits", defaults.limits), ("requests", defaults.requests)):
        if amounts:
            container.setdefault("resources", {}).setdefault(key, {}).update(amounts)
    env = container.get("env", [])
    known = {variable["name"] for variable in env}
    env = env + [{"name": name, "value": value} for name, value in defaults.env if name not in known]
    if env:
        container["env"] = env
    if defaults.annotations:
        pod["metadata"].setdefault("annotations", {}).update(defaults.annotations)
    if defaults.runtime_class_name:
        pod["spec"].setdefault("runtimeClassName", defaults.runtime_class_name)


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

    got = mutated(case["pod"], backends(document))

    assert (got is not None) == (want["allowed"] and not want.get("refused"))
    if got is not None:
        assert without_order(got) == without_order(want["pod"])


@pytest.mark.parametrize(
    ("document", "case"),
    [
        param
        for name in FILES
        # An NVIDIA count in requests alone, which no API server lets in.
        for param in cases(name, lambda case: not case.get("weak_spot", "").startswith("design-8"))
    ],
)
def test_defaulting_changes_nothing_in_its_own_result(document: Json, case: Json) -> None:
    once = mutated(case["pod"], backends(document))

    if once is not None:
        assert mutated(once, backends(document)) == once


@pytest.mark.parametrize("name", FILES, ids=lambda name: Path(name).stem)
def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own(name: str) -> None:
    left_out = [case for case in load(name)["cases"] if not is_ours(case)]
    assert set().union(*map(tags, left_out)) <= PINNED

"""What each container asks for after defaulting, as HAMi's own parsers say."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import with_limits

from vectors.files import FAMILIES, Json, backends, cases, is_ours, load, names, tags
from webhook.api.pod import Container, Pod, convert_pod
from webhook.defaulting import Refusal, defaulted
from webhook.devices.base import DeviceBackend, DeviceRequest, Unusable
from webhook.devices.enflame import SliceRequest
from webhook.inventory import Inventory
from webhook.pod_request import pod_request

FILES = [name for family in FAMILIES for name in names(f"requests/{family}*.json")]

# HAMi's mark for "no percentage was given", 0 in the other families.
_NO_PERCENT = {"NVIDIA": 101}

# HAMi's mark for an Enflame slice that is not asked by its size.
_BY_MEMORY_AND_CORES = -1

# Weak spots whose answer the design leaves to us; each has a test of its own under tests/unit/devices.
PINNED = {"D7", "D9", "D19", "D22", "D23", "D24", "D27", "design-3"}


def after_defaulting(pod: Pod, families: tuple[DeviceBackend, ...]) -> list[Container]:
    """Return each container as HAMi's mutation leaves it; requests without limits, which only HAMi lets in, stay."""
    containers = []
    for original in pod.containers():
        container = original
        for backend in families:
            defaults = backend.defaults(original, pod)
            assert not isinstance(defaults, Unusable)
            container = with_limits(container, defaults.limits)
        containers.append(container)
    return containers


def record(family: str, request: DeviceRequest) -> list[int]:
    """Return a request as the vectors write it: cards, memory, percent and cores."""
    if isinstance(request, SliceRequest):
        asked = (request.slices, 0) if request.slices else (request.memory_asked, _BY_MEMORY_AND_CORES)
        return [request.cards, *asked, request.cores_percent]
    percent = _NO_PERCENT.get(family, 0) if request.memory_percent is None else request.memory_percent
    return [request.cards, request.memory_mib, percent, request.cores_percent]


@pytest.mark.parametrize(
    ("document", "case"),
    [
        param
        for name in FILES
        for param in cases(name, lambda case: is_ours(case) and "refused" not in case.get("want_design", {}))
    ],
)
def test_the_records_after_defaulting_are_hamis(document: Json, case: Json) -> None:
    families = backends(document)
    pod = convert_pod(case["pod"])
    got = []
    for container in after_defaulting(pod, families):
        requests = {backend.key: backend.request(container, pod) for backend in families}
        records = {key: record(key, asked) for key, asked in requests.items() if isinstance(asked, DeviceRequest)}
        assert not any(isinstance(asked, Unusable) for asked in requests.values())
        got.append({"container": container.name, "records": records})

    assert got == case.get("want_design", case["want"])["after_mutation"]


@pytest.mark.parametrize(
    ("document", "case"),
    [param for name in FILES for param in cases(name, lambda case: bool(case.get("want_design", {}).get("refused")))],
)
def test_what_hami_counts_as_nothing_is_refused(document: Json, case: Json) -> None:
    families = backends(document)
    want = case["want_design"]

    ready = defaulted(convert_pod(case["pod"]), families)
    result = ready if isinstance(ready, Refusal) else pod_request(ready, families, Inventory(), {})

    assert isinstance(result, Refusal)
    [problem] = result.problems
    assert f"container {want['container']}:" in problem if "container" in want else True
    assert f" {want['resource']} " in problem if "resource" in want else True


@pytest.mark.parametrize("name", FILES, ids=lambda name: Path(name).stem)
def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own(name: str) -> None:
    left_out = [case for case in load(name)["cases"] if not is_ours(case)]
    assert set().union(*map(tags, left_out)) <= PINNED

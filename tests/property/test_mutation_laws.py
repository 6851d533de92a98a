"""The laws of defaulting, for pods that ask any families for anything."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from webhook.api.pod import convert_pod
from webhook.defaulting import Refusal, defaulted, hami_refusal
from webhook.devices.registry import load_backends, managed_resources
from webhook.inventory import Inventory
from webhook.mutation import mutation
from webhook.pod_request import PodRequest, pod_request
from webhook.policy import Policy

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from webhook.devices.base import DeviceBackend

CONFIGS = sorted((Path(__file__).parents[1] / "vectors" / "config").glob("*.yaml"))

POLICY = Policy()

Json = dict[str, Any]

# Counts, shares, sizes of cards and of their parts, and what cannot be used; as the API server spells them.
AMOUNTS = (
    *("0", "1", "1", "1", "2", "2", "3", "4", "8", "16", "30", "32", "50", "64", "96", "100", "101", "192", "200"),
    *("1k", "8192", "12k", "12288", "16384", "24576", "32768", "49152", "65536", "98304", "8Gi", "5G", "500m", "-1"),
)
ANNOTATIONS = {
    "huawei.com/vnpu-mode": ("hami-core", "template"),
    "metax-tech.com/sgpu-app-class": ("online", "offline", "odd"),
    "metax-tech.com/sgpu-qos-policy": ("fixed-share", "odd"),
    "mthreads.com/request-gpu-num": ("7",),
}
VARIABLES = ("A", "CUDA_TASK_PRIORITY", "NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "SOL_CONTINER_NAME")


@cache
def families(config: Path) -> tuple[DeviceBackend, ...]:
    return load_backends(config.read_text())


@st.composite
def containers(draw: DrawFn, config: Path, name: str, *, is_valid: bool) -> Json:
    """Return a container that asks up to two families for some of their resources, or for nothing."""
    asked = draw(st.lists(st.sampled_from(families(config)), max_size=2, unique_by=id))
    names = sorted(managed_resources(asked) | {"nvidia.com/priority", "cpu"})
    some = st.dictionaries(st.sampled_from(names), st.sampled_from(AMOUNTS), max_size=5)
    container: Json = {"name": name, "image": "i"}
    limits = draw(some)
    # The count decides whether there is a request at all, so it is there more often than not.
    for backend in asked:
        if backend.names.count and draw(st.integers(0, 3)):
            limits[backend.names.count] = draw(st.sampled_from(("1", "1", "2", "3", "4")))
    # The API server refuses other requests, later; mutating webhooks still see them.
    requests = limits if is_valid or draw(st.integers(0, 9)) else draw(some)
    if limits or draw(st.booleans()):
        container["resources"] = {"limits": dict(limits), "requests": dict(requests)}
    if draw(st.booleans()):
        some_env = st.lists(st.sampled_from(VARIABLES), max_size=3, unique=True)
        container["env"] = [{"name": variable, "value": "user"} for variable in draw(some_env)]
    if not draw(st.integers(0, 9)):
        container["securityContext"] = {"privileged": True}
    return container


@st.composite
def cases(draw: DrawFn, *, is_valid: bool = False) -> tuple[Json, tuple[DeviceBackend, ...]]:
    """Return a pod, and the families of some device configuration; a valid one requests what it limits."""
    config = draw(st.sampled_from(CONFIGS))
    apps = [draw(containers(config, f"app{number}", is_valid=is_valid)) for number in range(draw(st.integers(1, 3)))]
    inits = [draw(containers(config, f"init{number}", is_valid=is_valid)) for number in range(draw(st.integers(0, 2)))]
    for init in inits:
        if draw(st.booleans()):
            init["restartPolicy"] = "Always"
    document: Json = {"metadata": {"name": "a", "namespace": "team-a"}, "spec": {"containers": apps}}
    if inits:
        document["spec"]["initContainers"] = inits
    if annotations := draw(st.lists(st.sampled_from(sorted(ANNOTATIONS)), max_size=2, unique=True)):
        document["metadata"]["annotations"] = {name: draw(st.sampled_from(ANNOTATIONS[name])) for name in annotations}
    scheduler = draw(st.sampled_from((None, "default-scheduler", "hami-scheduler", "volcano")))
    if scheduler:
        document["spec"]["schedulerName"] = scheduler
    if not draw(st.integers(0, 9)):
        document["spec"]["nodeName"] = "node-1"
    return document, families(config)


def with_api_server_defaults(document: Json) -> Json:
    """Return a pod with every limit copied to a request that is missing, as the API server does before and after us."""
    document = copy.deepcopy(document)
    for container in [*document["spec"].get("initContainers", []), *document["spec"]["containers"]]:
        resources = container.get("resources", {})
        if "limits" in resources:
            resources["requests"] = resources["limits"] | resources.get("requests", {})
    return document


def judged(document: Json, backends: tuple[DeviceBackend, ...]) -> PodRequest | Refusal:
    """Return what a pod is charged, or why it cannot be used, as it is judged at its creation."""
    pod = defaulted(convert_pod(document), backends)
    if isinstance(pod, Refusal):
        return pod
    sizes = {backend.key: 40_000 for backend in backends}
    return pod_request(pod, backends, Inventory(), sizes)


@given(cases())
def test_a_second_run_changes_nothing(case: tuple[Json, tuple[DeviceBackend, ...]]) -> None:
    document, backends = case
    operations = mutation(document, backends, POLICY)
    if not isinstance(operations, Refusal):
        once = jsonpatch.apply_patch(document, operations)
        assert mutation(once, backends, POLICY) == []
        assert mutation(with_api_server_defaults(once), backends, POLICY) == []


@given(cases(is_valid=True))
def test_a_pod_is_charged_the_same_before_and_after(case: tuple[Json, tuple[DeviceBackend, ...]]) -> None:
    document, backends = case
    operations = mutation(document, backends, POLICY)
    if not isinstance(operations, Refusal):
        once = jsonpatch.apply_patch(document, operations)
        before, after = (judged(with_api_server_defaults(each), backends) for each in (document, once))
        assert after == before


@given(cases())
def test_what_defaulting_refuses_is_refused_where_it_is_judged_too(
    case: tuple[Json, tuple[DeviceBackend, ...]],
) -> None:
    document, backends = case
    if isinstance(mutation(document, backends, POLICY), Refusal):
        refusal = judged(document, backends)
        assert isinstance(refusal, Refusal) or hami_refusal(convert_pod(document), POLICY, is_mirror=False)


@given(cases())
def test_what_the_user_wrote_stays_but_for_amounts_that_a_family_rewrites(
    case: tuple[Json, tuple[DeviceBackend, ...]],
) -> None:
    document, backends = case
    managed = managed_resources(backends)
    operations = mutation(document, backends, POLICY)
    for operation in [] if isinstance(operations, Refusal) else operations:
        if operation["op"] == "replace":
            *_, key, name = operation["path"].split("/")
            name = name.replace("~1", "/")
            is_amount = key in ("limits", "requests") and name in managed
            assert is_amount or name in ("schedulerName", "mthreads.com/request-gpu-num")


@given(cases())
def test_the_patch_is_the_same_however_often_it_is_made(case: tuple[Json, tuple[DeviceBackend, ...]]) -> None:
    document, backends = case
    assert mutation(document, backends, POLICY) == mutation(copy.deepcopy(document), backends, POLICY)


@given(cases())
def test_a_pod_of_another_scheduler_is_neither_changed_nor_refused(
    case: tuple[Json, tuple[DeviceBackend, ...]],
) -> None:
    document, backends = case
    document["spec"]["schedulerName"] = "volcano"
    assert mutation(document, backends, POLICY) == []

"""Quotas: our keys, scopes, the comparison, and what looks wrong."""

from __future__ import annotations

from typing import Any

import pytest
from builders import CORES, COUNT, MEMORY, PodBuilder, backends, pod, quota_object

from webhook.api.resource_quota import ScopeRequirement
from webhook.quotas import Quota, QuotaKey, exceeded, quota_keys, read_quota, scope_facts

KEYS = quota_keys(backends(), count_quota=True)


def read(hard: dict[str, Any], configured: dict[str, Any] | None = None, **spec: Any) -> Quota:
    """Return what a quota limits."""
    keys = quota_keys(backends(**(configured or {})), count_quota=True)
    return read_quota(quota_object(hard=hard, **spec), keys)


def test_our_keys_are_memory_cores_and_count_of_each_family() -> None:
    assert {key.name for key in KEYS.values()} == {
        "limits.nvidia.com/gpumem",
        "limits.nvidia.com/gpucores",
        "limits.nvidia.com/gpu",
    }
    assert [KEYS[name].unit for name in (MEMORY, CORES, COUNT)] == ["MiB", "percent of a card's cores", "cards"]


def test_the_count_can_be_left_to_others() -> None:
    assert quota_keys(backends(), count_quota=False).keys() == {MEMORY, CORES}


def test_a_name_that_is_not_configured_makes_no_key() -> None:
    assert quota_keys(backends(resourceCoreName=None), count_quota=True).keys() == {MEMORY, COUNT}


def test_a_factor_stands_in_the_unit() -> None:
    assert quota_keys(backends(memoryFactor=10), count_quota=True)[MEMORY].unit == "units of 10 MiB"


@pytest.mark.parametrize(("amount", "want"), [(0, 0), (1, 1), (10, 1), (11, 2), (600, 60)])
def test_figures_in_the_keys_own_unit_round_up(amount: int, want: int) -> None:
    key = QuotaKey(name="limits.x", resource="x", factor=10, unit="units of 10 MiB")

    assert key.in_own_unit(amount) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("8000", 8000, id="plain"),
        pytest.param("8k", 8000, id="as the API server prints thousands"),
        pytest.param("8e3", 8000, id="scientific"),
        pytest.param("8000.0", 8000, id="with a fraction of nothing"),
        pytest.param(8000, 8000, id="an unquoted number"),
        pytest.param("0", 0, id="0, which blocks"),
        pytest.param("24Gi", 24 * 2**30, id="bytes, read as Kubernetes reads them"),
        pytest.param("1e30", 10**30, id="beyond 64 bits"),
    ],
)
def test_a_limit_is_read_as_kubernetes_prints_it(value: Any, want: int) -> None:
    quota = read({"limits.nvidia.com/gpumem": value})

    assert quota.limits == {MEMORY: want}
    assert not quota.unreadable


def test_memory_is_limited_in_its_own_unit_and_cores_are_not_scaled() -> None:
    hard = {"limits.nvidia.com/gpumem": "100", "limits.nvidia.com/gpucores": "50", "limits.nvidia.com/gpu": "2"}

    assert read(hard, {"memoryFactor": 10}).limits == {MEMORY: 1000, CORES: 50, COUNT: 2}


@pytest.mark.parametrize("value", ["1500m", "0.5", "-1", "many", "", None])
def test_a_limit_that_cannot_be_meant_is_told_and_the_others_hold(value: Any) -> None:
    """The API server lets no such value in, so this is offline only."""
    quota = read({"limits.nvidia.com/gpumem": value, "limits.nvidia.com/gpucores": "50"})

    assert quota.limits == {CORES: 50}
    assert quota.unreadable == ("limits.nvidia.com/gpumem",)
    [said] = quota.suspicions
    assert said == f"limits.nvidia.com/gpumem: {value!r} is not enforced: write a plain integer, MiB"


@pytest.mark.parametrize("name", ["pods", "limits.cpu", "requests.storage", "count/jobs.batch", "limits.example.com/x"])
def test_other_keys_are_not_ours(name: str) -> None:
    quota = read({name: "1"})

    assert (quota.limits, quota.suspicions, quota.unreadable) == ({}, (), ())


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param(
            "requests.nvidia.com/gpumem", "key not enforced, write limits.nvidia.com/gpumem", id="the requests prefix"
        ),
        pytest.param("nvidia.com/gpumem", "key not enforced, write limits.nvidia.com/gpumem", id="no prefix"),
        pytest.param(
            "limits.nvidia.com/gpumemory", "key not enforced, did you mean limits.nvidia.com/gpumem?", id="misspelt"
        ),
        pytest.param(
            "limits.nvidia.com/gpu-cores", "key not enforced, did you mean limits.nvidia.com/gpucores?", id="a dash"
        ),
        pytest.param(
            "requests.nvidia.com/gpumemory",
            "key not enforced, did you mean limits.nvidia.com/gpumem?",
            id="misspelt, with the requests prefix",
        ),
    ],
)
def test_a_key_that_looks_like_ours_and_is_not_is_told(name: str, want: str) -> None:
    quota = read({name: "6000"})

    assert quota.limits == {}
    assert quota.suspicions == (f"{name}: {want}",)


def test_a_key_of_a_family_that_is_not_configured_is_told() -> None:
    [said] = read({"limits.amd.com/gpumem": "6000"}).suspicions

    assert said.startswith("limits.amd.com/gpumem: key not enforced, no device family")


@pytest.mark.parametrize("name", ["limits.nvidia.com/gpumem-percentage", "limits.nvidia.com/priority"])
def test_a_resource_of_ours_that_carries_no_quota_is_told(name: str) -> None:
    [said] = read({name: "50"}).suspicions

    assert said.startswith(f"{name}: key not enforced")


def test_a_key_of_ours_that_is_switched_off_is_not_taken_for_another_misspelt() -> None:
    quota = read_quota(
        quota_object(hard={"limits.nvidia.com/gpu": "4"}), quota_keys(backends(), count_quota=False), ["nvidia.com/gpu"]
    )

    assert quota.limits == {}
    assert not any("did you mean" in said for said in quota.suspicions)


@pytest.mark.parametrize("value", ["24Gi", "16Mi", "8Ki", "25769803776", "1e10"])
def test_a_limit_that_looks_like_bytes_is_told_and_holds(value: str) -> None:
    quota = read({"limits.nvidia.com/gpumem": value})

    assert MEMORY in quota.limits
    assert quota.suspicions == (f"limits.nvidia.com/gpumem: {value} looks like bytes; the unit is MiB",)


@pytest.mark.parametrize("value", ["24576", "8k", "0", "2147483647"])
def test_an_ordinary_limit_is_not_suspicious(value: str) -> None:
    assert read({"limits.nvidia.com/gpumem": value}).suspicions == ()


def test_scopes_on_a_quota_of_ours_are_told_since_hami_ignores_them() -> None:
    [said] = read({"limits.nvidia.com/gpumem": "1"}, scopes=["Terminating"]).suspicions
    assert said == "has scopes, which HAMi's scheduler ignores: a pod admitted here may stay Pending there"

    assert read({"pods": "1"}, scopes=["Terminating"]).suspicions == ()


PLAIN = pod().app("a", mem=1)
COMPUTE = pod().app("a", limits={"cpu": "1"})
BATCH = PLAIN.spec(priorityClassName="batch")


def affinity(where: str = "podAffinity", *, preferred: bool = False, **term: Any) -> PodBuilder:
    """Return a pod with one affinity term."""
    term = {"topologyKey": "zone"} | term
    if preferred:
        rules = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    else:
        rules = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return PLAIN.spec(affinity={where: rules})


@pytest.mark.parametrize(
    ("scope", "subject", "want"),
    [
        pytest.param("Terminating", PLAIN.spec(activeDeadlineSeconds=600), True, id="a deadline is Terminating"),
        pytest.param("Terminating", PLAIN.spec(activeDeadlineSeconds=0), True, id="a deadline of 0 too"),
        pytest.param("Terminating", PLAIN.deleting(), False, id="being deleted is not"),
        pytest.param("Terminating", PLAIN, False, id="a pod without deadline is not"),
        pytest.param("NotTerminating", PLAIN, True, id="it is NotTerminating"),
        pytest.param("NotTerminating", PLAIN.spec(activeDeadlineSeconds=1), False, id="and one with a deadline is not"),
        pytest.param("BestEffort", PLAIN, True, id="a pod that asks only for GPUs is BestEffort"),
        pytest.param("BestEffort", pod().app("a", limits={"cpu": "0"}), True, id="0 cpu is not asked for"),
        pytest.param("BestEffort", COMPUTE, False, id="a cpu limit ends it"),
        pytest.param("BestEffort", pod().app("a", requests={"memory": "1"}), False, id="a memory request too"),
        pytest.param(
            "BestEffort", pod().init("i", limits={"cpu": "1m"}).app("a"), False, id="of an init container too"
        ),
        pytest.param("BestEffort", pod().app("a", requests={"cpu": "?"}), False, id="an unreadable one too"),
        pytest.param(
            "BestEffort", PLAIN.spec(resources={"requests": {"cpu": "1"}}), False, id="resources of the whole pod too"
        ),
        pytest.param("NotBestEffort", COMPUTE, True, id="the opposite"),
        pytest.param("NotBestEffort", PLAIN, False, id="and its opposite"),
        pytest.param("PriorityClass", BATCH, True, id="a bare PriorityClass scope wants any class"),
        pytest.param("PriorityClass", PLAIN, False, id="not none"),
        pytest.param("CrossNamespacePodAffinity", PLAIN, False, id="no affinity"),
        pytest.param("CrossNamespacePodAffinity", affinity(), False, id="affinity at home"),
        pytest.param("CrossNamespacePodAffinity", affinity(namespaces=["b"]), True, id="to a namespace"),
        pytest.param("CrossNamespacePodAffinity", affinity(namespaces=[]), False, id="to an empty list of them"),
        pytest.param("CrossNamespacePodAffinity", affinity(namespaceSelector={}), True, id="to all namespaces"),
        pytest.param(
            "CrossNamespacePodAffinity", affinity(preferred=True, namespaces=["b"]), True, id="even if only preferred"
        ),
        pytest.param(
            "CrossNamespacePodAffinity", affinity("podAntiAffinity", namespaces=["b"]), True, id="or in anti-affinity"
        ),
        pytest.param("VolumeAttributesClass", PLAIN, False, id="a scope that is not about pods"),
        pytest.param("SomethingNew", PLAIN, False, id="a scope of a later Kubernetes"),
    ],
)
def test_a_scope_admits(scope: str, subject: PodBuilder, want: bool) -> None:
    quota = Quota(name="q", limits={MEMORY: 1}, requirements=(ScopeRequirement(scope_name=scope),))

    assert quota.applies_to(scope_facts(subject.build())) is want


@pytest.mark.parametrize(
    ("operator", "values", "want_batch", "want_none"),
    [
        pytest.param("In", ["batch", "high"], True, False, id="In, listed"),
        pytest.param("In", ["high"], False, False, id="In, not listed"),
        pytest.param("NotIn", ["high"], True, True, id="NotIn, not listed"),
        pytest.param("NotIn", ["batch"], False, True, id="NotIn, listed"),
        pytest.param("In", ["", "high"], False, False, id="In, with a class that has no name"),
        pytest.param("NotIn", ["", "high"], True, True, id="NotIn, with a class that has no name"),
        pytest.param("Exists", None, True, False, id="Exists"),
        pytest.param("DoesNotExist", None, False, True, id="DoesNotExist"),
        pytest.param("Like", ["batch"], False, False, id="an operator of a later Kubernetes"),
    ],
)
def test_a_priority_class_is_selected(
    operator: str,
    values: list[str] | None,
    want_batch: bool,
    want_none: bool,
) -> None:
    requirement = ScopeRequirement(scope_name="PriorityClass", operator=operator, values=values)
    quota = Quota(name="q", limits={MEMORY: 1}, requirements=(requirement,))

    assert quota.applies_to(scope_facts(BATCH.build())) is want_batch
    assert quota.applies_to(scope_facts(PLAIN.build())) is want_none


def test_every_scope_has_to_match() -> None:
    quota = read(
        {"limits.nvidia.com/gpumem": "1"},
        scopes=["NotTerminating"],
        selector=[{"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}],
    )

    assert quota.applies_to(scope_facts(BATCH.build()))
    assert not quota.applies_to(scope_facts(PLAIN.build()))
    assert not quota.applies_to(scope_facts(BATCH.spec(activeDeadlineSeconds=1).build()))


@pytest.mark.parametrize(
    ("used", "charge", "want"),
    [
        pytest.param({}, {MEMORY: 8000}, [], id="equality fits"),
        pytest.param({MEMORY: 4000}, {MEMORY: 4000}, [], id="equality with what is used fits"),
        pytest.param({MEMORY: 4000}, {MEMORY: 4001}, [(MEMORY, 4001, 4000, 8000, 1)], id="one too many does not"),
        pytest.param({MEMORY: 9000}, {CORES: 10}, [], id="what is exceeded already stops nobody who asks none of it"),
        pytest.param({MEMORY: 9000}, {MEMORY: 0, CORES: 10}, [], id="nor who asks 0 of it"),
        pytest.param({MEMORY: 9000}, {MEMORY: 1}, [(MEMORY, 1, 9000, 8000, 1001)], id="but whoever asks 1 of it"),
        pytest.param({}, {COUNT: 10**9}, [], id="a key without limit never"),
        pytest.param(
            {MEMORY: 8000, CORES: 50},
            {MEMORY: 1, CORES: 1, COUNT: 1},
            [(CORES, 1, 50, 50, 1), (MEMORY, 1, 8000, 8000, 1)],
            id="every key, sorted",
        ),
    ],
)
def test_used_and_charge_together_must_fit(
    used: dict[str, int], charge: dict[str, int], want: list[tuple[str, int, int, int, int]]
) -> None:
    quota = read({"limits.nvidia.com/gpumem": "8000", "limits.nvidia.com/gpucores": "50"})

    over = exceeded(quota, used, charge, KEYS)

    assert [(item.key.resource, item.requested, item.used, item.limit, item.too_many) for item in over] == want


def test_a_limit_of_0_blocks() -> None:
    assert exceeded(read({"limits.nvidia.com/gpumem": "0"}), {}, {MEMORY: 1}, KEYS)
    assert not exceeded(read({"limits.nvidia.com/gpumem": "0"}), {}, {COUNT: 1}, KEYS)


def test_equal_facts_are_one_object() -> None:
    """A cluster has few kinds of pods and many pods."""
    assert scope_facts(PLAIN.build()) is scope_facts(pod("b").app("x", mem=7).build())

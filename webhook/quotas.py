"""Which quotas apply to a pod, what they limit, and whether an amount fits.

The keys that are ours: `limits.<memory name>`, `limits.<core name>` and `limits.<count name>` of every family in force.
Everything else under `hard` belongs to Kubernetes. Every quota that matches a pod applies, each on its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from webhook.api.quantity import parse_quantity
from webhook.devices.base import MAX_INT32, DeviceBackend
from webhook.errors import QuantityError
from webhook.resources import Amounts, add, exceeding

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod
    from webhook.api.resource_quota import ResourceQuota, ScopeRequirement

_PREFIX = "limits."

# Where the resources of HAMi's families live by default; a limit under one of them was meant for HAMi. Source: HAMi
# charts/hami/values.yaml.
_HAMI_DOMAINS = frozenset(
    {
        "amd.com",
        "aws.amazon.com",
        "birentech.com",
        "cambricon.com",
        "enflame.com",
        "huawei.com",
        "hygon.com",
        "iluvatar.ai",
        "kunlunxin.com",
        "metax-tech.com",
        "mthreads.com",
        "nvidia.com",
        "vastaitech.com",
    }
)
_BINARY_SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKey:
    """A key of ours.

    Attributes:
        name: As it stands under `hard`, such as `limits.nvidia.com/gpumem`.
        resource: The resource it limits.
        factor: Accounting units in one unit of the key.
        unit: The unit of the key, for people.
    """

    name: str
    resource: str
    factor: int
    unit: str

    def in_own_unit(self, amount: int) -> int:
        """Return an amount of accounting units in the key's own unit, rounded up."""
        return -(-amount // self.factor)


def quota_keys(backends: Sequence[DeviceBackend], *, count_quota: bool) -> dict[str, QuotaKey]:
    """Return our keys by the resource they limit."""
    keys: dict[str, QuotaKey] = {}
    for backend in backends:
        names = backend.names
        memory_unit = "MiB" if names.memory_factor == 1 else f"units of {names.memory_factor} MiB"
        for resource, factor, unit in (
            (names.memory, names.memory_factor, memory_unit),
            (names.cores, 1, names.cores_unit),
            (names.count if count_quota else "", 1, names.count_unit),
        ):
            if resource:
                keys[resource] = QuotaKey(name=_PREFIX + resource, resource=resource, factor=factor, unit=unit)
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFacts:
    """All that the scopes of a quota ask about a pod."""

    is_terminating: bool
    is_best_effort: bool
    priority_class: str
    has_cross_namespace_affinity: bool


@lru_cache(maxsize=1024)
def _shared(facts: ScopeFacts) -> ScopeFacts:
    """Return one object for equal facts: a cluster has few kinds of pods and many pods."""
    return facts


def scope_facts(pod: Pod) -> ScopeFacts:
    """Return what scopes ask about a pod.

    Terminating means that `activeDeadlineSeconds` is set, not that the pod is being deleted.
    Source: kubernetes pkg/quota/v1/evaluator/core/pods.go, `podMatchesScopeFunc`.
    """
    spec = pod.spec
    affinity = spec.affinity
    sides = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ()
    return _shared(
        ScopeFacts(
            is_terminating=spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0,
            is_best_effort=not any(map(_asks_compute, pod.containers()))
            and not (spec.resources and (_positive(spec.resources.limits) or _positive(spec.resources.requests))),
            priority_class=spec.priority_class_name or "",
            has_cross_namespace_affinity=any(
                term.namespaces or term.namespace_selector is not None
                for side in sides
                if side is not None
                for term in side.terms()
            ),
        )
    )


def _asks_compute(container: Container) -> bool:
    return _positive(container.limits) or _positive(container.requests)


def _positive(amounts: Mapping[str, object] | None) -> bool:
    """Return whether cpu or memory, the only resources that decide QoS, are asked for; an amount of 0 is not asked."""
    for resource in ("cpu", "memory"):
        value = (amounts or {}).get(resource)
        if value is None:
            continue
        try:
            if parse_quantity(value).nanos > 0:
                return True
        except QuantityError:
            # The API server lets no such pod in; offline the pod meant to ask for something.
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota, as far as our keys go.

    Attributes:
        limits: By resource, in accounting units. An absent resource has no limit; a limit of 0 blocks.
        suspicions: What looks wrong, one sentence each, for the log and the command line.
        unreadable: Keys of ours whose value cannot be read; they are not enforced.
    """

    name: str
    limits: Mapping[str, int]
    requirements: tuple[ScopeRequirement, ...] = ()
    suspicions: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def applies_to(self, facts: ScopeFacts) -> bool:
        """Return whether a pod is in every scope of this quota."""
        return all(_matches(requirement, facts) for requirement in self.requirements)


def _matches(requirement: ScopeRequirement, facts: ScopeFacts) -> bool:
    match requirement.scope_name:
        case "Terminating":
            return facts.is_terminating
        case "NotTerminating":
            return not facts.is_terminating
        case "BestEffort":
            return facts.is_best_effort
        case "NotBestEffort":
            return not facts.is_best_effort
        case "CrossNamespacePodAffinity":
            return facts.has_cross_namespace_affinity
        case "PriorityClass":
            return _matches_priority(requirement, facts.priority_class)
        case _:
            # A scope of a later Kubernetes: the API server's quota would not match what it does not know either.
            return False


def _matches_priority(requirement: ScopeRequirement, priority_class: str) -> bool:
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return bool(priority_class) and priority_class in values
        case "NotIn":
            return priority_class not in values or not priority_class
        case "Exists":
            return bool(priority_class)
        case "DoesNotExist":
            return not priority_class
        case _:
            return False


def read_quota(quota: ResourceQuota, keys: Mapping[str, QuotaKey], unenforced: Collection[str] = ()) -> Quota:
    """Return what a ResourceQuota limits; keys that cannot be read are told, the others hold.

    Args:
        quota: The object.
        keys: Our keys by resource.
        unenforced: Resources of ours whose limits are switched off, and so nothing to remark on.
    """
    by_name = {key.name: key for key in keys.values()}
    limits: dict[str, int] = {}
    unreadable: list[str] = []
    suspicions: list[str] = []
    for name, value in (quota.spec.hard or {}).items():
        key = by_name.get(name)
        if name.removeprefix(_PREFIX) in unenforced:
            continue
        if key is None:
            suspicions.extend(_misspelt(name, by_name))
            continue
        try:
            amount = parse_quantity(value, name).whole()
        except QuantityError:
            amount = None
        if amount is None or amount < 0:
            unreadable.append(name)
            suspicions.append(f"{name}: {value!r} is not enforced: write a plain integer, {key.unit}")
            continue
        limits[key.resource] = amount * key.factor
        if str(value).endswith(_BINARY_SUFFIXES) or amount > MAX_INT32:
            suspicions.append(f"{name}: {value} looks like bytes; the unit is {key.unit}")
    requirements = tuple(quota.requirements())
    if limits and requirements:
        suspicions.append("has scopes, which HAMi's scheduler ignores: a pod admitted here may stay Pending there")
    return Quota(
        name=quota.metadata.name,
        limits=limits,
        requirements=requirements,
        suspicions=tuple(suspicions),
        unreadable=tuple(unreadable),
    )


def _misspelt(name: str, by_name: Mapping[str, QuotaKey]) -> list[str]:
    """Return what to say of a key that is not ours and looks as if it was meant to be."""
    bare = name.removeprefix("requests.").removeprefix(_PREFIX)
    if _PREFIX + bare in by_name:
        return [f"{name}: key not enforced, write {_PREFIX}{bare}"]
    if "/" not in bare:
        return []
    near = difflib.get_close_matches(_PREFIX + bare, by_name, n=1, cutoff=0.85)
    if near:
        return [f"{name}: key not enforced, did you mean {near[0]}?"]
    if name.startswith(_PREFIX) and bare.partition("/")[0] in _HAMI_DOMAINS:
        return [f"{name}: key not enforced, no device family in the device configuration has this resource"]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """One key of one quota that a charge does not fit; amounts in accounting units."""

    quota: str
    key: QuotaKey
    requested: int
    used: int
    limit: int

    @property
    def too_many(self) -> int:
        """How far over the limit the sum is, in the key's own unit, rounded up."""
        return self.key.in_own_unit(self.used + self.requested - self.limit)


def exceeded(
    quota: Quota, used: Mapping[str, int], charge: Mapping[str, int], keys: Mapping[str, QuotaKey]
) -> list[Exceeded]:
    """Return every key of a quota that `used + charge` exceeds, sorted by name.

    Only amounts the pod asks for are compared: use that already exceeds a lowered limit stops nobody who asks none of
    it.
    """
    asked: Amounts[str] = {resource: amount for resource, amount in charge.items() if amount > 0}
    limits = {resource: limit for resource, limit in quota.limits.items() if resource in asked}
    return [
        Exceeded(
            quota=quota.name,
            key=keys[resource],
            requested=asked[resource],
            used=used.get(resource, 0),
            limit=limits[resource],
        )
        for resource in sorted(exceeding(add(used, asked), limits))
    ]

"""A pod's record: what it contributes to its namespace's use, from admission to its end.

| stage     | enters when                                       | contributes                                  |
|-----------|---------------------------------------------------|----------------------------------------------|
| pending   | seen, no allocation annotation                    | its effective request                        |
| allocated | the allocation annotation decodes                 | the recorded devices, collapsed card by card |
| shrunk    | every init container has ended with 0 (no sidecar | the steady state; it never grows back        |
|           | is asked)                                         |                                              |
| released  | phase Succeeded or Failed, or deleted             | nothing: there is no record                  |

The record is a function of the pod object and of the record before it. Only two things are remembered beyond the
object: that the gate was once open, and the last figure that decoded. After a restart the first is charged at its peak
until the init containers are seen finished, the second at the pod's own request.

Source: sidecar-design.txt, "Usage recording" and "Shrink Rules"; design, "What counts as used".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from webhook.allocation import devices_by_container
from webhook.defaulting import Refusal, defaulted
from webhook.devices.base import DeviceBackend
from webhook.effective import Claim, ContainerKind, effective, kinds, steady_state
from webhook.errors import InvalidAllocation
from webhook.pod_request import PodRequest, pod_request
from webhook.quotas import ScopeFacts, scope_facts
from webhook.resources import Amounts, add

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod
    from webhook.inventory import Inventory


class Stage(StrEnum):
    """Where a pod stands."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    SHRUNK = "shrunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a pod holds before and after its init containers, by resource name in accounting units."""

    peak: Mapping[str, int]
    steady: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """What the ledger keeps of one pod.

    Attributes:
        figure: What it holds at its peak and at steady state.
        is_gate_open: Whether the init containers were once seen finished; then the steady state counts.
        last_decoded: The last figure that came from an allocation annotation.
        estimated: The pod, kept only while its figure depends on the registered cards.
        problem: Why the figure is not what the object says, for the log; "" if it is.
    """

    uid: str
    name: str
    facts: ScopeFacts
    stage: Stage
    figure: Figure
    is_gate_open: bool
    last_decoded: Figure | None
    terminating_since: str
    estimated: Pod | None
    problem: str

    @property
    def charge(self) -> Mapping[str, int]:
        """What the pod contributes now."""
        return self.figure.steady if self.is_gate_open else self.figure.peak


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRules:
    """What turns a pod into a record."""

    backends: Sequence[DeviceBackend]
    assumed_card_memory_mib: Mapping[str, int]
    count_pending: bool = True


def next_record(previous: PodRecord | None, pod: Pod, rules: UsageRules, inventory: Inventory) -> PodRecord | None:
    """Return the record of a pod as it stands now; None once it is released, or when it asks for nothing of ours.

    Args:
        previous: The record of the same UID, if there is one.
        pod: The pod as the API server last said.
        rules: The families and choices in force.
        inventory: The registered cards, which size requests without a memory figure.
    """
    if pod.is_terminal:
        return None
    request, problem = _own_request(pod, rules, inventory)
    decoded: Figure | None = None
    if request is not None or _allocation_texts(pod, rules.backends):
        try:
            decoded = _recorded(pod, request, rules.backends, inventory)
        except InvalidAllocation as error:
            problem = str(error)
    last_decoded = decoded or (previous.last_decoded if previous else None)
    if last_decoded and not decoded:
        problem = problem or "the allocation annotation is gone: the last figure it gave counts"
    if last_decoded is None and request is None and not problem:
        return None
    figure = last_decoded or _requested(request, rules)
    is_gate_open = (previous is not None and previous.is_gate_open) or is_shrink_gate_open(pod)
    if is_gate_open and any(kind is ContainerKind.INIT for kind, _ in kinds(pod)):
        stage = Stage.SHRUNK
    else:
        stage = Stage.ALLOCATED if last_decoded else Stage.PENDING
    if last_decoded is None:
        is_estimated = request is not None and bool(request.sized)
    else:
        texts = _allocation_texts(pod, rules.backends)
        is_estimated = any(backend.counts_by_card and backend.key in texts for backend in rules.backends)
    return PodRecord(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        facts=scope_facts(pod),
        stage=stage,
        figure=figure,
        is_gate_open=is_gate_open,
        last_decoded=last_decoded,
        terminating_since=pod.metadata.deletion_timestamp or "",
        estimated=pod if is_estimated else None,
        problem=problem,
    )


def is_shrink_gate_open(pod: Pod) -> bool:
    """Return whether every init container that is not a sidecar has ended with exit code 0, by its current state.

    Statuses are matched by name, `lastState` is never read, and a missing status holds the peak. Sidecars have no say:
    their restarts and exit-0 gaps change nothing. A pod without `spec.initContainers` has nothing to shrink.
    """
    if not pod.init_containers:
        return False
    states = {status.name: status.state for status in pod.status.init_container_statuses or ()}
    for kind, container in kinds(pod):
        if kind is not ContainerKind.INIT:
            continue
        state = states.get(container.name)
        if state is None or state.terminated is None or state.terminated.exit_code != 0:
            return False
    return True


def _own_request(pod: Pod, rules: UsageRules, inventory: Inventory) -> tuple[PodRequest | None, str]:
    """Return what the pod asks for by itself, and why it cannot be read if it cannot."""
    request = _asked(pod, rules, inventory)
    problem = ""
    if isinstance(request, Refusal):
        # A pod that got in all the same: HAMi gives the containers it can read their devices, so those count.
        problem = "; ".join(request.problems)
        usable = [
            msgspec.structs.replace(container, resources=None)
            if isinstance(_asked(_alone(pod, container), rules, inventory), Refusal)
            else container
            for container in pod.containers()
        ]
        request = _asked(pod.with_containers(usable), rules, inventory)
    return (request if isinstance(request, PodRequest) and request.families else None), problem


def _asked(pod: Pod, rules: UsageRules, inventory: Inventory) -> PodRequest | Refusal:
    ready = defaulted(pod, rules.backends)
    if isinstance(ready, Refusal):
        return ready
    return pod_request(ready, rules.backends, inventory, rules.assumed_card_memory_mib)


def _alone(pod: Pod, container: Container) -> Pod:
    """Return the pod with this one container, so that what is wrong with it can be told from what others have wrong."""
    spec = msgspec.structs.replace(pod.spec, init_containers=None, containers=[container])
    return msgspec.structs.replace(pod, spec=spec)


def _requested(request: PodRequest | None, rules: UsageRules) -> Figure:
    if request is None or not rules.count_pending:
        return Figure(peak={}, steady={})
    return Figure(peak=request.charge, steady=request.steady)


def _allocation_texts(pod: Pod, backends: Sequence[DeviceBackend]) -> dict[str, str]:
    """Return the pod's allocation annotations by family."""
    annotations = pod.annotations
    return {
        backend.key: annotations[backend.allocated_annotation]
        for backend in backends
        if backend.allocated_annotation in annotations
    }


def _recorded(
    pod: Pod, request: PodRequest | None, backends: Sequence[DeviceBackend], inventory: Inventory
) -> Figure | None:
    """Return the figure of the recorded devices; None when no annotation says any.

    A family that the pod asks for and that is not recorded yet counts with its own request.

    Raises:
        InvalidAllocation: An annotation does not decode.
    """
    texts = _allocation_texts(pod, backends)
    if not texts:
        return None
    peak: Amounts[str] = {}
    steady: Amounts[str] = {}
    for backend in backends:
        if backend.key in texts:
            asking = request.families.get(backend.key, ()) if request else ()
            claims = card_claims(pod, backend, texts[backend.key], asking, inventory)
            peak = add(peak, _by_name(effective(claims), backend))
            steady = add(steady, _by_name(steady_state(claims), backend))
        elif request and backend.key in request.families:
            own = {backend.names.count, backend.names.memory, backend.names.cores}
            peak = add(peak, {name: amount for name, amount in request.charge.items() if name in own})
            steady = add(steady, {name: amount for name, amount in request.steady.items() if name in own})
    return Figure(peak=peak, steady=steady)


_CardKey = tuple[str, str]


def card_claims(
    pod: Pod, backend: DeviceBackend, text: str, asking: Sequence[str], inventory: Inventory
) -> list[Claim[_CardKey]]:
    """Return each container's recorded devices, keyed by (card, amount): memory, cores and one slot an occurrence.

    Args:
        pod: The pod.
        backend: The family.
        text: The value of its allocation annotation.
        asking: Names of the containers that ask for the family, in order.
        inventory: The registered cards; some families book in a card's own units.

    Raises:
        InvalidAllocation: The annotation does not decode.
    """
    given = devices_by_container(backend.allocated_annotation, text, pod, asking)
    claims = []
    for (kind, container), devices in zip(kinds(pod), given, strict=True):
        amounts: Amounts[_CardKey] = {}
        for device in devices:
            share = backend.counted(device.memory, device.cores, inventory.kind_of(backend.key, device.uuid))
            for name, amount in (("memory", share.memory_mib), ("cores", share.cores_percent), ("slots", 1)):
                key = (device.uuid, name)
                amounts[key] = amounts.get(key, 0) + amount
        claims.append(Claim(container=container.name, kind=kind, amounts=amounts))
    return claims


def _by_name(by_card: Mapping[_CardKey, int], backend: DeviceBackend) -> Amounts[str]:
    """Return amounts by card as sums by resource name."""
    names = {"memory": backend.names.memory, "cores": backend.names.cores, "slots": backend.names.count}
    totals: Amounts[str] = {}
    for (_, amount_name), amount in by_card.items():
        resource = names[amount_name]
        if resource and amount:
            totals[resource] = totals.get(resource, 0) + amount
    return totals

"""The formula: what a pod needs at its busiest moment, native sidecars counted rightly.

Walk `spec.initContainers` in declaration order with a running sum of the sidecars seen so far:

    sidecar:  running += c
    init:     peak = max(peak, running + c)
    effective = max(peak, running + sum(apps))          steady state = running + sum(apps)

This module is the only place where a container's kind changes a sum. Keys are opaque: admission keys by resource
name, recorded usage and node fit by (device family, card). The two differ on purpose: an init container on one card and
an app container on another, 8 each, are 8 by name and 16 by card.

Source: KEP-753, "Resources calculation for scheduling and pod admission"; k8s.io/component-helpers resource/helpers.go.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from webhook.resources import Amounts, add, largest

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod

K = TypeVar("K", bound=Hashable)


class ContainerKind(StrEnum):
    """How long a container runs beside others."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Generic[K]):
    """What one container asks for; keys are opaque, absent keys are 0."""

    container: str
    kind: ContainerKind
    amounts: Mapping[K, int]


def kinds(pod: Pod) -> Iterator[tuple[ContainerKind, Container]]:
    """Yield each container with its kind, those of `spec.initContainers` first, in declaration order.

    A sidecar is an entry of `spec.initContainers` whose own `restartPolicy` is exactly `Always`; the pod's plays no
    part.
    """
    for container in pod.init_containers:
        is_sidecar = container.restart_policy == "Always"
        yield (ContainerKind.SIDECAR if is_sidecar else ContainerKind.INIT), container
    for container in pod.spec.containers:
        yield ContainerKind.APP, container


def effective(claims: Sequence[Claim[K]]) -> Amounts[K]:
    """Return what a pod needs at its busiest moment, key by key.

    Args:
        claims: One per container in declaration order, those of `spec.initContainers` first.

    Returns:
        Amounts by key, in the units of the claims. Unclaimed keys are absent.
    """
    running: Amounts[K] = {}
    peak: Amounts[K] = {}
    for claim in claims:
        match claim.kind:
            case ContainerKind.INIT:
                peak = largest(peak, add(running, claim.amounts))
            case ContainerKind.SIDECAR | ContainerKind.APP:
                running = add(running, claim.amounts)
    return largest(peak, running)


def steady_state(claims: Sequence[Claim[K]]) -> Amounts[K]:
    """Return what a pod needs once its init containers are done: sidecars and app containers together."""
    return effective([claim for claim in claims if claim.kind is not ContainerKind.INIT])


def busiest_moment(claims: Sequence[Claim[K]], key: K) -> list[Claim[K]]:
    """Return the containers that run together when the pod needs most of `key`; those that ask none are left out.

    Their amounts add up to `effective(claims)[key]`. Of several such moments, the steady state is preferred, then the
    first.
    """
    claims = [claim for claim in claims if claim.amounts.get(key, 0)]
    moment = [claim for claim in claims if claim.kind is not ContainerKind.INIT]
    most = sum(claim.amounts[key] for claim in moment)
    running: list[Claim[K]] = []
    running_sum = 0
    for claim in claims:
        amount = claim.amounts[key]
        if claim.kind is ContainerKind.SIDECAR:
            running.append(claim)
            running_sum += amount
        elif claim.kind is ContainerKind.INIT and running_sum + amount > most:
            most = running_sum + amount
            moment = [*running, claim]
    return moment

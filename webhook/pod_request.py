"""What a pod asks for, by resource name: each container's claim, the charge they make, and how sure it is.

Amounts are in accounting units: memory in MiB (of all the container's cards together), cores in percent of one card,
cards. A pod has to be defaulted first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from webhook.defaulting import Refusal
from webhook.devices.base import CardKind, DeviceBackend, DeviceRequest, Ineffective, Share, Unusable
from webhook.devices.registry import concerned
from webhook.effective import Claim, effective, kinds, steady_state
from webhook.resources import Amounts

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod
    from webhook.inventory import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedByCard:
    """Figures of one container that depend on the card it gets.

    Attributes:
        resources: The resources whose charge depends on it.
        per_card: What is charged of each of them for one card; empty while no kind of card is known.
        is_assumed: Whether the size was configured, for want of a registered card.
    """

    container: str
    resources: tuple[str, ...]
    per_card: Mapping[str, int]
    is_assumed: bool = False


@dataclass(frozen=True)
class PodRequest:
    """What a pod asks for.

    Attributes:
        claims: One per container, in declaration order, keyed by resource name; without zero amounts.
        families: By family, the names of the containers that ask for its devices.
        sized: What the inventory had to size; it changes with the inventory.
        unthrottled: By core resource, containers with cards and none of their cores (D6).
        ineffective: Amounts that HAMi allocates nothing for.
    """

    claims: tuple[Claim[str], ...]
    families: Mapping[str, tuple[str, ...]]
    sized: tuple[SizedByCard, ...]
    unthrottled: Mapping[str, tuple[str, ...]]
    ineffective: tuple[Ineffective, ...]

    @cached_property
    def charge(self) -> Amounts[str]:
        """What is charged from admission on: the effective request."""
        return effective(self.claims)

    @cached_property
    def steady(self) -> Amounts[str]:
        """What is charged once the init containers are done."""
        return steady_state(self.claims)

    @property
    def unsized(self) -> tuple[SizedByCard, ...]:
        """What no size is known for."""
        return tuple(item for item in self.sized if not item.per_card)


def pod_request(
    pod: Pod,
    backends: Sequence[DeviceBackend],
    inventory: Inventory,
    assumed_card_memory_mib: Mapping[str, int],
) -> PodRequest | Refusal:
    """Return what a defaulted pod asks for, or every reason why it cannot be used.

    Args:
        pod: The pod, defaulted.
        backends: The families in force.
        inventory: The registered cards.
        assumed_card_memory_mib: Card size by family, used while the inventory knows none.
    """
    walk = _Walk(pod, inventory, assumed_card_memory_mib)
    claims = []
    for kind, container in kinds(pod):
        amounts: dict[str, int] = {}
        for backend in concerned(container, backends):
            walk.read(container, backend, amounts)
        claims.append(Claim(container=container.name, kind=kind, amounts=amounts))
    if walk.problems:
        return Refusal(problems=tuple(walk.problems))
    return PodRequest(
        claims=tuple(claims),
        families={family: tuple(names) for family, names in walk.families.items()},
        sized=tuple(walk.sized),
        unthrottled={resource: tuple(names) for resource, names in walk.unthrottled.items()},
        ineffective=tuple(walk.ineffective),
    )


class _Walk:
    """The findings of one pass over a pod's containers."""

    def __init__(self, pod: Pod, inventory: Inventory, assumed: Mapping[str, int]) -> None:
        self._pod = pod
        self._inventory = inventory
        self._assumed = assumed
        self._kinds_of_card: dict[str, frozenset[CardKind]] = {}
        self.problems: list[str] = []
        self.families: dict[str, list[str]] = {}
        self.sized: list[SizedByCard] = []
        self.unthrottled: dict[str, list[str]] = {}
        self.ineffective: list[Ineffective] = []

    def read(self, container: Container, backend: DeviceBackend, amounts: dict[str, int]) -> None:
        """Add what `container` asks of `backend` to `amounts`."""
        request = backend.request(container, self._pod)
        match request:
            case None:
                return
            case Unusable():
                self.problems.append(str(request))
                return
            case Ineffective():
                self.ineffective.append(request)
                return
        names = backend.names
        self.families.setdefault(backend.key, []).append(container.name)
        share = self._share(container, backend, request)
        charged = (
            (names.count, request.cards),
            (names.memory, share.memory_mib * request.cards),
            (names.cores, share.cores_percent * request.cards),
        )
        amounts.update({resource: amount for resource, amount in charged if resource and amount})
        if names.cores and not share.cores_percent:
            self.unthrottled.setdefault(names.cores, []).append(container.name)

    def _share(self, container: Container, backend: DeviceBackend, request: DeviceRequest) -> Share:
        """Return what is charged for each card; nothing for what depends on a card while none is known."""
        asked = Share(request.memory_mib, request.cores_percent)
        names = backend.names
        by_card = ((names.memory, request.memory_by_card), (names.cores, request.cores_by_card))
        resources = tuple(resource for resource, depends in by_card if resource and depends)
        if not resources:
            return asked
        # Once a pod: an annotation may hold a quarter of a megabyte, and a pod any number of containers.
        kinds_of_card = self._kinds_of_card.get(backend.key)
        if kinds_of_card is None:
            kinds_of_card = self._inventory.kinds(backend.key, backend.constraint(self._pod.annotations))
            self._kinds_of_card[backend.key] = kinds_of_card
        shares = [share for kind in kinds_of_card if (share := backend.share(request, kind)) is not None]
        assumed_mib = None if shares else self._assumed.get(backend.key)
        if assumed_mib is not None and (share := backend.share(request, CardKind(memory_mib=assumed_mib))) is not None:
            shares = [share]
        largest = Share(*map(max, zip(*shares, strict=True))) if shares else None
        self.sized.append(
            SizedByCard(
                container=container.name,
                resources=resources,
                per_card={
                    name: amount
                    for name, amount in zip((names.memory, names.cores), largest, strict=True)
                    if name in resources
                }
                if largest
                else {},
                is_assumed=assumed_mib is not None,
            )
        )
        return largest or asked

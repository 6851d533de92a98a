"""What most families share: a count of cards, for each card memory and cores, and figures booked as they are asked.

A family derives from `Family` and says only what it does otherwise. NVIDIA does nearly everything otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from webhook.devices.base import (
    MAX_INT32,
    CardConstraint,
    CardKind,
    Defaults,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Share,
    Unusable,
    comma_list,
    read_whole,
)
from webhook.devices.reading import named_cards, no_card_beside, read_count, rewritten, without_count

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod
    from webhook.devices.config import ConfigBlock
    from webhook.devices.guide import Guide

WHOLE_CARD = 100
"""All of a card, in percent."""


class Figures(NamedTuple):
    """What a container says: cards, memory in the accounting unit, and cores, None if it says none."""

    cards: int
    memory_mib: int
    cores: int | None


class Family:
    """A family that charges what it is asked for, card by card.

    Attributes:
        key: See `DeviceBackend`, as for the words and the two annotations below.
        uuid_annotations: The pod annotations that list the cards to use, and those not to use.
        model_annotations: The same for types of card; none where the family does not look at any.
        mode_annotation: The pod annotation that decides how the family reads a request; "" where there is none.
        unsaid_cores_percent: Cores of each card that HAMi books for a container that says none.
    """

    key: str
    guide: Guide
    allocated_annotation: str
    owned_annotations: tuple[str, ...]
    uuid_annotations: tuple[str, str]
    model_annotations: tuple[str, str] | None = None
    mode_annotation: str = ""
    unsaid_cores_percent: int = 0
    counts_by_card: bool = False

    def __init__(self, names: ResourceNames) -> None:
        self.names = names
        self.managed_resources = tuple(name for name in (names.count, names.memory, names.cores) if name)

    @property
    def sizing_annotations(self) -> tuple[str, ...]:
        """Return the annotations that choose cards, and the one that chooses how a request is read."""
        chosen = (*self.uuid_annotations, *(self.model_annotations or ()), self.mode_annotation)
        return tuple(filter(None, chosen))

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - some families read it
        """Return that HAMi takes over a pod of which a container limits the count; it changes nothing there."""
        return Defaults(is_found=bool(self.names.count) and self.names.count in container.limits)

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for; without memory it takes whole cards."""
        figures = self._figures(container)
        if not isinstance(figures, Figures):
            return figures
        return DeviceRequest(
            cards=figures.cards,
            memory_mib=figures.memory_mib,
            memory_percent=None if figures.memory_mib else WHOLE_CARD,
            cores_percent=self.unsaid_cores_percent if figures.cores is None else figures.cores,
            memory_by_card=figures.memory_mib == 0,
        )

    def share(self, request: DeviceRequest, kind: CardKind) -> Share | None:
        """Return a whole card's memory: there are no percentages of it to ask for."""
        return Share(kind.memory_mib, request.cores_percent) if kind.memory_mib else None

    def counted(self, memory: int, cores: int, kind: CardKind | None) -> Share:  # noqa: ARG002 - booked as it is asked
        """Return the figures as they are."""
        return Share(memory, cores)

    def constraint(self, annotations: Mapping[str, str]) -> CardConstraint:
        """Return which cards a pod's annotations admit."""
        use, avoid = (comma_list(annotations.get(name, "").lower()) for name in self.model_annotations or ("", ""))
        return replace(named_cards(annotations, self.uuid_annotations), use_models=use, avoid_models=avoid)

    def _amounts(self, container: Container) -> Mapping[str, Any]:
        """Return what a container says of each resource of the family, None for one that it does not name."""
        return {name: container.look(name) for name in self.managed_resources}

    def _figures(self, container: Container) -> Figures | Unusable | Ineffective | None:
        """Return what a container says, every amount checked."""
        names = self.names
        amounts = self._amounts(container)
        count, memory, cores = (amounts.get(name) for name in (names.count, names.memory, names.cores))
        cards = self._cards(container, count)
        if isinstance(cards, Unusable):
            return cards
        memory_mib = self._memory_mib(container, memory)
        if isinstance(memory_mib, Unusable):
            return memory_mib
        cores_asked = self._cores(container, cores, cards)
        if isinstance(cores_asked, Unusable):
            return cores_asked
        if cards:
            return Figures(cards, memory_mib, cores_asked)
        if count is None:
            return without_count(container, names.count, {names.memory: memory, names.cores: cores})
        if memory is None and not cores_asked:
            return None
        return no_card_beside(container, names.count, count, "memory or cores")

    def _cards(self, container: Container, count: Any) -> int | Unusable:
        """Return the number of cards; 0 when a container says none."""
        return 0 if count is None else read_count(container, self.names.count, count)

    def _memory_mib(self, container: Container, memory: Any) -> int | Unusable:
        """Return the memory in the accounting unit; 0 when a container says none."""
        if memory is None:
            return 0
        factor = self.names.memory_factor
        unit = "MiB" if factor == 1 else f"units of {factor} MiB"
        largest = MAX_INT32 // factor
        units = read_whole(
            container,
            self.names.memory,
            memory,
            largest=largest,
            accepted=f"plain integer, {unit}, e.g. {max(16384 // factor, 1)}, at most {largest}",
        )
        return units if isinstance(units, Unusable) else units * factor

    def _cores(self, container: Container, cores: Any, cards: int) -> int | Unusable | None:  # noqa: ARG002
        """Return the cores of each card; None when a container says none."""
        if cores is None:
            return None
        return read_whole(
            container,
            self.names.cores,
            cores,
            largest=WHOLE_CARD,
            accepted=f"plain integer from 0 to {WHOLE_CARD}, percent of each card's cores",
        )


def read_names(block: ConfigBlock, *, memory_factor: int = 1) -> ResourceNames:
    """Return the three names under the keys that most families have for them."""
    return ResourceNames(
        count=block.resource_name("resourceCountName"),
        memory=block.resource_name("resourceMemoryName"),
        cores=block.resource_name("resourceCoreName"),
        memory_factor=memory_factor,
    )


def overwritten(container: Container, amounts: Mapping[str, int]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the limits and the requests to set so that a container asks for `amounts`, whatever it said.

    A request that is there gets the same amount, since limit and request of an extended resource must be equal; HAMi
    leaves it, and with it a pod that the API server refuses (D13).
    """
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for name, amount in amounts.items():
        limits |= rewritten(container.limits, name, amount)
        if name in container.requests:
            requests |= rewritten(container.requests, name, amount)
    return limits, requests

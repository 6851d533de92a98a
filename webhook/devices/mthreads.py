"""Moore Threads: cards, memory in units of 512 MiB and cores in sixteenths of a card, both of all a container's cards.

Source: HAMi pkg/device/mthreads/device.go. What HAMi's defaulting writes for several
cards divides evenly, so nothing of it is left uncounted (weak spot D26).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webhook.devices.base import (
    MAX_INT32,
    NO_DEFAULTS,
    Defaults,
    DeviceRequest,
    Ineffective,
    Unusable,
    read_whole,
)
from webhook.devices.family import WHOLE_CARD, Family, Figures, overwritten, read_names
from webhook.devices.guide import Guide
from webhook.devices.registration import cards_by_capacity

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.base import Card, DeviceBackend
    from webhook.devices.config import ConfigBlock

_MEMORY_UNIT_MIB = 512
_CARD_CORES = 16
_CARD_MEMORY_UNITS = 96

# The sizes that one card is cut into; several cards are whole ones.
_SIZES = (2, 4, 8, 16, 32, 64, _CARD_MEMORY_UNITS)

# The memory of more cards than these is beyond 32 bits, and HAMi counts nothing for it.
_MOST_CARDS = MAX_INT32 // _MEMORY_UNIT_MIB // _CARD_MEMORY_UNITS


class MthreadsBackend(Family):
    """The Moore Threads family."""

    key = "Mthreads"
    guide = Guide(
        title="Moore Threads",
        memory=16,
        cores=4,
        notes=(
            "Memory and cores are those of all the container's cards together.",
            f"One card takes memory of {', '.join(map(str, _SIZES))} units; without memory it is a whole card.",
            "Several cards are whole ones, whatever memory stands beside them.",
        ),
        differs=("A limit that defaulting changes changes the request with it; HAMi leaves a pod nobody accepts.",),
    )
    allocated_annotation = "hami.io/mthreads-vgpu-devices-allocated"
    owned_annotations = (
        "hami.io/mthreads-vgpu-devices-allocated",
        "hami.io/mthreads-vgpu-devices-to-allocate",
        "mthreads.com/gpu-index",
        "mthreads.com/predicate-time",
        "mthreads.com/predicate-node",
    )
    uuid_annotations = ("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid")

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `mthreads` block configures it, if it does."""
        block = config.block("mthreads")
        if block is None:
            return ()
        names = read_names(block, memory_factor=_MEMORY_UNIT_MIB)
        return (cls(replace(names, cores_unit=f"cores, {_CARD_CORES} a card")),)

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - the protocol's
        """Return the memory and cores of whole cards, unless one card is asked for with memory of its own."""
        names = self.names
        count = container.look(names.count)
        if count is None:
            return NO_DEFAULTS
        cards = self._cards(container, count)
        if isinstance(cards, Unusable):
            return cards
        if cards == 1 and names.memory and names.memory in container.limits:
            return self._size_problem(container) or Defaults(is_found=True)
        whole = {names.cores: _CARD_CORES * cards, names.memory: _CARD_MEMORY_UNITS * cards}
        limits, requests = overwritten(container, {name: amount for name, amount in whole.items() if name})
        return Defaults(
            is_found=True,
            limits=limits,
            requests=requests,
            annotations={"mthreads.com/request-gpu-num": str(cards)} if cards > 1 else {},
        )

    def _size_problem(self, container: Container) -> Unusable | None:
        """Return HAMi's refusal of a memory size that no card is cut into."""
        memory = container.limits[self.names.memory]
        memory_mib = self._memory_mib(container, memory)
        if isinstance(memory_mib, Unusable) or memory_mib // _MEMORY_UNIT_MIB not in _SIZES:
            return Unusable(
                container=container.name,
                resource=self.names.memory,
                value=str(memory),
                accepted=f"one of {', '.join(map(str, _SIZES))}, units of {_MEMORY_UNIT_MIB} MiB",
            )
        return None

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for, card by card; its cores are in sixteenths of a card."""
        figures = self._figures(container)
        if not isinstance(figures, Figures):
            return figures
        memory_mib = figures.memory_mib // figures.cards
        return DeviceRequest(
            cards=figures.cards,
            memory_mib=memory_mib,
            memory_percent=None if figures.memory_mib else WHOLE_CARD,
            cores_percent=(figures.cores or 0) // figures.cards,
            memory_by_card=figures.memory_mib == 0,
        )

    def _cards(self, container: Container, count: Any) -> int | Unusable:
        if count is None:
            return 0
        accepted = f"a plain integer from 1 to {_MOST_CARDS}, cards"
        cards = read_whole(container, self.names.count, count, largest=_MOST_CARDS, accepted=accepted)
        if cards != 0:
            return cards
        return Unusable(container=container.name, resource=self.names.count, value=str(count), accepted=accepted)

    def _cores(self, container: Container, cores: Any, cards: int) -> int | Unusable | None:
        """Return the cores of all cards; HAMi books no more than 100 of one, which is more than there are."""
        if cores is None:
            return None
        largest = WHOLE_CARD * max(cards, 1)
        return read_whole(
            container,
            self.names.cores,
            cores,
            largest=largest,
            accepted=f"plain integer from 0 to {largest}, {_CARD_CORES} for each card",
        )

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards that a node's capacity stands for."""
        return cards_by_capacity(node, self.names, stem="mthreads", model="Mthreads", cores=_CARD_CORES)

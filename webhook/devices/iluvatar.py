"""Iluvatar: a family for each chip that is configured; cards, memory in units of 256 MiB, and cores in percent.

Source: HAMi pkg/device/iluvatar/device.go. HAMi writes the cores of all cards and
charges them once more for each (weak spot D12); what it books is 100 a card, and that is the charge here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.devices.base import NO_DEFAULTS, Card, Defaults, ResourceNames, Unusable, read_whole
from webhook.devices.family import WHOLE_CARD, Family, overwritten, read_names
from webhook.devices.guide import Guide
from webhook.devices.registration import decode_comma_cards

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.base import DeviceBackend
    from webhook.devices.config import ConfigBlock

_MEMORY_UNIT_MIB = 256

# Spelt so in the libraries that read it.
_NAME_VARIABLE = "SOL_CONTINER_NAME"


class IluvatarBackend(Family):
    """The family of one Iluvatar chip."""

    guide = Guide(
        title="Iluvatar",
        memory=32,
        cores=30,
        notes=(
            "HAMi gives these cards only where its scheduler runs with `--enable-iluvatar`; they are charged anyway.",
            "Several cards are charged all of their cores, whatever cores stand beside them.",
        ),
        differs=("HAMi charges several cards the cores of all of them once for each: 400 for 2 cards, and not 200.",),
    )

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return a family for each entry of the `iluvatars` list."""
        backends = []
        for block in config.blocks("iluvatars"):
            block.knows("chipName")
            chip = block.text("commonWord")
            if not chip:
                raise block.error("commonWord", "must name the chip, e.g. BI-V150")
            backends.append(cls(chip, read_names(block, memory_factor=_MEMORY_UNIT_MIB)))
        return tuple(backends)

    def __init__(self, chip: str, names: ResourceNames) -> None:
        super().__init__(names)
        self.key = chip
        self.allocated_annotation = f"hami.io/{chip}-devices-allocated"
        self.owned_annotations = (self.allocated_annotation, f"hami.io/{chip}-devices-to-allocate")
        self.uuid_annotations = (f"hami.io/use-{chip}-uuid", f"hami.io/no-use-{chip}-uuid")
        self._register_annotation = f"hami.io/node-{chip}-register"

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - the protocol's
        """Return the cores of several cards, all of them, and the container's name as a variable."""
        count = container.limits.get(self.names.count) if self.names.count else None
        if count is None:
            return NO_DEFAULTS
        cards = self._cards(container, count)
        whole: dict[str, int] = {}
        # A count that cannot be used is refused when the request is read; HAMi's defaulting has no error for it.
        if not isinstance(cards, Unusable) and cards > 1 and self.names.cores:
            whole[self.names.cores] = WHOLE_CARD * cards
        limits, requests = overwritten(container, whole)
        env = ((_NAME_VARIABLE, container.name),) if container.name else ()
        return Defaults(is_found=True, limits=limits, requests=requests, env=env)

    def _cores(self, container: Container, cores: Any, cards: int) -> int | Unusable | None:
        """Return the cores of each card: what a container says is clamped to a card's, and of several cards is all."""
        if cores is None:
            return None
        largest = WHOLE_CARD * max(cards, 1)
        asked = read_whole(
            container,
            self.names.cores,
            cores,
            largest=largest,
            accepted=f"plain integer from 0 to {largest}, percent of a card's cores",
        )
        return asked if isinstance(asked, Unusable) else min(asked, WHOLE_CARD)

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration for this chip."""
        text = node.annotations.get(self._register_annotation, "")
        return decode_comma_cards(self._register_annotation, text) if text else ()

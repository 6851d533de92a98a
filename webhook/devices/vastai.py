"""Vastai: whole cards by count; HAMi books neither memory nor cores, so the count alone can be limited (weak spot D28).

Source: HAMi pkg/device/vastai/device.go. A count that HAMi wraps (D5) is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.devices.base import Card, ResourceNames
from webhook.devices.family import WHOLE_CARD, Family
from webhook.devices.guide import Guide
from webhook.devices.registration import decode_json_cards

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.devices.base import DeviceBackend
    from webhook.devices.config import ConfigBlock

_REGISTER_ANNOTATION = "hami.io/node-va-register"


class VastaiBackend(Family):
    """The Vastai family."""

    key = "Vastai"
    guide = Guide(title="Vastai", differs=("The count can be limited; HAMi has no quota for the family.",))
    allocated_annotation = "hami.io/Vastai-devices-allocated"
    owned_annotations = ("hami.io/Vastai-devices-allocated", "hami.io/Vastai-devices-to-allocate")
    uuid_annotations = ("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `vastai` block configures it, if it does."""
        block = config.block("vastai")
        return (cls(ResourceNames(count=block.resource_name("resourceCountName"))),) if block is not None else ()

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration; their cores are 100 whatever it says, as in HAMi."""
        cards = decode_json_cards(_REGISTER_ANNOTATION, node.annotations.get(_REGISTER_ANNOTATION) or "null")
        return tuple(card._replace(kind=card.kind._replace(cores=WHOLE_CARD)) for card in cards)

"""Hygon DCU: cards, memory in units of `memoryFactor` MiB, and cores in percent, all of a card where none are said.

Source: HAMi pkg/device/hygon/device.go. HAMi reads a fraction of memory as a whole card
and drops the request for other memory it cannot use (weak spots D3, D4); here both are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.devices.base import MAX_INT32
from webhook.devices.family import WHOLE_CARD, Family, read_names
from webhook.devices.guide import Guide
from webhook.devices.registration import decode_comma_cards

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.devices.base import Card, DeviceBackend
    from webhook.devices.config import ConfigBlock

_REGISTER_ANNOTATION = "hami.io/node-dcu-register"


class HygonBackend(Family):
    """The Hygon family."""

    key = "DCU"
    guide = Guide(
        title="Hygon DCU",
        memory=8000,
        cores=30,
        notes=("Without cores each card is charged all of its cores.",),
        differs=("Memory with a fraction is refused; HAMi takes it for a whole card.",),
    )
    allocated_annotation = "hami.io/dcu-devices-allocated"
    owned_annotations = ("hami.io/dcu-devices-allocated", "hami.io/dcu-devices-to-allocate")
    uuid_annotations = ("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid")
    model_annotations = ("hygon.com/use-dcutype", "hygon.com/nouse-dcutype")
    unsaid_cores_percent = WHOLE_CARD

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `hygon` block configures it, if it does."""
        block = config.block("hygon")
        if block is None:
            return ()
        # 0 and absent act as 1, as in HAMi.
        return (cls(read_names(block, memory_factor=block.integer("memoryFactor", largest=MAX_INT32) or 1)),)

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration."""
        text = node.annotations.get(_REGISTER_ANNOTATION, "")
        return decode_comma_cards(_REGISTER_ANNOTATION, text) if text else ()

"""Cambricon MLU: cards, memory in units of 256 MiB, and cores in percent, all of a card where none are said.

Source: HAMi pkg/device/cambricon/device.go. Counts and cores that HAMi wraps, and memory
for which it drops the request (weak spots D3, D5), are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.devices.family import WHOLE_CARD, Family, read_names
from webhook.devices.guide import Guide
from webhook.devices.registration import cards_by_capacity

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.devices.base import Card, DeviceBackend
    from webhook.devices.config import ConfigBlock

_MEMORY_UNIT_MIB = 256


class CambriconBackend(Family):
    """The Cambricon family. The annotations for types of card that HAMi declares are read by nobody."""

    key = "MLU"
    guide = Guide(
        title="Cambricon MLU",
        memory=32,
        cores=30,
        notes=("Without cores each card is charged all of its cores.",),
        differs=("Memory that HAMi drops the request for, and counts or cores that it wraps, are refused.",),
    )
    allocated_annotation = "hami.io/cambricon-mlu-devices-allocated"
    owned_annotations = (
        "hami.io/cambricon-mlu-devices-allocated",
        "hami.io/cambricon-mlu-devices-to-allocate",
        "CAMBRICON_DSMLU_ASSIGNED",
        "CAMBRICON_DSMLU_PROFILE",
    )
    uuid_annotations = ("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid")
    unsaid_cores_percent = WHOLE_CARD

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `cambricon` block configures it, if it does."""
        block = config.block("cambricon")
        return (cls(read_names(block, memory_factor=_MEMORY_UNIT_MIB)),) if block is not None else ()

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards that a node's capacity stands for."""
        return cards_by_capacity(node, self.names, stem="cambricon-mlu", model="MLU", cores=WHOLE_CARD)

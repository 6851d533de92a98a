"""AMD: cards, memory in MiB, and cores in percent of a card, all of them where none are said.

Source: HAMi pkg/device/amd/device.go. HAMi asks for cores in percent and books compute
units; here both are percent, by the card's own number of units (D20).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webhook.devices.base import Card, CardKind, Defaults, DeviceRequest, Ineffective, Share, Unusable
from webhook.devices.family import WHOLE_CARD, Family, read_names
from webhook.devices.guide import Guide
from webhook.devices.registration import decode_json_cards

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.base import DeviceBackend
    from webhook.devices.config import ConfigBlock

_REGISTER_ANNOTATION = "hami.io/node-amd-register"


class AmdBackend(Family):
    """The AMD family; it reads limits alone."""

    key = "AMD"
    guide = Guide(
        title="AMD",
        memory=8000,
        cores=30,
        notes=("Without cores each card is charged all of its cores. Only limits are read, as in HAMi.",),
        differs=("Cores are percent throughout; HAMi books compute units (304 of an MI300X) against the same quota.",),
    )
    allocated_annotation = "hami.io/amd-devices-allocated"
    owned_annotations = ("hami.io/amd-devices-allocated", "hami.io/amd-devices-to-allocate")
    counts_by_card = True
    uuid_annotations = ("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid")
    model_annotations = ("amd.com/use-gputype", "amd.com/nouse-gputype")
    unsaid_cores_percent = WHOLE_CARD

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `amd` block configures it, if it does."""
        block = config.block("amd")
        return (cls(read_names(block)),) if block is not None else ()

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - the protocol's
        """Return that HAMi takes over a pod with any of the family's limits, and its error for unusable cores."""
        limits = container.limits
        if self.names.count in limits and self.names.cores in limits:
            cores = self._cores(container, limits[self.names.cores], 0)
            if isinstance(cores, Unusable):
                return cores
        return Defaults(is_found=any(name in limits for name in self.managed_resources))

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:
        """Return what a container asks for; HAMi marks whole cards by memory 0 and has no percentage."""
        request = super().request(container, pod)
        return replace(request, memory_percent=None) if isinstance(request, DeviceRequest) else request

    def _amounts(self, container: Container) -> Mapping[str, Any]:
        return {name: container.limits.get(name) for name in self.managed_resources}

    def _cores(self, container: Container, cores: Any, cards: int) -> int | Unusable | None:
        asked = super()._cores(container, cores, cards)
        if asked is None or (isinstance(asked, int) and asked > 0):
            return asked
        return Unusable(
            container=container.name,
            resource=self.names.cores,
            value=str(cores),
            accepted=f"plain integer from 1 to {WHOLE_CARD}, percent of each card's cores",
        )

    def counted(self, memory: int, cores: int, kind: CardKind | None) -> Share:
        """Return the memory, and the booked compute units in percent of the card's, rounded up.

        HAMi rounds the units down, so this is at most what was asked, but for the one unit that it books at least.
        While the card is not registered the number stands for percent.
        """
        units = kind.cores if kind is not None and kind.cores else WHOLE_CARD
        return Share(memory, min(-(cores * WHOLE_CARD // -units), WHOLE_CARD))

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration, with their number of compute units."""
        return decode_json_cards(_REGISTER_ANNOTATION, node.annotations.get(_REGISTER_ANNOTATION) or "null")

"""Kunlun: whole XPUs, and virtual ones (vXPU) of a quarter, a half or the whole of a card.

Source: HAMi pkg/device/kunlun. HAMi rounds memory up to a size on offer and takes anything for
some size, 0 and bytes included (weak spot D27); here what no card has is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.devices.base import (
    NO_DEFAULTS,
    Card,
    CardConstraint,
    CardKind,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Unusable,
)
from webhook.devices.family import WHOLE_CARD, Family, Figures
from webhook.devices.guide import Guide
from webhook.devices.reading import named_cards, quantity_or_none, rewritten
from webhook.devices.registration import decode_json_cards
from webhook.devices.whole_card import WholeCardFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.config import ConfigBlock

_REGISTER_ANNOTATION = "hami.io/node-register-xpu"
# Both pairs apply to both families. Source: HAMi pkg/device/kunlun.
_UUID_ANNOTATIONS = (
    ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
    ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
)
_CARD_MIB = 98304
_SIZES_MIB = (24576, 49152, _CARD_MIB)


def kunlun_backends(config: ConfigBlock) -> tuple[DeviceBackend, ...]:
    """Return the families that the `kunlun` block configures; virtual cards only where their count has a name."""
    block = config.block("kunlun")
    if block is None:
        return ()
    names = ResourceNames(
        count=block.resource_name("resourceVCountName"), memory=block.resource_name("resourceVMemoryName")
    )
    whole = KunlunBackend(block.resource_name("resourceCountName"))
    return (whole, XpuBackend(names)) if names.count else (whole,)


class KunlunBackend(WholeCardFamily):
    """Whole XPUs."""

    key = "kunlun"
    guide = Guide(title="Kunlun, whole XPUs", differs=("The count can be limited; HAMi has no quota for the family.",))
    allocated_annotation = "hami.io/kunlun-allocated"
    owned_annotations = ("hami.io/kunlun-allocated", "BAIDU_COM_DEVICE_IDX")
    uuid_annotation_pairs = _UUID_ANNOTATIONS
    card_infix = "kunlun"
    card = CardKind(model="kunlun", memory_mib=_CARD_MIB, cores=100)
    one_card = DeviceRequest(cards=1, memory_mib=0, memory_percent=WHOLE_CARD, cores_percent=0)


class XpuBackend(Family):
    """Virtual XPUs."""

    key = "XPU"
    guide = Guide(
        title="Kunlun, virtual XPUs (vXPU)",
        memory=20000,
        notes=(
            f"Memory is rounded up to one of {', '.join(map(str, _SIZES_MIB))} MiB; without memory it is the last.",
        ),
        differs=("Memory of 0, and more than a card has, are refused; HAMi rounds both to a size.",),
    )
    allocated_annotation = "hami.io/xpu-devices-allocated"
    owned_annotations = ("hami.io/xpu-devices-allocated", "hami.io/xpu-devices-to-allocate")
    sizing_annotations = tuple(annotation for pair in _UUID_ANNOTATIONS for annotation in pair)

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - other families read it
        """Return the memory rounded up to a size on offer; what has no size is left for `request` to refuse."""
        names = self.names
        if names.count not in container.limits:
            return NO_DEFAULTS
        size = _size_mib(container.limits.get(names.memory))
        if size is None:
            return Defaults(is_found=True)
        return Defaults(
            is_found=True,
            limits=rewritten(container.limits, names.memory, size),
            requests=rewritten(container.requests, names.memory, size),
        )

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for: the whole card without memory, and cores in proportion to it."""
        figures = self._figures(container)
        if not isinstance(figures, Figures):
            return figures
        memory_mib = figures.memory_mib or _CARD_MIB
        return DeviceRequest(
            cards=figures.cards,
            memory_mib=memory_mib,
            memory_percent=None if figures.memory_mib else WHOLE_CARD,
            cores_percent=memory_mib * 100 // _CARD_MIB,
        )

    def constraint(self, annotations: Mapping[str, str]) -> CardConstraint:
        """Return which cards a pod's annotations admit."""
        return named_cards(annotations, *_UUID_ANNOTATIONS)

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration."""
        text = node.annotations.get(_REGISTER_ANNOTATION, "")
        return decode_json_cards(_REGISTER_ANNOTATION, text) if text else ()

    def _memory_mib(self, container: Container, memory: Any) -> int | Unusable:
        if memory is None:
            return 0
        size = _size_mib(memory)
        if size is not None:
            return size
        accepted = f"plain integer, MiB, from 1 to {_CARD_MIB}, rounded up to one of {', '.join(map(str, _SIZES_MIB))}"
        return Unusable(container=container.name, resource=self.names.memory, value=str(memory), accepted=accepted)


def _size_mib(value: Any) -> int | None:
    """Return the smallest size on offer that holds an amount; None when there is none, or it is 0 or a fraction."""
    quantity = quantity_or_none(value)
    amount = quantity.whole() if quantity is not None else None
    if amount is None or amount <= 0:
        return None
    return next((size for size in _SIZES_MIB if amount <= size), None)

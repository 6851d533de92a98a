"""MetaX: whole cards, and shared cards with memory in GiB or bytes and cores in percent.

Source: HAMi pkg/device/metax. Only limits are read. HAMi takes every multiple of 1000 for
bytes, counts less than 1 MiB as a whole card (weak spot D14), and so it does with fractions (D4); here such a number is
what it says, or refused. Pods of the class `online` are charged no cores, since none are booked for them (D15).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webhook.devices.base import (
    MAX_INT32,
    NO_DEFAULTS,
    Card,
    CardKind,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Unusable,
)
from webhook.devices.family import WHOLE_CARD, Family
from webhook.devices.guide import Guide
from webhook.devices.reading import quantity_or_none
from webhook.devices.whole_card import WholeCardFamily
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.config import ConfigBlock

_UUID_ANNOTATIONS = ("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid")
_REGISTER_ANNOTATION = "metax-tech.com/node-gpu-devices"
_APP_CLASS = "metax-tech.com/sgpu-app-class"
_QOS_POLICY = "metax-tech.com/sgpu-qos-policy"
_ONLINE = "online"
_APP_CLASSES = (_ONLINE, "offline")
_QOS_POLICIES = ("best-effort", "fixed-share", "burst-share")

_MIB_PER_GIB = 1024
_LARGEST_GIB = MAX_INT32 // _MIB_PER_GIB


def metax_backends(config: ConfigBlock) -> tuple[DeviceBackend, ...]:
    """Return the families that the `metax` block configures; shared cards only where their count has a name."""
    block = config.block("metax")
    if block is None:
        return ()
    block.knows("sgpuTopologyAware")
    names = ResourceNames(
        count=block.resource_name("resourceVCountName"),
        memory=block.resource_name("resourceVMemoryName"),
        cores=block.resource_name("resourceVCoreName"),
        memory_factor=_MIB_PER_GIB,
    )
    whole = MetaxBackend(block.resource_name("resourceCountName"))
    return (whole, MetaxSharedBackend(names)) if names.count else (whole,)


class MetaxBackend(WholeCardFamily):
    """Whole MetaX cards."""

    key = "Metax-GPU"
    guide = Guide(title="MetaX, whole cards", differs=("The count can be limited; HAMi has no quota for the family.",))
    allocated_annotation = "hami.io/metax-gpu-devices-allocated"
    owned_annotations = ("hami.io/metax-gpu-devices-allocated", "hami.io/metax-gpu-devices-to-allocate")
    uuid_annotation_pairs = (_UUID_ANNOTATIONS,)
    card_infix = "metax"
    card = CardKind(model="Metax-GPU", memory_mib=65536, cores=100)
    one_card = DeviceRequest(cards=1, memory_mib=0, memory_percent=WHOLE_CARD, cores_percent=WHOLE_CARD)


class MetaxSharedBackend(Family):
    """Shared MetaX cards."""

    key = "Metax-SGPU"
    guide = Guide(
        title="MetaX, shared cards",
        memory=16,
        cores=30,
        notes=(
            "Memory with a unit (`16Gi`) is bytes, and GiB without one. Only limits are read, as in HAMi.",
            "Without cores each card is charged all of its cores.",
            f"A pod annotated `{_APP_CLASS}: {_ONLINE}` is charged no cores.",
        ),
        differs=(
            "`64000` is 64000 GiB; HAMi takes every multiple of 1000 for bytes, and those for a whole card.",
            "HAMi charges online pods their cores when they are created, and books none.",
        ),
    )
    allocated_annotation = "hami.io/metax-sgpu-devices-allocated"
    owned_annotations = (
        "hami.io/metax-sgpu-devices-allocated",
        "hami.io/metax-sgpu-devices-to-allocate",
        "metax-tech.com/gpu-devices-allocated",
        "metax-tech.com/predicate-time",
    )
    uuid_annotations = _UUID_ANNOTATIONS
    mode_annotation = _APP_CLASS
    unsaid_cores_percent = WHOLE_CARD

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:
        """Return the quality of service that HAMi gives to pods that say none, unless they are online."""
        count = container.limits.get(self.names.count)
        if count is None:
            return NO_DEFAULTS
        app_class = pod.annotations.get(_APP_CLASS)
        if app_class is not None:
            if app_class not in _APP_CLASSES:
                return _unknown(container, _APP_CLASS, app_class, _APP_CLASSES)
            quantity = quantity_or_none(count)
            if quantity is None or quantity.rounded_up() != 1:
                accepted = f"1 card in a pod with the annotation {_APP_CLASS}"
                return Unusable(
                    container=container.name, resource=self.names.count, value=str(count), accepted=accepted
                )
        if app_class == _ONLINE:
            return Defaults(is_found=True)
        policy = pod.annotations.get(_QOS_POLICY)
        if policy is None:
            return Defaults(is_found=True, annotations={_QOS_POLICY: _QOS_POLICIES[0]})
        if policy not in _QOS_POLICIES:
            return _unknown(container, _QOS_POLICY, policy, _QOS_POLICIES)
        return Defaults(is_found=True)

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:
        """Return what a container asks for; no cores in a pod that is online."""
        request = super().request(container, pod)
        if isinstance(request, DeviceRequest) and pod.annotations.get(_APP_CLASS) == _ONLINE:
            return replace(request, cores_percent=0)
        return request

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in MetaX's own registration."""
        text = node.annotations.get(_REGISTER_ANNOTATION, "")
        return _decode_cards(text) if text else ()

    def _amounts(self, container: Container) -> Mapping[str, Any]:
        """Return what a container says in its limits; HAMi does not look at its requests."""
        return container.limits

    def _memory_mib(self, container: Container, memory: Any) -> int | Unusable:
        """Return memory in MiB: bytes where the text has a unit, GiB where it has none.

        The API server writes `10000` as `10k`, so a decimal unit alone does not say bytes: what is less than 1 MiB read
        that way was meant without a unit.
        """
        if memory is None:
            return 0
        quantity = quantity_or_none(memory)
        amount = quantity.whole() if quantity is not None else None
        if amount is not None and amount >= 0:
            is_binary = str(memory).endswith("i")
            has_unit = is_binary or amount % 1000 == 0
            as_bytes = amount // 2**20 if has_unit else 0
            if amount == 0 or 0 < as_bytes <= MAX_INT32:
                return as_bytes
            if not is_binary and amount <= _LARGEST_GIB:
                return amount * _MIB_PER_GIB
        accepted = f"plain integer, GiB, e.g. 16, at most {_LARGEST_GIB}, or at least 1 MiB with a unit, e.g. 16Gi"
        return Unusable(container=container.name, resource=self.names.memory, value=str(memory), accepted=accepted)


def _unknown(container: Container, annotation: str, value: str, known: tuple[str, ...]) -> Unusable:
    return Unusable(
        container=container.name,
        resource=f"annotation {annotation}",
        value=value,
        accepted=f"one of {', '.join(known)}",
    )


def _decode_cards(text: str) -> tuple[Card, ...]:
    """Return the cards in a JSON list; keys match whatever their case, as Go decodes.

    Source: HAMi pkg/device/metax/protocol.go, `MetaxSDeviceInfo`.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(_REGISTER_ANNOTATION, f"is not JSON: {error}") from error
    if document is None:
        return ()
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise DecodeError(_REGISTER_ANNOTATION, "is not a JSON list of cards")
    cards = []
    for entry in document:
        fields = {name.lower(): value for name, value in entry.items()}
        uuid = fields.get("uuid") or ""
        figures = [fields.get(name) or 0 for name in ("totalvram", "totalcompute")]
        if not isinstance(uuid, str) or not all(type(figure) is int and 0 <= figure <= MAX_INT32 for figure in figures):
            problem = f"a card needs a text uuid and figures from 0 to {MAX_INT32}: {entry!r}"
            raise DecodeError(_REGISTER_ANNOTATION, problem[:300])
        memory_mib, cores = figures
        cards.append(Card(uuid, CardKind(model=MetaxSharedBackend.key, memory_mib=memory_mib, cores=cores)))
    return tuple(cards)

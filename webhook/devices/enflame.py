"""Enflame: whole cards (GCU), and slices of a card (DRS) asked by number, or by memory and cores.

Source: HAMi pkg/device/enflame. HAMi records a slice request in slices, gigabytes or MiB,
whichever it was asked in, and books MiB (weak spot D16); here memory is MiB throughout, so a slice is worth what the
registered cards cut it to. The names of the slice family are built in, and in force without any configuration (D29).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webhook.devices.base import (
    MAX_INT32,
    Card,
    CardKind,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Share,
    Unusable,
)
from webhook.devices.enflame_profiles import REGISTER_ANNOTATION, decode_drs_cards, profile
from webhook.devices.family import WHOLE_CARD, Family
from webhook.devices.guide import Guide
from webhook.devices.reading import quantity_or_none
from webhook.devices.whole_card import WholeCardFamily

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.config import ConfigBlock


def enflame_backends(config: ConfigBlock) -> tuple[DeviceBackend, ...]:
    """Return the families that the `enflame` block configures; slices are in force without one."""
    block = config.block("enflame")
    count = memory = cores = whole_count = ""
    if block is not None:
        # The older name of the count, and a percentage that HAMi reads and never uses.
        block.knows("resourceNameVGCU", "resourceNameVGCUPercentage")
        count = block.resource_name("resourceNameDRSGCU") or block.resource_name("resourceNameVGCU")
        memory = block.resource_name("resourceNameGCUMemory")
        cores = block.resource_name("resourceNameGCUCore")
        whole_count = block.resource_name("resourceNameGCU")
    names = ResourceNames(
        count=count or "enflame.com/drs-gcu",
        memory=memory or "enflame.com/gcu-memory",
        cores=cores or "enflame.com/gcu-core",
        count_unit="containers with slices",
    )
    return (GcuBackend(whole_count), EnflameDrsBackend(names))


class GcuBackend(WholeCardFamily):
    """Whole Enflame cards. HAMi looks at no annotation that names cards: pkg/device/enflame/gcu.go, `Fit`."""

    key = "GCU"
    guide = Guide(
        title="Enflame, whole cards", differs=("The count can be limited; HAMi has no quota for the family.",)
    )
    allocated_annotation = "hami.io/enflame-gcu-devices-allocated"
    owned_annotations = ("hami.io/enflame-gcu-devices-allocated", "hami.io/enflame-gcu-devices-to-allocate")
    uuid_annotation_pairs = ()
    card_infix = "GCU"
    card = CardKind(model="GCU", memory_mib=100, cores=100)
    one_card = DeviceRequest(cards=1, memory_mib=100, memory_percent=WHOLE_CARD, cores_percent=WHOLE_CARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest(DeviceRequest):
    """One slice of one card; the card says what it is worth.

    Attributes:
        slices: Its size, where that was asked; 0 where memory and cores were.
        memory_asked: Memory as asked: GB or MiB, which only the card can tell apart. 0 where none was.
    """

    slices: int
    memory_asked: int


class EnflameDrsBackend(Family):
    """Slices of Enflame cards."""

    key = "Enflame"
    guide = Guide(
        title="Enflame, slices (DRS)",
        memory=12288,
        cores=25,
        sized_by="its slice's",
        notes=(
            "A container asks for one slice of one card: by its size, or else by memory (GB or MiB) and cores.",
            "HAMi tells GB and MiB apart by their size; quotas are in MiB.",
            "It is charged the slice that the registered cards are cut to for it.",
            "The names are built in, and in force without an `enflame` block, as in HAMi.",
        ),
        differs=("Memory is MiB throughout; HAMi charges slices, GB or MiB as written, and books MiB.",),
    )
    allocated_annotation = "hami.io/enflame-vgpu-devices-allocated"
    # HAMi writes `assigned-containers` too, a name without an owner that others may write: it is not guarded.
    owned_annotations = (
        "hami.io/enflame-vgpu-devices-allocated",
        "enflame.com/gcu-assigned",
        "enflame.com/gcu-assigned-time",
        "enflame.com/gcu-assigned-index",
        "enflame.com/gcu-assigned-id",
        "enflame.com/gcu-assigned-minor",
        "enflame.com/gcu-request-size",
    )
    uuid_annotations = ("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid")

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - other families read it
        """Return what was asked, laid over limits and requests alike: slices, or else memory and cores."""
        names = self.names
        by_spec = tuple(name for name in (names.memory, names.cores) if container.look(name) is not None)
        asked = (names.count,) if container.look(names.count) is not None else by_spec
        for resource in asked:
            value = container.look(resource)
            quantity = quantity_or_none(value)
            largest = WHOLE_CARD if resource == names.cores else None
            if quantity is not None and not _is_positive(quantity.rounded_up(), largest):
                return self._unusable(container, resource, value)
        return Defaults(
            is_found=bool(asked),
            limits={name: str(container.look(name)) for name in asked if name not in container.limits},
            requests={name: str(container.look(name)) for name in asked if name not in container.requests},
        )

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for; see `DeviceBackend.request`.

        Memory and cores beside slices mean nothing to HAMi, so any number will do; what is no number is refused.
        """
        names = self.names
        has_slices = container.look(names.count) is not None
        figures = {}
        for resource in (names.count, names.memory, names.cores):
            value = container.look(resource)
            figure = 0 if value is None else self._figure(container, resource, value, is_ignored=has_slices)
            if isinstance(figure, Unusable):
                return figure
            figures[resource] = figure
        if not any(figures.values()):
            return None
        return SliceRequest(
            cards=1,
            memory_mib=0,
            memory_percent=None,
            cores_percent=0 if has_slices else figures[names.cores],
            memory_by_card=True,
            cores_by_card=True,
            slices=figures[names.count],
            memory_asked=0 if has_slices else figures[names.memory],
        )

    def _figure(self, container: Container, resource: str, value: Any, *, is_ignored: bool) -> int | Unusable:
        """Return an amount from 1 on; from 0 on where it is ignored."""
        quantity = quantity_or_none(value)
        amount = quantity.whole() if quantity is not None else None
        if amount is not None and is_ignored and resource != self.names.count and 0 <= amount <= MAX_INT32:
            return amount
        largest = WHOLE_CARD if resource == self.names.cores else MAX_INT32
        if amount is None or not _is_positive(amount, largest):
            return self._unusable(container, resource, value)
        return amount

    def _unusable(self, container: Container, resource: str, value: Any) -> Unusable:
        names = self.names
        accepted = {
            names.count: f"plain integer from 1 to {MAX_INT32}, slices of one card",
            names.memory: f"plain integer from 1 to {MAX_INT32}, GB or MiB, e.g. 12 or 12288",
            names.cores: "plain integer from 1 to 100, percent of a card's cores",
        }
        return Unusable(container=container.name, resource=resource, value=str(value), accepted=accepted[resource])

    def share(self, request: DeviceRequest, kind: CardKind) -> Share | None:
        """Return what the slice that a card is cut into is worth; None where it cannot be cut that way.

        Of a card whose size is configured, and nothing else known, the whole is charged: no slice is larger.
        """
        if not isinstance(request, SliceRequest):
            return None
        if kind == CardKind(memory_mib=kind.memory_mib):
            return Share(kind.memory_mib, WHOLE_CARD)
        return profile(kind, request.slices, request.memory_asked, request.cores_percent)

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in Enflame's own registration."""
        text = node.annotations.get(REGISTER_ANNOTATION, "")
        return decode_drs_cards(node.metadata.name, text) if text else ()


def _is_positive(amount: int, largest: int | None) -> bool:
    return amount > 0 and (largest is None or amount <= largest)

"""What a device family is to the rest of the program.

A family turns one container into a `DeviceRequest` (what it asks for), a node into `Card`s (what is there), and names
the resources and annotations that are its own. Everything else, the sums, quotas and sizes, is the same for all of
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from webhook.api.quantity import parse_quantity
from webhook.errors import QuantityError

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.guide import Guide

MAX_INT32 = 2**31 - 1

_PRINTABLE = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """What one container asks of one family.

    Attributes:
        cards: Number of cards, at least 1.
        memory_mib: Memory on each card in the accounting unit; 0 when the card's own size decides.
        memory_percent: Share of each card's memory that decides when `memory_mib` is 0; None when no share was given.
        cores_percent: Share of each card's cores, 100 is a whole card; 0 is unthrottled and uncounted.
        memory_by_card: Whether the memory depends on the card that the container gets; then `DeviceBackend.share` says
            what a card of some kind gives.
        cores_by_card: The same for the cores.
    """

    cards: int
    memory_mib: int
    memory_percent: int | None
    cores_percent: int
    memory_by_card: bool = False
    cores_by_card: bool = False


class Share(NamedTuple):
    """What one card gives to a container: memory in the accounting unit, cores in percent of the card."""

    memory_mib: int
    cores_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """An amount that cannot be used: the pod is refused, nothing is counted as 0 in silence."""

    container: str
    resource: str
    value: str
    accepted: str

    def __str__(self) -> str:
        return f"container {self.container}: {self.resource} {self.value!r} cannot be used: {self.accepted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ineffective:
    """An amount without a count in a family that gives no default count: HAMi allocates nothing for it."""

    container: str
    resource: str
    count_name: str

    def __str__(self) -> str:
        return f"container {self.container}: {self.resource} has no effect without {self.count_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What HAMi's defaulting changes for one container and one family; empty where it changes nothing.

    Attributes:
        is_found: Whether HAMi takes the pod over on account of this container.
        limits: Limits to set, as written.
        requests: Requests to set, as written.
        env: Variables to add to the container, where it has none of that name.
        annotations: Annotations to set on the pod.
        runtime_class_name: The runtime class to set on a pod that names none; "" for none.
    """

    is_found: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: tuple[tuple[str, str], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_class_name: str = ""


NO_DEFAULTS = Defaults()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """The resource names of a family; "" for one that it does not have.

    Attributes:
        memory_percentage: The resource that asks for memory in percent of a card.
        memory_factor: Accounting units (MiB) in one unit of the memory resource, at least 1.
        count_unit: What the count counts, for people.
        cores_unit: What the cores are counted in, for people.
    """

    count: str
    memory: str = ""
    cores: str = ""
    memory_percentage: str = ""
    memory_factor: int = 1
    count_unit: str = "cards"
    cores_unit: str = "percent of a card's cores"


class CardKind(NamedTuple):
    """All that tells cards apart when a request is sized.

    Attributes:
        model: The card's type as registered, such as `NVIDIA A100-SXM4-80GB`.
        mode: How the card is shared (`hami-core`, `mig`, `mps`), "" when not said.
        memory_mib: Memory in the family's accounting unit.
        cores: Cores in the family's own count; 100 in most.
        profiles: Slices that the card can be cut into, as (size, memory in MiB), for families that have them.
    """

    model: str = ""
    mode: str = ""
    memory_mib: int = 0
    cores: int = 0
    profiles: tuple[tuple[int, int], ...] = ()


class Card(NamedTuple):
    """A card that a node registers."""

    uuid: str
    kind: CardKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CardConstraint:
    """Which cards a pod's own annotations admit.

    Attributes:
        use_models: Some entry must occur in the card's type, whatever the case; empty admits every type.
        avoid_models: No entry may.
        mode: The card's mode must occur in this text; "" admits every mode.
        use_uuids: The card must be listed; empty admits every card.
        avoid_uuids: The card must not be listed.
    """

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    mode: str = ""
    use_uuids: frozenset[str] = frozenset()
    avoid_uuids: frozenset[str] = frozenset()

    @property
    def names_cards(self) -> bool:
        """Return whether single cards are named, and not just kinds of cards."""
        return bool(self.use_uuids or self.avoid_uuids)

    def admits(self, kind: CardKind) -> bool:
        """Return whether cards of this kind are admitted."""
        folded = kind.model.lower()
        return (
            (not self.use_models or any(entry in folded for entry in self.use_models))
            and not any(entry in folded for entry in self.avoid_models)
            and (not self.mode or kind.mode in self.mode)
        )


class DeviceBackend(Protocol):
    """One device family."""

    @property
    def key(self) -> str:
        """HAMi's device key, such as `NVIDIA`; the type in allocation annotations and the name in messages."""

    @property
    def guide(self) -> Guide:
        """The words for people."""

    @property
    def names(self) -> ResourceNames:
        """The resources that carry quotas."""

    @property
    def managed_resources(self) -> tuple[str, ...]:
        """Every resource whose presence makes a container this family's business, the names above included."""

    @property
    def allocated_annotation(self) -> str:
        """The pod annotation in which HAMi records the devices it gave."""

    @property
    def owned_annotations(self) -> tuple[str, ...]:
        """Every pod annotation of the family that only HAMi's components may write."""

    @property
    def sizing_annotations(self) -> tuple[str, ...]:
        """Every pod annotation that decides what a pod is charged until its devices are recorded."""

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:
        """Return what HAMi's defaulting changes; applied to its own result it changes nothing more."""

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:
        """Return what a container asks for after defaulting; None when it asks nothing of this family."""

    def share(self, request: DeviceRequest, kind: CardKind) -> Share | None:
        """Return what a card of a kind gives to a request that is sized by its card; None when it cannot serve it."""

    @property
    def counts_by_card(self) -> bool:
        """Whether `counted` depends on the card, so that a record has to be counted anew when cards are registered."""

    def counted(self, memory: int, cores: int, kind: CardKind | None) -> Share:
        """Return what a recorded device counts against quotas.

        Args:
            memory: Memory as the allocation annotation has it.
            cores: Cores as the allocation annotation has them.
            kind: The kind of the card, None while it is not registered.
        """

    def constraint(self, annotations: Mapping[str, str]) -> CardConstraint:
        """Return which cards a pod's annotations admit."""

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards that a node registers.

        Raises:
            DecodeError: The registration cannot be read.
        """


def comma_list(text: str | None) -> tuple[str, ...]:
    """Return the entries of a comma-separated annotation, blanks trimmed, each once.

    A list with an empty entry, or with anything but printable ASCII, comes back empty and so narrows nothing: HAMi's
    releases read such lists in different ways, and a pod must not be sized by fewer cards than it could get.
    """
    if not text or not _PRINTABLE.fullmatch(text):
        return ()
    entries = dict.fromkeys(entry.strip(" ") for entry in text.split(","))
    return () if "" in entries else tuple(entries)


def read_whole(container: Container, resource: str, value: Any, *, largest: int, accepted: str) -> int | Unusable:
    """Return an amount that must be a whole number from 0 to `largest`, or why it cannot be used."""
    try:
        amount = parse_quantity(value).whole()
    except QuantityError:
        amount = None
    if amount is None or not 0 <= amount <= largest:
        return Unusable(container=container.name, resource=resource, value=str(value), accepted=accepted)
    return amount

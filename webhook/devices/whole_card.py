"""Families that hand out whole cards: a count, no memory and no cores, and the cards are the node's capacity.

HAMi exposes neither a memory nor a core name for them, so it can limit nothing (weak spot D28); here the count can be.
Source: HAMi pkg/device/metax/device.go, kunlun/device.go, enflame/gcu.go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.devices.base import Card, CardConstraint, CardKind, DeviceRequest, Ineffective, ResourceNames, Unusable
from webhook.devices.family import Family
from webhook.devices.reading import named_cards, quantity_or_none
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod

# More cards than any machine holds: a capacity beyond it is a mistake, and would only cost memory here.
_MOST_CARDS = 4096


class WholeCardFamily(Family):
    """A family of whole cards.

    Attributes:
        card_infix: What stands between the node's name and the index in a card's UUID.
        card: The one kind of card, as HAMi registers it.
        one_card: HAMi's record of a request for one card.
        uuid_annotation_pairs: Pairs of annotations that name cards to use and cards to avoid.
    """

    card_infix: str
    card: CardKind
    one_card: DeviceRequest
    uuid_annotation_pairs: tuple[tuple[str, str], ...]

    def __init__(self, count_name: str) -> None:
        super().__init__(ResourceNames(count=count_name))

    @property
    def sizing_annotations(self) -> tuple[str, ...]:
        """Return the annotations that choose cards."""
        return tuple(annotation for pair in self.uuid_annotation_pairs for annotation in pair)

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for; see `DeviceBackend.request`."""
        cards = self._cards(container, container.look(self.names.count))
        if isinstance(cards, Unusable):
            return cards
        return replace(self.one_card, cards=cards) if cards else None

    def constraint(self, annotations: Mapping[str, str]) -> CardConstraint:
        """Return which cards a pod's annotations admit."""
        return named_cards(annotations, *self.uuid_annotation_pairs)

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return one card for each that the node's capacity counts."""
        count = capacity(node, self.names.count)
        return tuple(Card(f"{node.metadata.name}-{self.card_infix}-{index}", self.card) for index in range(count))


def capacity(node: Node, resource: str) -> int:
    """Return how much of a resource a node says it has; 0 when it is absent or no whole number, as HAMi reads it.

    Raises:
        DecodeError: No node has as many.
    """
    quantity = quantity_or_none((node.status.capacity or {}).get(resource)) if resource else None
    count = (quantity.whole() or 0) if quantity is not None else 0
    if count > _MOST_CARDS:
        raise DecodeError(f"status.capacity of {resource}", f"{count} is more than the {_MOST_CARDS} a node can have")
    return max(count, 0)

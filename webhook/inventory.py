"""The cards that nodes register, for requests whose figures depend on the card they get.

Memory asked as a percentage, or as whole cards, is sized from the largest card the pod could get, so that nothing can
slip through; where a cluster has one size this is exact. A kind once known is kept while no such card is registered
(pools scaled to zero). Source: design, "What one container asks".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from webhook.devices.base import Card, CardConstraint, CardKind

NodeCards = Mapping[str, tuple[Card, ...]]
"""Cards of one node by device family."""


class FamilyKind(NamedTuple):
    """A kind of card, and the family it is of."""

    family: str
    kind: CardKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """An immutable view of the registered cards.

    Attributes:
        counts: Registered cards by kind; kinds with none are absent.
        by_uuid: Registered cards by family and UUID, for pods that name cards; more than one while two nodes register
            the same card.
        known: Every kind that was ever registered.
    """

    counts: Mapping[FamilyKind, int] = field(default_factory=dict)
    by_uuid: Mapping[tuple[str, str], tuple[CardKind, ...]] = field(default_factory=dict)
    known: frozenset[FamilyKind] = frozenset()

    def with_node(self, before: NodeCards, after: NodeCards) -> Inventory:
        """Return the inventory once a node that registered `before` registers `after`."""
        counts = dict(self.counts)
        by_uuid = dict(self.by_uuid)
        for family, card in _cards(before):
            kind = FamilyKind(family, card.kind)
            counts[kind] -= 1
            if not counts[kind]:
                del counts[kind]
            rest = list(by_uuid.pop((family, card.uuid)))
            rest.remove(card.kind)
            if rest:
                by_uuid[family, card.uuid] = tuple(rest)
        for family, card in _cards(after):
            kind = FamilyKind(family, card.kind)
            counts[kind] = counts.get(kind, 0) + 1
            by_uuid[family, card.uuid] = (*by_uuid.get((family, card.uuid), ()), card.kind)
        return replace(self, counts=counts, by_uuid=by_uuid, known=self.known | counts.keys())

    def kind_of(self, family: str, uuid: str) -> CardKind | None:
        """Return the kind of a registered card; None for one that is not."""
        kinds = self.by_uuid.get((family, uuid))
        return kinds[-1] if kinds else None

    def kinds(self, family: str, constraint: CardConstraint) -> frozenset[CardKind]:
        """Return the kinds of card of a family that a pod could get: registered ones, or else ones once known.

        Args:
            family: The device key.
            constraint: What the pod's own annotations admit.
        """
        if constraint.use_uuids:
            named = constraint.use_uuids - constraint.avoid_uuids
            registered = {kind for uuid in named for kind in self.by_uuid.get((family, uuid), ())}
        else:
            registered = {kind for kind_family, kind in self.counts if kind_family == family}
            if constraint.avoid_uuids:
                registered -= self._exhausted(family, constraint.avoid_uuids)
        known = (kind for kind_family, kind in self.known if kind_family == family)
        return frozenset(filter(constraint.admits, registered)) or frozenset(filter(constraint.admits, known))

    def _exhausted(self, family: str, avoided: frozenset[str]) -> set[CardKind]:
        """Return the kinds of which every registered card is avoided by name."""
        left = {kind: count for (kind_family, kind), count in self.counts.items() if kind_family == family}
        for uuid in avoided:
            for kind in self.by_uuid.get((family, uuid), ()):
                left[kind] -= 1
        return {kind for kind, count in left.items() if count <= 0}


def _cards(node: NodeCards) -> Iterator[tuple[str, Card]]:
    for family, cards in node.items():
        for card in cards:
            yield family, card

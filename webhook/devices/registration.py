"""The forms in which nodes register cards that several families share: a JSON list, a comma form, and mere capacity.

Source: HAMi pkg/device/devices.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webhook.api.quantity import parse_quantity
from webhook.devices.base import MAX_INT32, Card, CardKind, ResourceNames
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from webhook.api.node import Node

_COMMA_FIELDS = (7, 9)

# As Go's strconv.ParseBool.
_HEALTH = frozenset(("1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"))

# More cards than any node has: a capacity that stands for more is a mistake, and would cost memory.
_MOST_CARDS = 1024


def decode_json_cards(annotation: str, text: str) -> tuple[Card, ...]:
    """Return the cards in a JSON list; keys match whatever their case, unknown ones are skipped, as Go decodes.

    Raises:
        DecodeError: The text is no list of cards, or one has a field of the wrong type, and HAMi does not read the node
            either; the error names the annotation.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(annotation, f"is not JSON: {error}") from error
    if document is None:
        return ()
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise DecodeError(annotation, "is not a JSON list of cards")
    return tuple(_json_card(annotation, entry) for entry in document)


def _json_card(annotation: str, entry: dict[str, Any]) -> Card:
    fields = {name.lower(): value for name, value in entry.items() if value is not None}
    texts = [fields.get(name, "") for name in ("id", "type", "mode")]
    if not all(isinstance(text, str) for text in texts):
        raise DecodeError(annotation, f"id, type and mode of a card must be texts: {entry!r}"[:300])
    if not isinstance(fields.get("health", False), bool):
        raise DecodeError(annotation, f"health {fields['health']!r} must be true or false")
    figures = {}
    for name, least in (("devmem", 0), ("devcore", 0), ("count", 0), ("index", 0), ("numa", -MAX_INT32)):
        figure = fields.get(name, 0)
        if not isinstance(figure, int) or isinstance(figure, bool) or not least <= figure <= MAX_INT32:
            raise DecodeError(annotation, f"{name} {figure!r} must be an integer from {least} to {MAX_INT32}")
        figures[name] = figure
    uuid, model, mode = texts
    memory_mib, cores = figures["devmem"], figures["devcore"]
    return Card(uuid, CardKind(model=model, mode=mode, memory_mib=memory_mib, cores=cores))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommaCard:
    """A card as a node's device plugin writes it in the comma form; quota needs less of it (`Card`)."""

    uuid: str
    index: int
    slots: int
    memory_mib: int
    cores: int
    model: str
    numa: int
    is_healthy: bool
    mode: str


def encode_comma_cards(cards: Iterable[CommaCard]) -> str:
    """Return the text in which a node registers cards, in the longer form of nine fields that HAMi writes."""
    return "".join(
        f"{card.uuid},{card.slots},{card.memory_mib},{card.cores},{card.model},{card.numa},"
        f"{'true' if card.is_healthy else 'false'},{card.index},{card.mode}:"
        for card in cards
    )


def decode_comma_cards(annotation: str, text: str) -> tuple[Card, ...]:
    """Return the cards in `id,count,memory,cores,type,numa,health[,index,mode]:` form.

    Raises:
        DecodeError: A card has another number of fields, or one that cannot be read, and HAMi does not read the node
            either; the error names the annotation.
    """
    if ":" not in text:
        raise DecodeError(annotation, f"{text[:100]!r} holds no card: every card ends with ':'")
    return tuple(_comma_card(annotation, piece) for piece in text.split(":") if piece)


def _comma_card(annotation: str, piece: str) -> Card:
    fields = piece.split(",")
    if len(fields) not in _COMMA_FIELDS:
        raise DecodeError(annotation, f"card {piece[:100]!r} has {len(fields)} fields, not 7 or 9")
    _, memory_mib, cores = (
        _figure(annotation, name, text) for name, text in zip(("count", "memory", "cores"), fields[1:4], strict=True)
    )
    _figure(annotation, "numa", fields[5].removeprefix("-"))
    if fields[6] not in _HEALTH:
        raise DecodeError(annotation, f"health {fields[6][:20]!r} must be true or false")
    mode = "hami-core"
    if len(fields) == max(_COMMA_FIELDS):
        _figure(annotation, "index", fields[7])
        mode = fields[8]
    return Card(fields[0], CardKind(model=fields[4], mode=mode, memory_mib=memory_mib, cores=cores))


def _figure(annotation: str, name: str, text: str) -> int:
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or int(digits[:11]) > MAX_INT32:
        raise DecodeError(annotation, f"{name} {text[:20]!r} must be an integer from 0 to {MAX_INT32}")
    return int(digits)


def cards_by_capacity(node: Node, names: ResourceNames, *, stem: str, model: str, cores: int) -> tuple[Card, ...]:
    """Return the equal cards that add up to a node's capacity of cores and memory, named `<node>-<stem>-<index>`.

    Args:
        node: The node; it registers nothing beside its capacity.
        names: The resources whose capacity counts.
        stem: What the cards' names have in common.
        model: The type of the cards.
        cores: Cores of one card; a rest that fills no card is one, too.

    Raises:
        DecodeError: A capacity cannot be read, or stands for more cards than a node can have.
    """
    core_capacity = _capacity(node, names.cores)
    count = -(core_capacity // -cores)
    if count > _MOST_CARDS:
        raise DecodeError(f"status.capacity of {names.cores}", f"{core_capacity} is more than {_MOST_CARDS} cards")
    if count <= 0:
        return ()
    memory_mib = _capacity(node, names.memory) * names.memory_factor * cores // core_capacity
    kind = CardKind(model=model, memory_mib=memory_mib, cores=cores)
    return tuple(Card(f"{node.metadata.name}-{stem}-{index}", kind) for index in range(count))


def _capacity(node: Node, resource: str) -> int:
    """Return a node's capacity of a resource; 0 for one that it has not, or not in whole numbers, as in HAMi."""
    value = (node.status.capacity or {}).get(resource)
    return 0 if value is None else parse_quantity(value, f"status.capacity of {resource}").whole() or 0

"""The two forms in which nodes register cards that several families share: a JSON list, and an older comma form.

Source: accounting.md 4.1 and 4.2, after HAMi pkg/device/devices.go.
"""

from __future__ import annotations

import json
from typing import Any

from webhook.devices.base import MAX_INT32, Card, CardKind
from webhook.errors import DecodeError

_COMMA_FIELDS = (7, 9)


def decode_json_cards(annotation: str, text: str) -> tuple[Card, ...]:
    """Return the cards in a JSON list; keys match whatever their case, unknown ones are skipped, as Go decodes.

    Raises:
        DecodeError: The text is no list of cards; the error names the annotation.
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
    fields = {name.lower(): value for name, value in entry.items()}
    texts = [fields.get(name) or "" for name in ("id", "type", "mode")]
    if not all(isinstance(text, str) for text in texts):
        raise DecodeError(annotation, f"id, type and mode of a card must be texts: {entry!r}"[:300])
    figures = []
    for name in ("devmem", "devcore"):
        figure = fields.get(name) or 0
        if not isinstance(figure, int) or isinstance(figure, bool) or not 0 <= figure <= MAX_INT32:
            raise DecodeError(annotation, f"{name} {figure!r} must be an integer from 0 to {MAX_INT32}")
        figures.append(figure)
    uuid, model, mode = texts
    memory_mib, cores = figures
    return Card(uuid, CardKind(model=model, mode=mode, memory_mib=memory_mib, cores=cores))


def decode_comma_cards(annotation: str, text: str) -> tuple[Card, ...]:
    """Return the cards in `id,count,memory,cores,type,numa,health[,index,mode]:` form.

    Raises:
        DecodeError: A card has another number of fields, or a memory that is no number; the error names the annotation.
    """
    if ":" not in text:
        raise DecodeError(annotation, f"{text[:100]!r} holds no card: every card ends with ':'")
    return tuple(_comma_card(annotation, piece) for piece in text.split(":") if piece)


def _comma_card(annotation: str, piece: str) -> Card:
    fields = piece.split(",")
    if len(fields) not in _COMMA_FIELDS:
        raise DecodeError(annotation, f"card {piece[:100]!r} has {len(fields)} fields, not 7 or 9")
    memory_mib, cores = (
        _figure(annotation, name, text) for name, text in zip(("memory", "cores"), fields[2:4], strict=True)
    )
    mode = fields[8] if len(fields) == max(_COMMA_FIELDS) else "hami-core"
    return Card(fields[0], CardKind(model=fields[4], mode=mode, memory_mib=memory_mib, cores=cores))


def _figure(annotation: str, name: str, text: str) -> int:
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or int(digits[:11]) > MAX_INT32:
        raise DecodeError(annotation, f"{name} {text[:20]!r} must be an integer from 0 to {MAX_INT32}")
    return int(digits)

"""The profiles that Enflame cards can be cut into: how nodes register them, and which one a request gets.

Source: HAMi pkg/device/enflame/device.go: `GetNodeDevices`, `parseProfile`,
`selectProfileByRequest`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from webhook.devices.base import MAX_INT32, Card, CardKind, Share
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

REGISTER_ANNOTATION = "enflame.com/gcu-drs-capacity"

_MODEL = "Enflame"
_MIB_PER_GB = 1024
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def decode_drs_cards(node_name: str, text: str) -> tuple[Card, ...]:
    """Return the cards in `{devices: [{index, minor, capacity}], profiles: {name: id}}`.

    Keys match whatever their case, as Go decodes. The size of a card is its largest profile's memory, or where no
    profile states any, its largest size taken for GB.

    Raises:
        DecodeError: The text is not that, has no profile, or has a device without capacity; it names the annotation.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(REGISTER_ANNOTATION, f"is not JSON: {error}") from error
    spec = _lower_keys(document)
    devices, profile_names = spec.get("devices") or [], spec.get("profiles") or {}
    if not isinstance(devices, list) or not isinstance(profile_names, dict):
        raise DecodeError(REGISTER_ANNOTATION, "needs a list of devices and a mapping of profiles")
    profiles = tuple(sorted({found for name in profile_names if (found := _profile(name))[0] > 0}))
    if not profiles:
        raise DecodeError(REGISTER_ANNOTATION, "states no profile such as 1g.8gb")
    memory_mib = max(memory for _, memory in profiles) or max(size for size, _ in profiles) * _MIB_PER_GB
    if memory_mib > MAX_INT32:
        raise DecodeError(REGISTER_ANNOTATION, f"a card of {memory_mib} MiB is larger than any")
    kind = CardKind(model=_MODEL, memory_mib=memory_mib, cores=100, profiles=profiles)
    return tuple(
        Card(f"{node_name}-enflame-drs-{_index(_lower_keys(device), position)}", kind)
        for position, device in enumerate(devices)
    )


def _lower_keys(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DecodeError(REGISTER_ANNOTATION, f"{str(value)[:100]!r} is not a JSON object")
    return {key.lower(): member for key, member in value.items()}


def _index(device: dict[str, Any], position: int) -> int:
    """Return the index of a device with capacity; its position where it says no number."""
    capacity = device.get("capacity")
    if isinstance(capacity, str):
        capacity = _integer(capacity.strip())
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float)) or not 1 <= capacity <= MAX_INT32:
        raise DecodeError(REGISTER_ANNOTATION, f"capacity of device {position} must be at least 1")
    index = device.get("index") or ""
    if not isinstance(index, str):
        raise DecodeError(REGISTER_ANNOTATION, f"index of device {position} must be a text")
    number = _integer(index)
    return position if number is None else number


def _profile(name: str) -> tuple[int, int]:
    """Return size and memory in MiB of a profile such as `3g.24gb`; 0 for what it does not state."""
    parts = [part.strip() for part in name.strip().lower().split(".")]
    size = _integer(parts[0].removesuffix("g")) if len(parts) > 1 else None
    if size is None or size <= 0:
        return 0, 0
    memory_gb = _integer(parts[1].removesuffix("gb")) or 0
    return size, max(memory_gb, 0) * _MIB_PER_GB


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def profile(kind: CardKind, slices: int, memory_asked: int, cores_percent: int) -> Share | None:
    """Return memory and cores of the profile that a card gives; None when none will do.

    Args:
        kind: The card; its profiles are sorted by size, then memory.
        slices: The size asked, 0 when memory and cores were asked.
        memory_asked: GB, or MiB when it is more than twice what the last profile has; 0 when not asked.
        cores_percent: Cores asked; 0 when not asked.
    """
    usable = [(size, memory_mib) for size, memory_mib in kind.profiles if 0 < memory_mib <= MAX_INT32]
    if not usable:
        return None
    needed_mib = _needed_mib(memory_asked, usable[-1][1])
    whole = max(size for size, _ in kind.profiles)
    for share, size in _shares(usable, whole):
        fits = size == slices if slices else share.memory_mib >= needed_mib and share.cores_percent >= cores_percent
        if fits:
            return share
    return None


def _shares(profiles: Iterable[tuple[int, int]], whole: int) -> Iterable[tuple[Share, int]]:
    """Yield what each profile is worth, and its size; cores are the size's part of the largest, rounded up."""
    for size, memory_mib in profiles:
        yield Share(memory_mib, -(-100 * size // whole)), size


def _needed_mib(memory_asked: int, last_mib: int) -> int:
    """Return the memory a profile must have: whole GB, however it was asked."""
    is_mib = memory_asked > 2 * (last_mib // _MIB_PER_GB)
    return -(-memory_asked // _MIB_PER_GB) * _MIB_PER_GB if is_mib else memory_asked * _MIB_PER_GB

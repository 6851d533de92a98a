"""The allocation annotations, in which HAMi records the devices it gave to each container of a pod.

    pod = { container ";" }     container = { device ":" }     device = uuid "," type "," memory "," cores

Position i is `initContainers[i]`, then `containers[i - len(initContainers)]`; a container without devices is an empty
segment, and the `;` at the end is not one. Some HAMi releases leave empty segments out (weak spot A13): such a text is
recognised by its number of segments and laid at the containers that ask for the family, in order.

Source: accounting.md 3, after HAMi pkg/device/devices.go. HAMi lets a piece without a comma, negative figures and
32-bit wraps pass; here they do not decode.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webhook.devices.base import MAX_INT32
from webhook.errors import InvalidAllocation

if TYPE_CHECKING:
    from webhook.api.pod import Pod

_FIGURE = re.compile(r"[+-]?[0-9]{1,10}")
_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Allocated:
    """A share of one card given to one container; memory in the accounting unit, cores as the family books them."""

    uuid: str
    type: str
    memory: int
    cores: int


def decode_segments(annotation: str, text: str) -> list[list[Allocated]]:
    """Return the devices of each segment, empty segments included.

    Raises:
        InvalidAllocation: A device is not `uuid,type,memory,cores` with figures from 0 on; the error names the
        annotation.
    """
    segments = text.removesuffix(";").split(";")
    return [[_device(annotation, piece) for piece in segment.split(":") if piece] for segment in segments]


def encode_segments(segments: Sequence[Sequence[Allocated]]) -> str:
    """Return the text of an allocation annotation."""
    return "".join(
        "".join(f"{device.uuid},{device.type},{device.memory},{device.cores}:" for device in segment) + ";"
        for segment in segments
    )


def _device(annotation: str, piece: str) -> Allocated:
    fields = piece.split(",")
    if len(fields) < _FIELDS:
        raise InvalidAllocation(annotation, f"{piece[:100]!r} is not uuid,type,memory,cores")
    figures = []
    for name, figure in (("memory", fields[2]), ("cores", fields[3])):
        if not _FIGURE.fullmatch(figure) or not 0 <= int(figure) <= MAX_INT32:
            raise InvalidAllocation(annotation, f"{name} {figure[:40]!r} is not an integer from 0 to {MAX_INT32}")
        figures.append(int(figure))
    return Allocated(uuid=fields[0], type=fields[1], memory=figures[0], cores=figures[1])


def devices_by_container(annotation: str, text: str, pod: Pod, asking: Sequence[str]) -> list[tuple[Allocated, ...]]:
    """Return the devices of each container, in the order of `pod.containers()`.

    Args:
        annotation: Name of the annotation, for the error.
        text: Its value.
        pod: The pod that carries it.
        asking: Names of the containers that ask for the family, in order.

    Raises:
        InvalidAllocation: The text does not decode, its number of segments fits neither layout, or a container that
            asks for devices is given none.
    """
    segments = [_given(segment) for segment in decode_segments(annotation, text)]
    names = [container.name for container in pod.containers()]
    if len(segments) == len(asking) < len(names):
        by_name = dict(zip(asking, segments, strict=True))
        segments = [by_name.get(name, ()) for name in names]
    if len(segments) != len(names):
        raise InvalidAllocation(
            annotation,
            f"has {len(segments)} segments for {len(names)} containers, of which {len(asking)} ask for the family",
        )
    for name, segment in zip(names, segments, strict=True):
        if name in asking and not segment:
            raise InvalidAllocation(annotation, f"gives container {name} no device, and it asks for some")
    return segments


def _given(segment: Sequence[Allocated]) -> tuple[Allocated, ...]:
    """Return the devices of a segment without HAMi's placeholders (`,,0,0:`), which stand for no device."""
    return tuple(device for device in segment if device != _PLACEHOLDER)


_PLACEHOLDER = Allocated(uuid="", type="", memory=0, cores=0)

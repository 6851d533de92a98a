"""The allocation annotations, in which HAMi records the devices it gave to each container of a pod.

    pod = { container ";" }     container = { device ":" }     device = uuid "," type "," memory "," cores

Position i is `initContainers[i]`, then `containers[i - len(initContainers)]`; a container without devices is an empty
segment, and the `;` at the end is not one. Some HAMi releases leave empty segments out (weak spot A13): such a text is
recognised by its number of segments and laid at the containers that ask for the family, in order.

A second annotation says of cards cut into MIG instances which instance each device is: a JSON list.

Source: HAMi pkg/device/devices.go and nvidia/mig_allocations.go. HAMi lets a piece
without a comma, negative figures and 32-bit wraps pass; here they do not decode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """The MIG instance behind one device of one container.

    Attributes:
        container: Position of the container, as in the allocation annotation.
        device: Position of the device in it.
        profile: What the instance is cut to, such as `1g.5gb`.
        placement: Where on the card it lies: start and size, in slices.
        mig_uuid: The instance's own UUID; "" until it was made.
    """

    container: int
    device: int
    gpu_uuid: str
    profile: str
    placement: tuple[int, int]
    mig_uuid: str = ""


def decode_mig_allocations(annotation: str, text: str) -> tuple[MigAllocation, ...]:
    """Return the MIG instances that an annotation lists; none for an empty text.

    Raises:
        InvalidAllocation: The text is no list of instances, one has no GPU, no profile, an impossible place or a part
            of a runtime identity, or two are of one device; the error names the annotation.
    """
    if not text:
        return ()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAllocation(annotation, f"is not JSON: {error}") from error
    if document is None:
        return ()
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise InvalidAllocation(annotation, "is not a JSON list of MIG instances")
    found: dict[tuple[int, int], MigAllocation] = {}
    for entry in document:
        instance = _mig_allocation(annotation, entry)
        place = (instance.container, instance.device)
        if place in found:
            raise InvalidAllocation(annotation, f"lists device {place[1]} of container {place[0]} twice")
        found[place] = instance
    return tuple(found.values())


def _mig_allocation(annotation: str, entry: Mapping[str, Any]) -> MigAllocation:
    fields = _named(entry)
    placement = fields.get("placement", {})
    if not isinstance(placement, dict):
        raise InvalidAllocation(annotation, f"placement {placement!r:.100} is not an object")
    texts = [fields.get(name, "") for name in ("gpuuuid", "profile", "miguuid")]
    if not all(isinstance(text, str) for text in texts) or not texts[0] or not texts[1]:
        raise InvalidAllocation(annotation, f"an instance needs gpuUUID and profile, as texts: {entry!r:.200}")
    instances = [_mig_figure(annotation, fields, name, 0) for name in _INSTANCE_IDS if name in fields]
    if len(instances) != (len(_INSTANCE_IDS) if texts[2] else 0):
        raise InvalidAllocation(annotation, "migUUID, gpuInstanceID and computeInstanceID come together or not at all")
    spot = _named(placement)
    return MigAllocation(
        container=_mig_figure(annotation, fields, "containerindex", 0),
        device=_mig_figure(annotation, fields, "deviceindex", 0),
        gpu_uuid=texts[0],
        profile=texts[1],
        placement=(_mig_figure(annotation, spot, "start", 0), _mig_figure(annotation, spot, "size", 1)),
        mig_uuid=texts[2],
    )


_INSTANCE_IDS = ("gpuinstanceid", "computeinstanceid")


def _named(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as Go looks for them: whatever their case, and a null is as good as absent."""
    return {name.lower(): value for name, value in entry.items() if value is not None}


def _mig_figure(annotation: str, fields: Mapping[str, Any], name: str, least: int) -> int:
    figure = fields.get(name, 0)
    if not isinstance(figure, int) or isinstance(figure, bool) or not least <= figure <= MAX_INT32:
        raise InvalidAllocation(annotation, f"{name} {figure!r:.40} is not an integer from {least} to {MAX_INT32}")
    return figure

"""The device families in force: as a table, and as a document for those who write pods and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from webhook.api.pod import Container, Pod
from webhook.devices.base import DeviceBackend, DeviceRequest, Ineffective, Unusable
from webhook.quotas import QuotaKey, quota_keys
from webhook.reports.table import Column, aligned

_WHOLE = 100

_PREAMBLE = """\
# Device families

What a pod writes for each family of cards, what it is charged for it, and which keys of a ResourceQuota limit it.
`hami-quota lint -o markdown` prints this page for a device configuration; this one is for HAMi's default.

Resources stand in the limits of a container. Under `hard` of a quota stands the same name after `limits.`, in the same
unit. Memory and cores are those of each card unless said otherwise; a quota counts those of all cards. "The card's" are
those of the largest registered card that the pod could get, until HAMi has placed it.
"""


def _resources(backend: DeviceBackend, keys: Mapping[str, QuotaKey]) -> Iterator[tuple[str, str, str]]:
    """Yield what each resource of a family asks for, its name and its unit."""
    names = backend.names
    for amount, resource in (("count", names.count), ("memory", names.memory), ("cores", names.cores)):
        if resource:
            yield amount, resource, keys[resource].unit
    if names.memory_percentage:
        yield "memory", names.memory_percentage, "percent of a card's memory"


def families_table(backends: Sequence[DeviceBackend]) -> str:
    """Return the families in force, a line for each of their resources."""
    keys = quota_keys(backends, count_quota=True)
    rows = [(backend.key, *row) for backend in backends for row in _resources(backend, keys)]
    families, amounts, resources, units = zip(*rows, strict=True)
    return aligned(
        [
            Column("FAMILY", families),
            Column("AMOUNT", amounts),
            Column("RESOURCE", resources),
            Column("UNIT", units),
            Column("QUOTA KEY", ["limits.RESOURCE" if resource in keys else "" for resource in resources]),
        ]
    )


def families_document(backends: Sequence[DeviceBackend]) -> str:
    """Return the document, in Markdown; families that share their words share a section."""
    keys = quota_keys(backends, count_quota=True)
    families = groupby(backends, key=lambda backend: backend.guide)
    return "\n".join([_PREAMBLE, *("\n".join(_section(list(family), keys)) for _, family in families)])


def _section(family: Sequence[DeviceBackend], keys: Mapping[str, QuotaKey]) -> Iterator[str]:
    """Yield the lines of a section, the last one blank."""
    first = family[0]
    guide = first.guide
    yield from (f"## {guide.title}", "")
    resources = [
        (
            f"`{backend.key}`",
            amount,
            f"`{resource}`",
            unit,
            f"`{keys[resource].name}`" if resource in keys else "",
        )
        for backend in family
        for amount, resource, unit in _resources(backend, keys)
    ]
    yield from _table(("family", "amount", "resource", "unit", "key of a quota"), resources)
    yield from _list(guide.notes)
    of = f" of {first.key}" if len(family) > 1 else ""
    yield from _table((f"a container{of} says", "HAMi adds", "it is charged"), list(_examples(first)))
    # Chips of one kind have annotations alike, but for the chip's name.
    named = {
        f"`{name.replace(backend.key, '<family>') if len(family) > 1 else name}`": None
        for backend in family
        for name in backend.sizing_annotations
    }
    if named:
        yield from (f"Annotations of the pod that choose cards or decide the charge: {', '.join(named)}.", "")
    if guide.differs:
        yield from ("On purpose not as in HAMi:", "")
        yield from _list(guide.differs)


def _examples(backend: DeviceBackend) -> Iterator[tuple[str, str, str]]:
    """Yield what containers say, what defaulting adds, and what the family charges: its own answers."""
    names, guide = backend.names, backend.guide
    one, two = (names.count, 1), (names.count, 2)
    memory, cores = (names.memory, guide.memory), (names.cores, guide.cores)
    said: tuple[tuple[tuple[str, int], ...], ...] = (
        (one,),
        (two,),
        (memory,),
        (cores,),
        (one, memory),
        (one, memory, cores),
        (two, memory, cores),
        (one, (names.memory_percentage, 50)),
    )
    for amounts in said:
        if all(name and amount for name, amount in amounts):
            limits = {name: str(amount) for name, amount in amounts}
            yield (_written(limits), *_outcome(backend, limits))


def _written(limits: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}: {amount}`" for name, amount in limits.items())


def _outcome(backend: DeviceBackend, limits: Mapping[str, str]) -> tuple[str, str]:
    """Return what defaulting changes in the limits of a container, and what it is charged with that."""
    pod, container = Pod(), Container(name="example").with_defaults(limits, {})
    defaults = backend.defaults(container, pod)
    if isinstance(defaults, Unusable):
        return "", f"refused: {defaults.accepted}"
    request = backend.request(container.with_defaults(defaults.limits, {}), pod)
    if isinstance(request, Unusable):
        charge = f"refused: {request.accepted}"
    elif request is None or isinstance(request, Ineffective):
        charge = "nothing: it has no effect without a count"
    else:
        charge = ", ".join(_charged(backend, request))
    return _written(defaults.limits), charge


def _charged(backend: DeviceBackend, request: DeviceRequest) -> Iterator[str]:
    names, sized_by, cards = backend.names, backend.guide.sized_by, request.cards
    times = f"{cards} times " if cards > 1 else ""
    if names.count:
        yield f"count {cards}"
    if names.memory:
        percent = request.memory_percent
        share = f"{percent} % of " if percent is not None and percent < _WHOLE else ""
        units = -(-request.memory_mib * cards // names.memory_factor)
        yield f"memory {times}{share}{sized_by}" if request.memory_by_card else f"memory {units}"
    if names.cores:
        yield f"cores {times}{sized_by}" if request.cores_by_card else f"cores {request.cores_percent * cards}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; columns without any text are left out."""
    shown = [index for index, _ in enumerate(headings) if any(row[index] for row in rows)]
    yield f"| {' | '.join(headings[index] for index in shown)} |"
    yield f"|{'---|' * len(shown)}"
    for row in rows:
        yield f"| {' | '.join(row[index] for index in shown)} |"
    yield ""


def _list(entries: Sequence[str]) -> Iterator[str]:
    if entries:
        yield from (f"- {entry}" for entry in entries)
        yield ""

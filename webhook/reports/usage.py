"""What is used of every quota, and which pods hold it: numbers in, text out.

Sums are made in accounting units and shown in the key's own unit, each figure rounded up by itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from webhook.reports.table import Column, aligned
from webhook.usage import PodRecord, Stage

if TYPE_CHECKING:
    from webhook.book import Reservation
    from webhook.ledger import NamespaceView
    from webhook.quotas import Quota, QuotaKey

RESERVED = "reserved"
_WHOLE = 100
_SHORT_UNITS = {"percent of a card's cores": "%"}


class Format(StrEnum):
    """How usage is written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """One key of a quota, and what is held against it; amounts in accounting units.

    Attributes:
        quota: Its name; None for what pods hold in a namespace without a quota.
        used: The sum of the three below.
        allocated: What pods hold that HAMi has placed, or that run.
        pending: What pods hold that are not placed yet.
        reserved: What was admitted and is not seen yet.
        terminating: The part of `used` that pods hold which are being deleted.
        limit: None when there is none.
        pods: How many pods hold some.
    """

    quota: str | None
    key: QuotaKey
    allocated: int
    pending: int
    reserved: int
    terminating: int
    limit: int | None
    pods: int

    @property
    def used(self) -> int:
        """Everything that is held."""
        return self.allocated + self.pending + self.reserved

    @property
    def free(self) -> int | None:
        """What the next pod could have, in the key's own unit; None without a limit."""
        if self.limit is None:
            return None
        return max(0, self.limit // self.key.factor - self.key.in_own_unit(self.used))

    @property
    def percent(self) -> int | None:
        """The share of the limit, to the nearest percent; None without a limit, or where it is 0.

        100 is said of a limit that is met exactly, 0 where nothing is used.
        """
        if not self.limit:
            return None
        nearest = (2 * _WHOLE * self.used + self.limit) // (2 * self.limit)
        if self.used < self.limit:
            return min(max(nearest, 1 if self.used else 0), _WHOLE - 1)
        return max(nearest, _WHOLE + 1) if self.used > self.limit else _WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """One pod that holds something.

    Attributes:
        stage: pending, allocated, shrunk or reserved.
        charge: By resource, in accounting units.
        share: Of the tightest memory limit that applies to the pod; None where none does.
        terminating_since: Its deletion timestamp; "" while nobody deletes it.
        problem: Why its figure is not what its object says; "" if it is.
    """

    name: str
    uid: str
    stage: str
    charge: Mapping[str, int]
    share: Fraction | None
    terminating_since: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceUse:
    """What is used in one namespace.

    Attributes:
        keys: Sorted by quota and key.
        pods: Largest share of memory first; those without a share by memory, then by name.
    """

    namespace: str
    mode: str
    keys: tuple[KeyUse, ...]
    pods: tuple[PodUse, ...]


_Claim = "PodRecord | Reservation"


def namespace_use(view: NamespaceView, keys: Mapping[str, QuotaKey], memory: Collection[str]) -> NamespaceUse:
    """Return what is used in a namespace.

    Args:
        view: The namespace in the ledger.
        keys: Our keys by resource.
        memory: The resources that are memory, for the order of pods.
    """
    seats: defaultdict[str, list[PodRecord | Reservation]] = defaultdict(list)
    # A record wins over the reservation of the same pod, and over the reservation of another one that asks as much.
    for claim in [*view.records.values(), *_unseen(view)]:
        seats[claim.name or claim.uid].append(claim)
    rows = [
        _key_use(seats.values(), quota, keys[resource], limit)
        for _, quota in sorted(view.quotas.items())
        for resource, limit in sorted(quota.limits.items(), key=lambda item: keys[item[0]].name)
    ]
    if not view.quotas:
        held = {resource for claims in seats.values() for claim in claims for resource in claim.charge}
        rows = [_key_use(seats.values(), None, keys[resource], None) for resource in sorted(held & keys.keys())]
    pods = [_pod_use(claim, view, memory) for claims in seats.values() for claim in claims]
    return NamespaceUse(
        namespace=view.namespace,
        mode=str(view.mode),
        keys=tuple(rows),
        pods=tuple(sorted(pods, key=lambda pod: _rank(pod, memory))),
    )


def _unseen(view: NamespaceView) -> list[Reservation]:
    return [item for uid, item in view.reservations.items() if uid not in view.records]


def _key_use(
    seats: Iterable[Sequence[PodRecord | Reservation]], quota: Quota | None, key: QuotaKey, limit: int | None
) -> KeyUse:
    """Return what the seats hold of one key; of claims to one name only the largest counts, as in the ledger."""
    amounts = {stage: 0 for stage in (Stage.ALLOCATED, Stage.PENDING, RESERVED)}
    terminating = pods = 0
    for claims in seats:
        largest, stage, ending = 0, "", 0
        for claim in claims:
            if quota is not None and not quota.applies_to(claim.facts):
                continue
            amount = claim.charge.get(key.resource, 0)
            if amount > largest:
                largest, stage = amount, _column_of(claim)
            if isinstance(claim, PodRecord) and claim.terminating_since:
                ending = max(ending, amount)
        if largest:
            amounts[stage] += largest
            terminating += ending
            pods += 1
    return KeyUse(
        quota=quota.name if quota else None,
        key=key,
        allocated=amounts[Stage.ALLOCATED],
        pending=amounts[Stage.PENDING],
        reserved=amounts[RESERVED],
        terminating=terminating,
        limit=limit,
        pods=pods,
    )


def _column_of(claim: PodRecord | Reservation) -> str:
    if not isinstance(claim, PodRecord):
        return RESERVED
    return Stage.PENDING if claim.stage is Stage.PENDING else Stage.ALLOCATED


def _pod_use(claim: PodRecord | Reservation, view: NamespaceView, memory: Collection[str]) -> PodUse:
    shares = [
        Fraction(claim.charge.get(resource, 0), limit)
        for quota in view.quotas.values()
        if quota.applies_to(claim.facts)
        for resource, limit in quota.limits.items()
        if resource in memory and limit
    ]
    is_record = isinstance(claim, PodRecord)
    return PodUse(
        name=claim.name,
        uid=claim.uid,
        stage=str(claim.stage) if is_record else RESERVED,
        charge=claim.charge,
        share=max(shares, default=None),
        terminating_since=claim.terminating_since if is_record else "",
        problem=claim.problem if is_record else "",
    )


def _rank(pod: PodUse, memory: Collection[str]) -> tuple[Fraction, int, str, str]:
    share = Fraction(-1) if pod.share is None else pod.share
    return -share, -sum(pod.charge.get(resource, 0) for resource in memory), pod.name, pod.uid


# Renderers.


def render(
    uses: Sequence[NamespaceUse],
    keys: Mapping[str, QuotaKey],
    form: Format,
    *,
    with_namespaces: bool,
    with_pods: bool,
) -> str:
    """Return usage as text, without a line end at its end.

    Args:
        uses: Sorted by namespace.
        keys: Our keys by resource.
        form: Which text.
        with_namespaces: Whether tables have a column for the namespace.
        with_pods: Whether pods are listed too.
    """
    if form is Format.JSON:
        return _json(uses, keys, with_pods=with_pods)
    is_wide = form is Format.WIDE
    parts = [_quota_table(uses, with_namespaces=with_namespaces, is_wide=is_wide)]
    if with_pods:
        parts.append(_pod_table(uses, keys, with_namespaces=with_namespaces, is_wide=is_wide))
        parts.append(
            "\n".join(
                f"{use.namespace}/{pod.name}: {_printable(pod.problem)}"
                for use in uses
                for pod in use.pods
                if pod.problem
            )
        )
    return "\n\n".join(filter(None, parts))


def _quota_table(uses: Sequence[NamespaceUse], *, with_namespaces: bool, is_wide: bool) -> str:
    rows = [(use, row) for use in uses for row in use.keys]
    if not rows:
        return "No quota on HAMi's resources, and no pod that holds any."

    def figures(heading: str, amount: Callable[[KeyUse], int]) -> Column:
        return Column(heading, [str(row.key.in_own_unit(amount(row))) for _, row in rows], is_figure=True)

    columns = [
        Column("NAMESPACE", [use.namespace for use, _ in rows]),
        Column("MODE", [use.mode for use, _ in rows]),
        Column("QUOTA", [row.quota or "-" for _, row in rows]),
        Column("RESOURCE", [row.key.resource for _, row in rows]),
        figures("USED", lambda row: row.used),
        Column("LIMIT", ["-" if row.limit is None else str(row.limit // row.key.factor) for _, row in rows], True),
        Column("USE", ["-" if row.percent is None else f"{row.percent}%" for _, row in rows], True),
        Column("FREE", ["-" if row.free is None else str(row.free) for _, row in rows], True),
        figures("ALLOCATED", lambda row: row.allocated),
        figures("PENDING", lambda row: row.pending),
        figures("RESERVED", lambda row: row.reserved),
        figures("TERMINATING", lambda row: row.terminating),
        Column("PODS", [str(row.pods) for _, row in rows], True),
        Column("UNIT", [_short_unit(row.key) for _, row in rows]),
    ]
    hidden = set() if with_namespaces else {"NAMESPACE"}
    if not is_wide:
        # A table has to fit on a screen: what is rarely there is shown when it is there.
        hidden |= {"MODE", "FREE", "PODS"}
        hidden |= set() if any(row.reserved for _, row in rows) else {"RESERVED"}
        hidden |= set() if any(row.terminating for _, row in rows) else {"TERMINATING"}
    return aligned([column for column in columns if column.heading not in hidden])


def _pod_table(
    uses: Sequence[NamespaceUse], keys: Mapping[str, QuotaKey], *, with_namespaces: bool, is_wide: bool
) -> str:
    rows = [(use, pod) for use in uses for pod in use.pods]
    if not rows:
        return ""
    held = sorted({resource for _, pod in rows for resource in pod.charge} & keys.keys())
    columns = [
        Column("NAMESPACE", [use.namespace for use, _ in rows]),
        Column("POD", [pod.name or "-" for _, pod in rows]),
        Column("STAGE", [pod.stage for _, pod in rows]),
        Column("SHARE", ["-" if pod.share is None else f"{round(_WHOLE * pod.share)}%" for _, pod in rows], True),
        *(
            Column(
                f"{_short_name(resource, held)} {_short_unit(keys[resource])}",
                [str(keys[resource].in_own_unit(pod.charge.get(resource, 0))) for _, pod in rows],
                True,
            )
            for resource in held
        ),
        Column("TERMINATING SINCE", [pod.terminating_since or "-" for _, pod in rows]),
        Column("UID", [pod.uid for _, pod in rows]),
    ]
    hidden = set() if with_namespaces else {"NAMESPACE"}
    if not is_wide:
        hidden |= {"UID"} if any(pod.terminating_since for _, pod in rows) else {"UID", "TERMINATING SINCE"}
    return aligned([column for column in columns if column.heading not in hidden])


def _short_unit(key: QuotaKey) -> str:
    return _SHORT_UNITS.get(key.unit, key.unit)


def _short_name(resource: str, others: Collection[str]) -> str:
    """Return a resource without its domain, where that leaves no doubt."""
    bare = resource.rpartition("/")[2]
    return bare if sum(other.rpartition("/")[2] == bare for other in others) == 1 else resource


def _printable(text: str) -> str:
    """Return a text that may hold what tenants wrote, on one line and without control characters."""
    return text.encode("unicode_escape").decode("ascii")


def _json(uses: Sequence[NamespaceUse], keys: Mapping[str, QuotaKey], *, with_pods: bool) -> str:
    """Return the documented JSON; see docs/usage.md."""
    namespaces: list[dict[str, Any]] = []
    for use in uses:
        entry: dict[str, Any] = {
            "namespace": use.namespace,
            "mode": use.mode,
            "keys": [_json_key(row) for row in use.keys],
        }
        if with_pods:
            entry["pods"] = [_json_pod(pod, keys) for pod in use.pods]
        namespaces.append(entry)
    return json.dumps({"namespaces": namespaces}, indent=2)


def _json_key(row: KeyUse) -> dict[str, Any]:
    own = row.key.in_own_unit
    return {
        "quota": row.quota,
        "key": row.key.name,
        "unit": row.key.unit,
        "used": own(row.used),
        "allocated": own(row.allocated),
        "pending": own(row.pending),
        "reserved": own(row.reserved),
        "terminating": own(row.terminating),
        "limit": None if row.limit is None else row.limit // row.key.factor,
        "free": row.free,
        "percent": row.percent,
        "pods": row.pods,
    }


def _json_pod(pod: PodUse, keys: Mapping[str, QuotaKey]) -> dict[str, Any]:
    return {
        "name": pod.name,
        "uid": pod.uid,
        "stage": pod.stage,
        "terminatingSince": pod.terminating_since or None,
        "memorySharePercent": None if pod.share is None else round(_WHOLE * pod.share),
        "holds": {
            keys[resource].name: keys[resource].in_own_unit(amount)
            for resource, amount in sorted(pod.charge.items())
            if resource in keys
        },
        "problem": pod.problem or None,
    }

"""What is used of every quota, split by what holds it: a namespace of the ledger in, numbers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from webhook.usage import PodRecord, Stage

if TYPE_CHECKING:
    from webhook.book import Reservation
    from webhook.ledger import NamespaceView
    from webhook.quotas import Quota, QuotaKey

RESERVED = "reserved"
_WHOLE = 100


def percent(share: Fraction) -> int:
    """Return the nearest percent, where 0, 100 and more than 100 are said of nothing else.

    >>> [percent(Fraction(used, 1000)) for used in (0, 1, 574, 999, 1000, 1001)]
    [0, 1, 57, 99, 100, 101]
    """
    nearest = round(_WHOLE * share)
    if share < 1:
        return min(max(nearest, 1 if share else 0), _WHOLE - 1)
    return max(nearest, _WHOLE + 1) if share > 1 else _WHOLE


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
    def own_limit(self) -> int | None:
        """The limit in the key's own unit."""
        return None if self.limit is None else self.limit // self.key.factor

    @property
    def free(self) -> int | None:
        """What the next pod could have, in the key's own unit; None without a limit."""
        return None if self.own_limit is None else max(0, self.own_limit - self.key.in_own_unit(self.used))

    @property
    def percent(self) -> int | None:
        """The share of the limit; None without a limit, or where it is 0."""
        return percent(Fraction(self.used, self.limit)) if self.limit else None


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

    @property
    def percent(self) -> int | None:
        """The share to the nearest percent."""
        return None if self.share is None else percent(self.share)


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


def namespace_use(view: NamespaceView, keys: Mapping[str, QuotaKey], memory: Collection[str]) -> NamespaceUse:
    """Return what is used in a namespace.

    Args:
        view: The namespace in the ledger.
        keys: Our keys by resource.
        memory: The resources that are memory, for the order of pods.
    """
    seats: defaultdict[str, list[PodRecord | Reservation]] = defaultdict(list)
    # A record wins over the reservation of the same pod, and over the reservation of another one that asks as much.
    claims: list[PodRecord | Reservation] = [*view.records.values(), *_unseen(view)]
    for claim in claims:
        seats[claim.name or claim.uid].append(claim)
    rows = [
        _key_use(seats.values(), quota, keys[resource], limit)
        for _, quota in sorted(view.quotas.items())
        for resource, limit in sorted(quota.limits.items(), key=lambda item: keys[item[0]].name)
    ]
    if not view.quotas:
        held = {resource for claim in claims for resource in claim.charge}
        rows = [_key_use(seats.values(), None, keys[resource], None) for resource in sorted(held & keys.keys())]
    pods = [_pod_use(claim, view, memory) for claim in claims]
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
    amounts = dict.fromkeys((str(Stage.ALLOCATED), str(Stage.PENDING), RESERVED), 0)
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
    record = claim if isinstance(claim, PodRecord) else None
    return PodUse(
        name=claim.name,
        uid=claim.uid,
        stage=str(record.stage) if record else RESERVED,
        charge=claim.charge,
        share=max(shares, default=None),
        terminating_since=record.terminating_since if record else "",
        problem=record.problem if record else "",
    )


def _rank(pod: PodUse, memory: Collection[str]) -> tuple[Fraction, int, str, str]:
    share = Fraction(-1) if pod.share is None else pod.share
    return -share, -sum(pod.charge.get(resource, 0) for resource in memory), pod.name, pod.uid

"""One namespace's part of the ledger: its quotas, its pods' claims, and the totals that always equal their sum.

Claims of one namespace and name are one seat: at most one of them can be stored, so only the largest counts.

Nothing here locks: a book is used by `ledger` alone, which holds the book's lock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from webhook.resources import Amounts, add, largest, subtract
from webhook.usage import PodRecord

if TYPE_CHECKING:
    from webhook.quotas import Quota, ScopeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """An admitted pod that no informer has shown yet.

    Attributes:
        charge: Its effective request, by resource name in accounting units.
        admitted_at: When it was admitted, on the ledger's clock, in seconds.
    """

    uid: str
    name: str
    facts: ScopeFacts
    charge: Mapping[str, int]
    admitted_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """One quota of a namespace and what is held against it, by resource name in accounting units.

    Attributes:
        used: Everything held by others, reservations included.
        seat: What is already held under the name of the pod in question; the larger of this and its charge counts.
        terminating: The part of `used` that pods hold which are being deleted.
    """

    quota: Quota
    used: Mapping[str, int]
    seat: Mapping[str, int]
    terminating: Mapping[str, int]


@dataclass(slots=True)
class _Tally:
    used: Amounts[str] = field(default_factory=dict)
    terminating: Amounts[str] = field(default_factory=dict)


_Claim = Reservation | PodRecord
C = TypeVar("C", Reservation, PodRecord)


class Book:
    """One namespace. Its methods expect the lock to be held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # A new token after every change: equal tokens mean that nothing happened, even to a book made anew.
        self.version = object()
        self.is_dropped = False
        self.mode_label: str | None = None
        self.quotas: dict[str, Quota] = {}
        self.records: dict[str, PodRecord] = {}
        self.reservations: dict[str, Reservation] = {}
        self._seats: dict[str, set[str]] = {}
        self._tallies: dict[str, _Tally] = {}

    def set_quota(self, quota: Quota) -> None:
        """Set a quota, and add up what is held against it."""
        self.version = object()
        self.quotas[quota.name] = quota
        tally = _Tally()
        for seat in self._seats.values():
            used, terminating = self._contribution(seat, quota)
            tally.used = add(tally.used, used)
            tally.terminating = add(tally.terminating, terminating)
        self._tallies[quota.name] = tally

    def drop_quota(self, name: str) -> None:
        """Drop a quota."""
        self.version = object()
        self.quotas.pop(name, None)
        self._tallies.pop(name, None)

    def put(self, claim: C, claims: dict[str, C]) -> None:
        """Set the claim of a UID; `claims` is `records` or `reservations`."""
        previous = claims.get(claim.uid)
        if previous is not None and previous.name != claim.name:
            self.remove(claim.uid, claims)
        self._change(_seat_of(claim), lambda: self._store(claim, claims))

    def remove(self, uid: str, claims: dict[str, C]) -> C | None:
        """Take a claim out and return it; None if there is none."""
        claim = claims.get(uid)
        if claim is not None:
            self._change(_seat_of(claim), lambda: self._discard(claim, claims))
        return claim

    def uses(self, uid: str, name: str) -> tuple[QuotaUse, ...]:
        """Return the use of every quota, with the seat of the pod in question told apart and its own claim left out."""
        seat = self._seats.get(name or uid, set())
        result = []
        for quota_name, quota in self.quotas.items():
            tally = self._tallies[quota_name]
            whole, terminating_whole = self._contribution(seat, quota)
            others, _ = self._contribution(seat - {uid}, quota)
            result.append(
                QuotaUse(
                    quota=quota,
                    used=subtract(tally.used, whole),
                    seat=others,
                    terminating=subtract(tally.terminating, terminating_whole),
                )
            )
        return tuple(result)

    def totals(self) -> dict[str, Amounts[str]]:
        """Return what is held against every quota."""
        return {name: dict(tally.used) for name, tally in self._tallies.items()}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing worth keeping."""
        return not (self.quotas or self.records or self.reservations or self.mode_label)

    def _change(self, seat: str, act: Callable[[], None]) -> None:
        """Run `act`, which changes the claims of one seat, and keep every tally equal to the sum over the seats."""
        self.version = object()
        before = {name: self._contribution(self._seats.get(seat, set()), quota) for name, quota in self.quotas.items()}
        act()
        for name, quota in self.quotas.items():
            used, terminating = self._contribution(self._seats.get(seat, set()), quota)
            used_before, terminating_before = before[name]
            tally = self._tallies[name]
            tally.used = subtract(add(tally.used, used), used_before)
            tally.terminating = subtract(add(tally.terminating, terminating), terminating_before)

    def reserved_before(self, time_s: float) -> Iterator[Reservation]:
        """Yield the reservations made up to a moment; they stand in the order in which they were made."""
        return itertools.takewhile(lambda item: item.admitted_at <= time_s, self.reservations.values())

    def _store(self, claim: C, claims: dict[str, C]) -> None:
        # Taken out first, so that a claim made anew stands at the end.
        claims.pop(claim.uid, None)
        claims[claim.uid] = claim
        self._seats.setdefault(_seat_of(claim), set()).add(claim.uid)

    def _discard(self, claim: C, claims: dict[str, C]) -> None:
        del claims[claim.uid]
        seat = self._seats[_seat_of(claim)]
        seat.discard(claim.uid)
        if not seat:
            del self._seats[_seat_of(claim)]

    def _contribution(self, uids: Iterable[str], quota: Quota) -> tuple[Amounts[str], Amounts[str]]:
        """Return what the claims of one seat hold against a quota, and the part of it that is being deleted."""
        used: Amounts[str] = {}
        terminating: Amounts[str] = {}
        for uid in uids:
            record = self.records.get(uid)
            claim: _Claim = self.reservations[uid] if record is None else record
            if not quota.applies_to(claim.facts):
                continue
            amounts = {resource: amount for resource, amount in claim.charge.items() if resource in quota.limits}
            used = largest(used, amounts)
            if record is not None and record.terminating_since:
                terminating = largest(terminating, amounts)
        return used, terminating


def _seat_of(claim: _Claim) -> str:
    return claim.name or claim.uid

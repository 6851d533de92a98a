"""The ledger: quotas, what pods hold, and what was admitted and is not seen yet, namespace by namespace.

A pod passes through these states; each is keyed by the pod's UID, so replays and late events cannot count twice:

    (none) --reserve--> reserved --seen--> recorded --released--> (none)
                           |                                         ^
                           +----- forgotten: it never appeared ------+

Concurrency contract. Every namespace has a book with a lock of its own; nothing waits while it holds one. Readers get
frozen snapshots. `update` is an optimistic loop: it takes a snapshot and its version under the lock, runs the caller's
pure function outside it, and commits the reservation only if the version still holds, else runs again. A book's
totals always equal the sum over its claims, whatever the order of events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from webhook.book import Book, QuotaUse, Reservation
from webhook.errors import Undecided
from webhook.inventory import Inventory, NodeCards
from webhook.policy import Mode
from webhook.resources import Amounts, largest

if TYPE_CHECKING:
    from webhook.quotas import Quota
    from webhook.usage import PodRecord

# An update that met this many changes in a row gives up; each round costs well under a millisecond.
_MAX_ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSnapshot:
    """Everything a decision about one pod reads.

    Attributes:
        unseen: Other admissions old enough to be looked up before they make anyone be refused.
        taken_at: When the snapshot was taken, on the ledger's clock, in seconds.
    """

    namespace: str
    mode: Mode
    uses: tuple[QuotaUse, ...]
    inventory: Inventory
    unseen: tuple[Reservation, ...]
    taken_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceView:
    """Everything that the ledger holds of one namespace, as of one instant.

    Attributes:
        quotas: By name.
        records: By UID.
        reservations: By UID.
        totals: What is held against every quota, by quota and resource, in accounting units.
    """

    namespace: str
    mode: Mode
    quotas: Mapping[str, Quota]
    records: Mapping[str, PodRecord]
    reservations: Mapping[str, Reservation]
    totals: Mapping[str, Amounts[str]]


class Outcome(Protocol):
    """What `update` needs of a decision."""

    @property
    def reservation(self) -> Reservation | None:
        """What to set aside; None for a denial, a dry run or a pod that nothing limits."""


D = TypeVar("D", bound=Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatistics:
    """Figures about the ledger itself."""

    namespaces: int
    quotas: int
    records: int
    reservations: int
    conflicts: int


class QuotaLedger:
    """The only mutable state of the domain. All methods may be called from any thread.

    Args:
        clock: Seconds that only move forward, such as `time.monotonic`.
        lookup_after_s: Age from which a reservation is reported as unseen, to be looked up.
        mode: From the label of a namespace (None without one) to its mode.
    """

    def __init__(
        self, *, clock: Callable[[], float], lookup_after_s: float, mode: Callable[[str | None], Mode]
    ) -> None:
        self._clock = clock
        self._lookup_after_s = lookup_after_s
        self._mode = mode
        self._books: dict[str, Book] = {}
        self._books_lock = threading.Lock()
        self._inventory = Inventory()
        self._nodes: dict[str, NodeCards] = {}
        self._nodes_lock = threading.Lock()
        self._conflicts = 0

    # Decisions.

    def update(self, namespace: str, uid: str, name: str, decide: Callable[[QuotaSnapshot], D]) -> D:
        """Return what `decide` says of a snapshot, with its reservation set aside in the same step.

        Args:
            namespace: The namespace of the pod in question.
            uid: Its UID; a reservation it already has is left out of the snapshot and replaced.
            name: Its name, "" when it has none.
            decide: A pure function; it may run several times.

        Raises:
            Undecided: The namespace changed under every attempt.
        """
        for _ in range(_MAX_ROUNDS):
            inventory = self._inventory
            with self._open(namespace) as book:
                version = book.version
                snapshot = self._snapshot(namespace, book, uid, name, inventory)
            decision = decide(snapshot)
            reservation = decision.reservation
            if reservation is None:
                return decision
            with self._open(namespace) as book:
                if book.version is version and self._inventory is inventory:
                    # Seen before its answer left: the record already counts.
                    if uid not in book.records:
                        book.put(_at_least(book.reservations.get(uid), reservation), book.reservations)
                    return decision
                self._conflicts += 1
        raise Undecided(f"namespace {namespace} changed {_MAX_ROUNDS} times during one decision, retry")

    def snapshot(self, namespace: str, uid: str = "", name: str = "") -> QuotaSnapshot:
        """Return a frozen view of one namespace."""
        with self._open(namespace) as book:
            return self._snapshot(namespace, book, uid, name, self._inventory)

    def forget(self, namespace: str, uid: str) -> bool:
        """Give a reservation back, because its pod never appeared; return whether there was one."""
        with self._open(namespace) as book:
            return book.remove(uid, book.reservations) is not None

    def unseen(self, older_than_s: float) -> list[tuple[str, Reservation]]:
        """Return every reservation of at least this age with its namespace."""
        before = self._clock() - older_than_s
        found = []
        for namespace, book in self._all_books():
            with book.lock:
                found += [(namespace, item) for item in book.reserved_before(before)]
        return found

    # Events.

    def record_pod(
        self, namespace: str, uid: str, change: Callable[[PodRecord | None, Inventory], PodRecord | None]
    ) -> PodRecord | None:
        """Replace the record of a pod by `change(previous, inventory)` and return it; None releases the pod.

        A pod that was seen needs its reservation no longer, whatever became of it.
        """
        with self._open(namespace) as book:
            previous = book.records.get(uid)
            record = change(previous, self._inventory)
            book.remove(uid, book.reservations)
            if record is None:
                book.remove(uid, book.records)
            elif record != previous:
                book.put(record, book.records)
            return record

    def release_pod(self, namespace: str, uid: str) -> None:
        """Release a pod that is gone; unknown pods are ignored, so replays and late deletes change nothing."""
        self.record_pod(namespace, uid, lambda _previous, _inventory: None)

    def set_quota(self, namespace: str, quota: Quota) -> bool:
        """Set a quota in one step, with no instant without it; return whether it changed anything."""
        with self._open(namespace) as book:
            if book.quotas.get(quota.name) == quota:
                return False
            book.set_quota(quota)
            return True

    def drop_quota(self, namespace: str, name: str) -> None:
        """Drop a deleted quota."""
        with self._open(namespace) as book:
            book.drop_quota(name)

    def set_mode_label(self, namespace: str, label: str | None) -> None:
        """Set the value of a namespace's `hami-quota/mode` label; None for no label or no namespace."""
        with self._open(namespace) as book:
            if book.mode_label != label:
                book.mode_label = label
                book.version = object()

    def drop_namespace(self, namespace: str) -> None:
        """Forget a deleted namespace; whatever its pods still hold stays until they are gone."""
        self.set_mode_label(namespace, None)
        with self._open(namespace) as book, self._books_lock:
            if book.is_empty:
                book.is_dropped = True
                del self._books[namespace]

    def prune(self) -> None:
        """Forget namespaces of which nothing is known, such as one that a review named and that never had a quota."""
        with self._books_lock:
            books = list(self._books.items())
        for namespace, book in books:
            with book.lock, self._books_lock:
                if book.is_empty and not book.is_dropped:
                    book.is_dropped = True
                    del self._books[namespace]

    def set_node(self, node: str, cards: NodeCards) -> bool:
        """Set the cards of a node, none for one that is gone; return whether anything changed."""
        with self._nodes_lock:
            before = self._nodes.get(node, {})
            if before == cards:
                return False
            if cards:
                self._nodes[node] = cards
            else:
                self._nodes.pop(node, None)
            self._inventory = self._inventory.with_node(before, cards)
            return True

    # Views.

    def namespaces(self) -> list[str]:
        """Return the namespaces that have anything in the ledger, sorted."""
        return sorted(namespace for namespace, _ in self._all_books())

    def view(self, namespace: str) -> NamespaceView:
        """Return everything about a namespace, as of one instant."""
        with self._open(namespace) as book:
            return NamespaceView(
                namespace=namespace,
                mode=self._mode(book.mode_label),
                quotas=dict(book.quotas),
                records=dict(book.records),
                reservations=dict(book.reservations),
                totals=book.totals(),
            )

    def records(self, namespace: str) -> dict[str, PodRecord]:
        """Return the records of a namespace by UID."""
        with self._open(namespace) as book:
            return dict(book.records)

    def reservations(self, namespace: str) -> dict[str, Reservation]:
        """Return the reservations of a namespace by UID."""
        with self._open(namespace) as book:
            return dict(book.reservations)

    def totals(self, namespace: str) -> dict[str, Amounts[str]]:
        """Return what is held against every quota of a namespace, by quota and resource, in accounting units."""
        with self._open(namespace) as book:
            return book.totals()

    def quotas(self, namespace: str) -> dict[str, Quota]:
        """Return the quotas of a namespace by name."""
        with self._open(namespace) as book:
            return dict(book.quotas)

    def nodes(self) -> list[str]:
        """Return the nodes that register cards."""
        with self._nodes_lock:
            return list(self._nodes)

    @property
    def inventory(self) -> Inventory:
        """The registered cards."""
        return self._inventory

    def estimated(self) -> list[tuple[str, PodRecord]]:
        """Return every record whose figure depends on the registered cards, with its namespace."""
        found = []
        for namespace, book in self._all_books():
            with book.lock:
                found += [(namespace, record) for record in book.records.values() if record.estimated is not None]
        return found

    def statistics(self) -> LedgerStatistics:
        """Return figures about the ledger itself."""
        books = [book for _, book in self._all_books()]
        return LedgerStatistics(
            namespaces=len(books),
            quotas=sum(len(book.quotas) for book in books),
            records=sum(len(book.records) for book in books),
            reservations=sum(len(book.reservations) for book in books),
            conflicts=self._conflicts,
        )

    @contextmanager
    def _open(self, namespace: str) -> Iterator[Book]:
        """Give a namespace's book with its lock held."""
        while True:
            with self._books_lock:
                book = self._books.setdefault(namespace, Book())
            with book.lock:
                if not book.is_dropped:
                    yield book
                    return

    def _all_books(self) -> Iterator[tuple[str, Book]]:
        with self._books_lock:
            books = list(self._books.items())
        return ((namespace, book) for namespace, book in books if not book.is_empty)

    def _snapshot(self, namespace: str, book: Book, uid: str, name: str, inventory: Inventory) -> QuotaSnapshot:
        now = self._clock()
        before = now - self._lookup_after_s
        return QuotaSnapshot(
            namespace=namespace,
            mode=self._mode(book.mode_label),
            uses=book.uses(uid, name),
            inventory=inventory,
            unseen=tuple(item for item in book.reserved_before(before) if item.uid != uid),
            taken_at=now,
        )


def _at_least(before: Reservation | None, after: Reservation) -> Reservation:
    """Return a reservation made anew, never smaller than it was: whoever asks twice for one pod frees nothing."""
    return after if before is None else replace(after, charge=largest(before.charge, after.charge))

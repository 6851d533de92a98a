"""The whole ledger as one JSON document: what /debug/ledger serves, and what a recount is compared with.

Amounts are in accounting units, by resource; what stands in `inOwnUnits` is in the unit of the key, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from webhook.errors import DecodeError

if TYPE_CHECKING:
    from webhook.admission import Rules
    from webhook.ledger import NamespaceView, QuotaLedger
    from webhook.quotas import QuotaKey


class _State(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the document."""


class Settings(_State, frozen=True, kw_only=True):
    """The choices that change what is counted.

    Attributes:
        keys: Accounting units in one unit of each key.
    """

    default_mode: str
    count_quota: bool
    hami_compat: bool
    assumed_card_memory_mib: dict[str, int]
    keys: dict[str, int]


class InformerState(_State, frozen=True, kw_only=True):
    """Up to which version the objects of one type are applied."""

    resource: str
    resource_version: str


class OwnUnits(_State, frozen=True, kw_only=True):
    """Limits and use by key, in each key's own unit."""

    limits: dict[str, int]
    used: dict[str, int]


class QuotaState(_State, frozen=True, kw_only=True):
    """A quota, and what is held against it."""

    name: str
    limits: dict[str, int]
    used: dict[str, int]
    in_own_units: OwnUnits


class RecordState(_State, frozen=True, kw_only=True):
    """A pod that holds devices.

    Attributes:
        charge: What it holds now: the steady state once the gate is open, the peak before.
        gate_open: Whether its init containers were once seen finished.
        problem: Why the figure is not what the object says; "" if it is.
    """

    uid: str
    name: str
    stage: str
    charge: dict[str, int]
    peak: dict[str, int]
    steady: dict[str, int]
    gate_open: bool
    terminating_since: str
    problem: str


class ReservationState(_State, frozen=True, kw_only=True):
    """A pod that was admitted and is not seen yet."""

    uid: str
    name: str
    charge: dict[str, int]
    age_s: float


class NamespaceState(_State, frozen=True, kw_only=True):
    """One namespace."""

    namespace: str
    mode: str
    quotas: list[QuotaState]
    records: list[RecordState]
    reservations: list[ReservationState]


class LedgerState(_State, frozen=True, kw_only=True):
    """The document.

    Attributes:
        not_ready: Why the figures cannot be trusted now; "" when they can.
    """

    version: str
    not_ready: str
    settings: Settings
    informers: list[InformerState]
    namespaces: list[NamespaceState]


def ledger_state(  # noqa: PLR0913 - all by name
    ledger: QuotaLedger,
    rules: Rules,
    *,
    version: str,
    now: float,
    not_ready: str = "",
    informers: Sequence[InformerState] = (),
) -> LedgerState:
    """Return everything that a ledger holds, sorted; each namespace is as of one instant.

    Args:
        ledger: The ledger.
        rules: The rules it was filled by.
        version: Of the program.
        now: The time on the ledger's clock, for ages.
        not_ready: Why the ledger cannot be trusted now.
        informers: Up to where the objects of each type are applied.
    """
    return LedgerState(
        version=version,
        not_ready=not_ready,
        settings=Settings(
            default_mode=str(rules.policy.default_mode),
            count_quota=rules.policy.count_quota,
            hami_compat=rules.policy.hami_compat,
            assumed_card_memory_mib=_sorted(rules.policy.assumed_card_memory_mib),
            keys=_sorted({key.name: key.factor for key in rules.keys.values()}),
        ),
        informers=list(informers),
        namespaces=[_namespace(ledger.view(namespace), rules.keys, now) for namespace in ledger.namespaces()],
    )


def _namespace(view: NamespaceView, keys: Mapping[str, QuotaKey], now: float) -> NamespaceState:
    return NamespaceState(
        namespace=view.namespace,
        mode=str(view.mode),
        quotas=[
            _quota(name, quota.limits, view.totals.get(name, {}), keys) for name, quota in sorted(view.quotas.items())
        ],
        records=[
            RecordState(
                uid=record.uid,
                name=record.name,
                stage=str(record.stage),
                charge=_sorted(record.charge),
                peak=_sorted(record.figure.peak),
                steady=_sorted(record.figure.steady),
                gate_open=record.is_gate_open,
                terminating_since=record.terminating_since,
                problem=record.problem,
            )
            for record in sorted(view.records.values(), key=lambda record: (record.name, record.uid))
        ],
        reservations=[
            ReservationState(
                uid=item.uid, name=item.name, charge=_sorted(item.charge), age_s=round(now - item.admitted_at, 3)
            )
            for item in sorted(view.reservations.values(), key=lambda item: (item.name, item.uid))
        ],
    )


def _quota(name: str, limits: Mapping[str, int], totals: Mapping[str, int], keys: Mapping[str, QuotaKey]) -> QuotaState:
    used = {resource: totals.get(resource, 0) for resource in limits}
    return QuotaState(
        name=name,
        limits=_sorted(limits),
        used=_sorted(used),
        in_own_units=OwnUnits(limits=_own(limits, keys), used=_own(used, keys)),
    )


def _own(amounts: Mapping[str, int], keys: Mapping[str, QuotaKey]) -> dict[str, int]:
    return _sorted({keys[resource].name: keys[resource].in_own_unit(amount) for resource, amount in amounts.items()})


def _sorted(amounts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(amounts.items()))


def encode_ledger_state(state: LedgerState) -> bytes:
    """Return the document as JSON, indented for people, with a line end at its end."""
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"


_DECODER = msgspec.json.Decoder(LedgerState)


def decode_ledger_state(raw: bytes) -> LedgerState:
    """Return the ledger in a JSON text; what a later version adds is skipped.

    Raises:
        DecodeError: The text is no such document.
    """
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError("ledger", str(error)) from error


def by_name(namespaces: Iterable[NamespaceState]) -> dict[str, NamespaceState]:
    """Return namespaces by their names."""
    return {item.namespace: item for item in namespaces}

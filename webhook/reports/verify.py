"""Where a running ledger and a recount from scratch differ, and why as far as that can be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from webhook.reports.ledger_state import (
    LedgerState,
    NamespaceState,
    RecordState,
    by_name,
)
from webhook.reports.table import Column, aligned

if TYPE_CHECKING:
    from webhook.reports.ledger_state import ReservationState, Settings

ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that the webhook holds otherwise than a recount gives.

    Attributes:
        namespace: "" for what concerns them all.
        what: A quota's limit or use, a pod, a mode or an option.
        resource: Of which resource; "" where there is none.
        held: What the webhook holds; amounts are in accounting units.
        recount: What a recount gives.
        drift: By how much they differ, to tell a lasting difference from events in flight.
        reason: Why, if that can be told; else "".
    """

    namespace: str
    what: str
    resource: str = ""
    held: str
    recount: str
    drift: str
    reason: str = ""


def differences(held: LedgerState, recount: LedgerState) -> list[Difference]:
    """Return every difference, sorted; none when the webhook holds what a recount gives."""
    theirs, ours = by_name(held.namespaces), by_name(recount.namespaces)
    found = _settings(held.settings, recount.settings)
    for name in sorted(theirs.keys() | ours.keys()):
        found += _in_namespace(theirs.get(name) or _empty(name, held), ours.get(name) or _empty(name, recount))
    return found


def lasting(first: Iterable[Difference], second: Iterable[Difference]) -> list[Difference]:
    """Return what of the second look was there at the first one, by as much: the rest were events in flight."""
    seen = {(item.namespace, item.what, item.resource, item.drift) for item in first}
    return [item for item in second if (item.namespace, item.what, item.resource, item.drift) in seen]


def _empty(namespace: str, state: LedgerState) -> NamespaceState:
    """Return a namespace that a ledger has nothing of, not even a mode of its own."""
    return NamespaceState(namespace=namespace, mode=state.settings.default_mode, quotas=[], records=[], reservations=[])


def _settings(theirs: Settings, ours: Settings) -> list[Difference]:
    reason = "the webhook was started otherwise; give this command the same options"
    pairs = [
        ("option --default-mode", theirs.default_mode, ours.default_mode),
        ("option --count-quota", str(theirs.count_quota), str(ours.count_quota)),
        ("option --hami-compat", str(theirs.hami_compat), str(ours.hami_compat)),
        ("option --assumed-card-memory", _pairs(theirs.assumed_card_memory_mib), _pairs(ours.assumed_card_memory_mib)),
    ]
    found = [_difference("", what, held, recount, reason) for what, held, recount in pairs if held != recount]
    return [*found, *_by_resource("", "option --device-config", theirs.keys, ours.keys, reason)]


def _in_namespace(held: NamespaceState, recount: NamespaceState) -> list[Difference]:
    namespace = held.namespace
    found = []
    if held.mode != recount.mode:
        found.append(_difference(namespace, "mode", held.mode, recount.mode))
    theirs, ours = ({quota.name: quota for quota in side.quotas} for side in (held, recount))
    for name in sorted(theirs.keys() | ours.keys()):
        one, other = theirs.get(name), ours.get(name)
        limits = [None if quota is None else quota.limits for quota in (one, other)]
        found += _by_resource(namespace, f"quota {name} limit", limits[0], limits[1])
        if one is not None and other is not None:
            both = one.used.keys() & other.used.keys()
            used = [{resource: quota.used[resource] for resource in both} for quota in (one, other)]
            found += [
                replace(item, reason=_why_used(held.reservations, item.resource))
                for item in _by_resource(namespace, f"quota {name} used", used[0], used[1])
            ]
    return [*found, *_pods(held, recount)]


def _pods(held: NamespaceState, recount: NamespaceState) -> list[Difference]:
    theirs, ours = ({record.uid: record for record in side.records} for side in (held, recount))
    reserved = {item.uid: item for item in held.reservations}
    names = {item.uid: item.name for item in held.reservations}
    names |= {item.uid: item.name for item in (*recount.records, *held.records)}
    found = []
    for uid, name in sorted(names.items(), key=lambda item: (item[1], item[0])):
        record, reservation, counted = theirs.get(uid), reserved.get(uid), ours.get(uid)
        # A record wins over the reservation of the same pod, as in the ledger.
        claim = record or reservation
        reason = _why_reserved(reservation) if reservation and not record else _why(record, counted)
        found += _by_resource(
            held.namespace,
            f"pod {name} ({uid[:8]})",
            None if claim is None else claim.charge,
            None if counted is None else counted.charge,
            reason,
        )
    return found


def _why(held: RecordState | None, recount: RecordState | None) -> str:
    """Return why a pod's figures differ: a record remembers two things that no object tells."""
    if held is None:
        return "the webhook has not seen this pod"
    if recount is None:
        return "the webhook has not seen that this pod is gone"
    if held.gate_open and not recount.gate_open:
        return "the webhook remembers that the init containers had ended; a recount charges the peak"
    if held.problem:
        return f"the webhook keeps the last figure that decoded ({_printable(held.problem)})"
    return ""


def _why_reserved(reservation: ReservationState) -> str:
    return f"admitted {reservation.age_s:.0f} s ago and not seen yet; given back once it is found not to be stored"


def _why_used(reservations: Sequence[ReservationState], resource: str) -> str:
    is_reserved = any(item.charge.get(resource) for item in reservations)
    return "the webhook counts admissions that are not seen yet, see below" if is_reserved else ""


def _by_resource(
    namespace: str,
    what: str,
    held: Mapping[str, int] | None,
    recount: Mapping[str, int] | None,
    reason: str = "",
) -> list[Difference]:
    """Return the resources whose amounts differ; None stands for something that is not there at all."""
    found = []
    for resource in sorted({*(held or ()), *(recount or ())}):
        amounts = [None if side is None else side.get(resource) for side in (held, recount)]
        if amounts[0] == amounts[1]:
            continue
        texts = [ABSENT if amount is None else str(amount) for amount in amounts]
        found.append(_difference(namespace, what, texts[0], texts[1], reason, resource, amounts))
    return found


def _difference(  # noqa: PLR0913, PLR0917 - a row of a table
    namespace: str,
    what: str,
    held: str,
    recount: str,
    reason: str = "",
    resource: str = "",
    amounts: Sequence[int | None] = (),
) -> Difference:
    numbers = [amount for amount in amounts if amount is not None]
    return Difference(
        namespace=namespace,
        what=what,
        resource=resource,
        held=held,
        recount=recount,
        drift=str(numbers[0] - numbers[1]) if len(numbers) == 2 else f"{held}/{recount}",  # noqa: PLR2004 - both sides
        reason=reason,
    )


def _pairs(amounts: Mapping[str, int]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items())) or "nothing"


def _printable(text: str) -> str:
    """Return a text that may hold what tenants wrote, on one line and without control characters."""
    return text.encode("unicode_escape").decode("ascii")


def summary(recount: LedgerState) -> str:
    """Return one line that says what was compared and found equal."""
    namespaces = recount.namespaces
    keys = sum(len(quota.limits) for item in namespaces for quota in item.quotas)
    pods = sum(len(item.records) for item in namespaces)
    return f"equal: {pods} pods and {keys} keys of quotas in {len(namespaces)} namespaces"


def report(found: Sequence[Difference]) -> str:
    """Return the differences as a table, with the reasons below it, each said once."""
    table = aligned(
        [
            Column("NAMESPACE", [item.namespace or "-" for item in found]),
            Column("WHAT", [item.what for item in found]),
            Column("RESOURCE", [item.resource or "-" for item in found]),
            Column("WEBHOOK", [item.held for item in found], is_figure=True),
            Column("RECOUNT", [item.recount for item in found], is_figure=True),
        ]
    )
    reasons = [f"{': '.join(filter(None, (item.namespace, item.what, item.reason)))}" for item in found if item.reason]
    return "\n\n".join(filter(None, [table, "\n".join(dict.fromkeys(reasons))]))

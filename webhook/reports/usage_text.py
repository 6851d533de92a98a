"""What is used, as people and programs read it: tables and JSON.

Figures are in the key's own unit, each rounded up by itself. Renderers never judge: every number comes from `usage`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from webhook.reports.table import Column, aligned

if TYPE_CHECKING:
    from webhook.quotas import QuotaKey
    from webhook.reports.usage import KeyUse, NamespaceUse, PodUse

_SHORT_UNITS = {"percent of a card's cores": "%"}


class Format(StrEnum):
    """How usage is written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


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
        where = "All namespaces" if with_namespaces else f"Namespace {', '.join(use.namespace for use in uses)}"
        return f"{where}: no quota on HAMi's resources, and no pod that holds any."

    def held(heading: str, amount: Callable[[KeyUse], int]) -> Column:
        return _figures(heading, [row.key.in_own_unit(amount(row)) for _, row in rows])

    columns = [
        Column("NAMESPACE", [use.namespace for use, _ in rows]),
        Column("MODE", [use.mode for use, _ in rows]),
        Column("QUOTA", [row.quota or "-" for _, row in rows]),
        Column("RESOURCE", [row.key.resource for _, row in rows]),
        held("USED", lambda row: row.used),
        _figures("LIMIT", [row.own_limit for _, row in rows]),
        _figures("USE", [_percent(row.percent) for _, row in rows]),
        _figures("FREE", [row.free for _, row in rows]),
        held("ALLOCATED", lambda row: row.allocated),
        held("PENDING", lambda row: row.pending),
        held("RESERVED", lambda row: row.reserved),
        held("TERMINATING", lambda row: row.terminating),
        _figures("PODS", [row.pods for _, row in rows]),
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
        _figures("SHARE", [_percent(pod.percent) for _, pod in rows]),
        *(
            _figures(
                f"{_short_name(resource, held)} {_short_unit(keys[resource])}",
                [keys[resource].in_own_unit(pod.charge.get(resource, 0)) for _, pod in rows],
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


def _figures(heading: str, figures: Iterable[int | str | None]) -> Column:
    return Column(heading, ["-" if figure is None else str(figure) for figure in figures], is_figure=True)


def _percent(percent: int | None) -> str | None:
    return None if percent is None else f"{percent}%"


def _short_unit(key: QuotaKey) -> str:
    return _SHORT_UNITS.get(key.unit, key.unit)


def _short_name(resource: str, others: Collection[str]) -> str:
    """Return a resource without its domain, as a heading, where that leaves no doubt."""
    bare = resource.rpartition("/")[2]
    return bare.upper() if sum(other.rpartition("/")[2] == bare for other in others) == 1 else resource


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
        "limit": row.own_limit,
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
        "memorySharePercent": pod.percent,
        "holds": {
            keys[resource].name: keys[resource].in_own_unit(amount)
            for resource, amount in sorted(pod.charge.items())
            if resource in keys
        },
        "problem": pod.problem or None,
    }

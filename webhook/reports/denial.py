"""A decision in words: the denial, the warnings, the audit annotations, and one line for the log.

The first lines of a denial have exactly the API server's shape, since clients match "exceeded quota"; below stands the
arithmetic. Figures are in the key's own unit, rounded up. Nothing of other tenants' pods is ever said.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from webhook.admission import Decision, Passed, Verdict
from webhook.effective import busiest_moment
from webhook.policy import Mode

if TYPE_CHECKING:
    from webhook.book import QuotaUse
    from webhook.effective import Claim
    from webhook.quotas import Exceeded, QuotaKey

# The API server cuts warnings at 256 characters in all and asks for less than 120 each.
_WARNING_LENGTH = 120
_MOST_LINES = 20


def denial(decision: Decision) -> str:
    """Return why a pod is refused, with figures; lines are sorted by quota."""
    match decision.verdict:
        case Verdict.EXCEEDED:
            return "\n".join([*_shape(decision.exceeded), *_arithmetic(decision)])
        case Verdict.UNSIZED:
            lines = [
                f"failed quota: {item.quota}: must specify {item.resource} for: {', '.join(item.containers)}"
                for item in decision.unsized
            ]
            why = "no card is registered that would give the memory asked as a percentage, or as whole cards, a size"
            return "\n".join([*lines, f"(namespace {decision.namespace}: {why})"])
        case _:
            return "\n".join(_few(decision.problems))


def _shape(exceeded: Sequence[Exceeded]) -> list[str]:
    """Return one line a quota, as the API server writes it."""
    return [
        f"exceeded quota: {quota}, "
        f"requested: {_pairs(items, [item.key.in_own_unit(item.requested) for item in items])}, "
        f"used: {_pairs(items, [item.key.in_own_unit(item.used) for item in items])}, "
        f"limited: {_pairs(items, [item.limit // item.key.factor for item in items])}"
        for quota, group in itertools.groupby(exceeded, key=lambda item: item.quota)
        for items in [list(group)]
    ]


def _pairs(items: Sequence[Exceeded], figures: Sequence[int]) -> str:
    return ",".join(f"{item.key.name}={figure}" for item, figure in zip(items, figures, strict=True))


def _arithmetic(decision: Decision) -> list[str]:
    """Return one line for each exceeded key: what makes the peak, what is missing, what is being freed."""
    is_single = len(decision.exceeded) == 1
    uses = {use.quota.name: use for use in decision.uses}
    lines = []
    for item in decision.exceeded:
        what = item.key.unit if is_single else f"quota {item.quota}, {item.key.name}, {item.key.unit}"
        lines.append(
            f"(namespace {decision.namespace}, {what}: {_sum(decision.claims, item.key)}; "
            f"{item.too_many} too many{_terminating(uses.get(item.quota), item.key)})"
        )
    return lines


def _sum(claims: Sequence[Claim[str]], key: QuotaKey) -> str:
    """Return `sidecar proxy 2000 + app server 4000 run together`."""
    moment = busiest_moment(claims, key.resource)
    parts = [f"{claim.kind} {claim.container} {key.in_own_unit(claim.amounts[key.resource])}" for claim in moment]
    together = " run together" if len(parts) > 1 else ""
    return " + ".join(parts) + together


def _terminating(use: QuotaUse | None, key: QuotaKey) -> str:
    amount = use.terminating.get(key.resource, 0) if use else 0
    return f"; terminating pods hold {key.in_own_unit(amount)} of the used" if amount else ""


def warnings(decision: Decision) -> list[str]:
    """Return the warnings of an answer, each short enough to arrive whole."""
    said = list(decision.cautions)
    said += [_passed_line(item) for item in decision.passed]
    if decision.is_refused and decision.is_allowed and (decision.is_lenient or decision.mode is Mode.WARN):
        said += _would_be_refused(decision)
    return [_cut(line) for line in _few(said)]


def _few(lines: Sequence[str]) -> list[str]:
    """Return lines as they are, or the first of many: a pod may have any number of containers."""
    if len(lines) <= _MOST_LINES:
        return list(lines)
    return [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more"]


def _would_be_refused(decision: Decision) -> list[str]:
    """Return a denial as warnings, one a figure: a warning is too short for the API server's shape of it."""
    if decision.verdict is not Verdict.EXCEEDED:
        return [f"would be refused: {line}" for line in denial(decision).splitlines()]
    return [
        f"would be refused: quota {item.quota}: {item.key.in_own_unit(item.used)} used + "
        f"{item.key.in_own_unit(item.requested)} > {item.limit // item.key.factor} {item.key.name}"
        for item in decision.exceeded
    ]


def _passed_line(item: Passed) -> str:
    used, limit = item.key.in_own_unit(item.used), item.limit // item.key.factor
    return f"quota {item.quota}: {item.key.name} passes {item.percent}%: {used} of {limit} {item.key.unit}"


def _cut(line: str) -> str:
    return line if len(line) <= _WARNING_LENGTH else line[: _WARNING_LENGTH - 3] + "..."


def audit_annotations(decision: Decision, keys: Mapping[str, QuotaKey]) -> dict[str, str]:
    """Return what the API server's audit log keeps: mode, verdict, charge, and used and limit of each quota."""
    if decision.verdict is Verdict.NOT_OURS:
        return {}
    annotations = {"mode": str(decision.mode), "verdict": str(decision.verdict)}
    if decision.charge:
        annotations["charge"] = ",".join(
            f"{keys[resource].name}={keys[resource].in_own_unit(amount)}"
            for resource, amount in sorted(decision.charge.items())
            if resource in keys
        )
    for name, amounts in (
        ("used", [(use, use.used) for use in decision.uses]),
        ("limit", [(use, use.quota.limits) for use in decision.uses]),
    ):
        figures = [
            f"{use.quota.name}:{keys[resource].name}={keys[resource].in_own_unit(values.get(resource, 0))}"
            for use, values in amounts
            for resource in sorted(use.quota.limits)
        ]
        if figures:
            annotations[name] = ",".join(sorted(figures))
    return annotations


def log_line(decision: Decision) -> str:
    """Return one line about a refused pod, with the arithmetic and without anything a tenant could break lines with."""
    text = " | ".join(denial(decision).splitlines()).encode("unicode_escape").decode("ascii")
    outcome = "refused" if not decision.is_allowed else f"would be refused (mode {decision.mode})"
    pod = f"{decision.namespace}/{decision.pod_name}".encode("unicode_escape").decode("ascii")
    return f"pod {pod} {outcome}: {text}"

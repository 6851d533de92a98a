"""The decision: may this pod be created? A pure function of the request, a snapshot of the ledger and the policy.

The server passes `decide` to `QuotaLedger.update`; the command line calls it on a snapshot read from files. In order:

1. what is none of our business is allowed: other operations, subresources and resources, pods without managed
resources; 2. an object that cannot be read, or carries annotations that only HAMi's components may write, is refused;
3. amounts that cannot be used, and HAMi's own reasons, are refused;
4. every quota that matches the pod is compared, and what fits is reserved.

Modes turn refusals into warnings or audit entries at the end, in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from webhook.api.pod import Pod, decode_pod
from webhook.book import QuotaUse, Reservation
from webhook.defaulting import Refusal, defaulted, hami_refusal
from webhook.devices.base import DeviceBackend
from webhook.devices.registry import asks_for_managed, load_backends, managed_resources
from webhook.errors import DecodeError
from webhook.ledger import QuotaSnapshot
from webhook.pod_request import PodRequest, pod_request
from webhook.policy import Mode, Policy
from webhook.quotas import Exceeded, QuotaKey, exceeded, quota_keys, scope_facts
from webhook.resources import Amounts, add, largest

if TYPE_CHECKING:
    from webhook.api.admission_review import AdmissionRequest
    from webhook.effective import Claim

# Written by HAMi's scheduler when it places a pod, whatever the family. Source: HAMi pkg/util/types.go.
_SCHEDULER_ANNOTATIONS = (
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/bind-time",
    "hami.io/bind-phase",
)


class Verdict(StrEnum):
    """What a decision came to, before modes; also the label of the metric."""

    NOT_OURS = "not_ours"
    FITS = "fits"
    EXCEEDED = "exceeded"
    UNSIZED = "unsized"
    INVALID = "invalid"
    FORGED = "forged"


_REFUSED = frozenset({Verdict.EXCEEDED, Verdict.UNSIZED, Verdict.INVALID, Verdict.FORGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsized:
    """A quota limits memory that a container asks for without a figure, while no card size is known."""

    quota: str
    resource: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """An admission that takes a key of a quota past a percentage of its limit; amounts in accounting units."""

    quota: str
    key: QuotaKey
    percent: int
    used: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is answered, and every fact that the answer is written from.

    Attributes:
        verdict: What the rules say; `is_allowed` is what the namespace's mode makes of it.
        problems: Why the pod cannot be used, for INVALID and FORGED.
        claims: One per container, for the arithmetic in the message.
        charge: What the pod is charged, by resource name in accounting units.
        uses: The quotas that apply to the pod.
        cautions: What the user should know of an admitted pod.
        reservation: What the ledger sets aside.
        unseen: Earlier admissions that count in this refusal and are old enough to be looked up first.
        is_lenient: Whether a forged update is only warned about.
    """

    verdict: Verdict
    namespace: str = ""
    pod_name: str = ""
    mode: Mode = Mode.ENFORCE
    problems: tuple[str, ...] = ()
    exceeded: tuple[Exceeded, ...] = ()
    unsized: tuple[Unsized, ...] = ()
    passed: tuple[Passed, ...] = ()
    claims: tuple[Claim[str], ...] = ()
    charge: Mapping[str, int] = field(default_factory=dict)
    uses: tuple[QuotaUse, ...] = ()
    cautions: tuple[str, ...] = ()
    reservation: Reservation | None = None
    unseen: tuple[Reservation, ...] = ()
    is_lenient: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether the rules refuse the pod, whatever the mode."""
        return self.verdict in _REFUSED

    @property
    def is_allowed(self) -> bool:
        """Whether the pod may be created: forged usage is refused in every mode but `off`, the rest in `enforce`."""
        if self.verdict is Verdict.FORGED:
            return self.mode is Mode.OFF or self.is_lenient
        return not self.is_refused or self.mode is not Mode.ENFORCE


_NOT_OURS = Decision(verdict=Verdict.NOT_OURS)


class Rules:
    """The families and choices in force, with what follows from them worked out once."""

    @classmethod
    def from_config(cls, text: str, policy: Policy) -> Rules:
        """Return the rules of HAMi's `device-config.yaml`; raises DeviceConfigError, naming line and key."""
        return cls(load_backends(text), policy)

    def __init__(self, backends: Sequence[DeviceBackend], policy: Policy) -> None:
        self.backends = tuple(backends)
        self.policy = policy
        self.keys = quota_keys(backends, count_quota=policy.count_quota)
        self.managed = managed_resources(backends)
        self.sizing_annotations = frozenset(name for backend in backends for name in backend.sizing_annotations)
        self.owned_annotations = frozenset(_SCHEDULER_ANNOTATIONS).union(
            *(backend.owned_annotations for backend in backends)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A request that has to be judged against a snapshot.

    Attributes:
        is_mirror: Whether a kubelet shows a static pod that already runs; such pods are charged, never refused.
        pod: The pod after defaulting, or empty when it is refused.
        refused: INVALID or FORGED when a snapshot can only say in which mode; None otherwise.
        problems: Why; or HAMi's own reasons, which count only if the pod turns out to ask for devices.
    """

    namespace: str
    uid: str
    name: str
    display_name: str
    is_dry_run: bool
    is_mirror: bool
    pod: Pod
    refused: Verdict | None = None
    problems: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    is_update: bool = False


def candidate(request: AdmissionRequest, rules: Rules) -> Candidate | Decision:
    """Return what there is to judge in a request, or the decision where nothing is.

    The namespace is the request's; an object that names another has no say. The key is the pod's UID, which is final
    when validating webhooks are called; offline input may lack it, and the request's own then stands in.
    """
    if request.updates_pod:
        return _guarded(request, rules)
    if not request.creates_pod:
        return _NOT_OURS
    try:
        pod = decode_pod(request.object)
    except DecodeError as error:
        return _candidate(request, Pod(), Verdict.INVALID, (str(error),))
    return _judged(request, pod, rules)


def _guarded(request: AdmissionRequest, rules: Rules) -> Candidate | Decision:
    """Return whether an update writes what only HAMi's components may, so that nobody can dictate his own use.

    What decides the charge of a pod is frozen until its devices are recorded; from then on it changes nothing. An
    object that cannot be read stands no update in the way: it is stored already.
    """
    try:
        after = decode_pod(request.object)
        before = decode_pod(request.old_object) if bytes(request.old_object) != b"null" else Pod()
    except DecodeError:
        return _NOT_OURS
    guarded = rules.owned_annotations
    if not any(backend.allocated_annotation in before.annotations for backend in rules.backends):
        guarded |= rules.sizing_annotations
    changed = sorted(name for name in guarded if before.annotations.get(name) != after.annotations.get(name))
    if not changed or request.user_info.username in rules.policy.trusted_users:
        return _NOT_OURS
    user = request.user_info.username
    problem = f"annotation {', '.join(changed)}: only HAMi's components may change it, and {user!r} is none of them"
    return replace(_candidate(request, after, Verdict.FORGED, (problem,)), is_update=True)


def _judged(request: AdmissionRequest, pod: Pod, rules: Rules) -> Candidate | Decision:
    forged = sorted(rules.owned_annotations.intersection(pod.annotations))
    if forged and request.user_info.username not in rules.policy.trusted_users:
        problem = f"annotation {', '.join(forged)}: only HAMi's components may set it"
        return _candidate(request, pod, Verdict.FORGED, (problem,))
    if not asks_for_managed(pod, rules.managed):
        return _NOT_OURS
    is_hami_scheduled = rules.policy.is_hami_scheduled(pod.spec.scheduler_name)
    if not is_hami_scheduled and rules.policy.hami_compat:
        return _NOT_OURS
    is_mirror = pod.is_mirror and request.is_from_kubelet
    ready = defaulted(pod, rules.backends)
    if isinstance(ready, Refusal):
        return replace(_candidate(request, pod, Verdict.INVALID, ready.problems), is_mirror=is_mirror)
    refusal = hami_refusal(pod, rules.policy, is_mirror=is_mirror)
    base = _candidate(request, ready, None, refusal.problems if refusal else ())
    stranger = f"scheduler {pod.spec.scheduler_name}: HAMi's webhook did not see this pod"
    cautions = () if is_hami_scheduled else (stranger,)
    return replace(base, is_mirror=is_mirror, cautions=cautions)


def _candidate(request: AdmissionRequest, pod: Pod, refused: Verdict | None, problems: tuple[str, ...]) -> Candidate:
    """Return a candidate; `refused` is None unless the pod is refused whatever the namespace holds."""
    metadata = pod.metadata
    name = metadata.name or request.name
    return Candidate(
        namespace=request.namespace,
        uid=metadata.uid or request.uid,
        name=name,
        display_name=name or pod.display_name,
        is_dry_run=bool(request.dry_run),
        is_mirror=False,
        pod=pod,
        refused=refused,
        problems=problems,
    )


def decide(subject: Candidate, snapshot: QuotaSnapshot, rules: Rules) -> Decision:
    """Return the decision on a candidate, with the reservation it needs.

    Args:
        subject: The pod in question, defaulted.
        snapshot: Its namespace, with its own earlier claims told apart.
        rules: The families and choices in force.
    """
    decision = Decision(
        verdict=Verdict.FITS,
        namespace=subject.namespace,
        pod_name=subject.display_name,
        mode=snapshot.mode,
        cautions=subject.cautions,
    )
    if snapshot.mode is Mode.OFF:
        return replace(decision, cautions=())
    if subject.refused is not None:
        if subject.is_mirror:
            return decision
        is_lenient = subject.is_update and not rules.policy.enforce_updates
        return replace(decision, verdict=subject.refused, problems=subject.problems, is_lenient=is_lenient)
    request = pod_request(subject.pod, rules.backends, snapshot.inventory, rules.policy.assumed_card_memory_mib)
    if isinstance(request, Refusal):
        verdict = Verdict.FITS if subject.is_mirror else Verdict.INVALID
        return replace(decision, verdict=verdict, problems=request.problems)
    if not request.families:
        return replace(decision, verdict=Verdict.NOT_OURS, cautions=tuple(map(str, request.ineffective)))
    return _compared(replace(decision, claims=request.claims, charge=request.charge), subject, request, snapshot, rules)


def _compared(
    decision: Decision, subject: Candidate, request: PodRequest, snapshot: QuotaSnapshot, rules: Rules
) -> Decision:
    """Return the decision after every quota that matches the pod was compared."""
    facts = scope_facts(subject.pod)
    uses = tuple(use for use in snapshot.uses if use.quota.limits and use.quota.applies_to(facts))
    over: list[Exceeded] = []
    for use in uses:
        over += exceeded(use.quota, use.used, _seated(use, request.charge), rules.keys)
    unsized = () if rules.policy.hami_compat else _unsized(request, uses)
    unthrottled = _unthrottled(request, uses)
    problems = subject.problems + (unthrottled if rules.policy.require_cores else ())
    decision = replace(
        decision,
        verdict=Verdict.FITS if subject.is_mirror else _verdict(problems, unsized, over),
        problems=problems,
        exceeded=tuple(sorted(over, key=lambda item: (item.quota, item.key.name))),
        unsized=unsized,
        uses=uses,
        cautions=(
            *decision.cautions,
            *map(str, request.ineffective),
            *_estimates(request, uses, rules.keys),
            *(() if rules.policy.require_cores else unthrottled),
        ),
    )
    if not decision.is_allowed:
        return replace(decision, unseen=snapshot.unseen) if decision.verdict is Verdict.EXCEEDED else decision
    reservation = Reservation(
        uid=subject.uid, name=subject.name, facts=facts, charge=request.charge, admitted_at=snapshot.taken_at
    )
    is_unreserved = subject.is_dry_run or not uses or rules.policy.hami_compat
    return replace(
        decision,
        passed=() if decision.is_refused else _passed(decision, rules),
        reservation=None if is_unreserved else reservation,
    )


def _verdict(problems: Sequence[str], unsized: Sequence[Unsized], over: Sequence[Exceeded]) -> Verdict:
    """Return what the findings come to; what the user can mend in the pod is said before what the quotas say."""
    if problems:
        return Verdict.INVALID
    if unsized:
        return Verdict.UNSIZED
    return Verdict.EXCEEDED if over else Verdict.FITS


def _seated(use: QuotaUse, charge: Mapping[str, int]) -> Amounts[str]:
    """Return what a pod adds to the use of others: for what it asks, the larger of its charge and its name's seat."""
    return {resource: max(amount, use.seat.get(resource, 0)) for resource, amount in charge.items()}


def _unsized(request: PodRequest, uses: Sequence[QuotaUse]) -> tuple[Unsized, ...]:
    """Return the limits that cannot be compared, as Kubernetes refuses a pod that omits a limited resource."""
    return tuple(
        Unsized(
            quota=use.quota.name,
            resource=resource,
            containers=tuple(item.container for item in request.unsized if resource in item.resources),
        )
        for use in sorted(uses, key=lambda use: use.quota.name)
        for resource in sorted({name for item in request.unsized for name in item.resources} & use.quota.limits.keys())
    )


def _unthrottled(request: PodRequest, uses: Sequence[QuotaUse]) -> tuple[str, ...]:
    """Return one sentence for each core quota that containers escape because their cores are not limited (D6)."""
    return tuple(
        f"quota {use.quota.name}: {', '.join(containers)} set no {resource}: compute is not limited"
        if len(containers) > 1
        else f"quota {use.quota.name}: container {containers[0]} sets no {resource}: its compute is not limited"
        for use in uses
        for resource, containers in sorted(request.unthrottled.items())
        if resource in use.quota.limits
    )


def _estimates(request: PodRequest, uses: Sequence[QuotaUse], keys: Mapping[str, QuotaKey]) -> list[str]:
    """Return what to say of figures that depend on the card, where a quota limits them."""
    limited = {resource for use in uses for resource in use.quota.limits}
    said = []
    for item in request.sized:
        source = "the configured card size" if item.is_assumed else "the largest card it could get"
        for resource, amount in item.per_card.items():
            if resource in limited:
                key = keys[resource]
                figure = f"{key.in_own_unit(amount)} {key.unit} a card"
                said.append(f"container {item.container}: {resource} is {figure}, by {source}")
    return said


def _passed(decision: Decision, rules: Rules) -> tuple[Passed, ...]:
    """Return the highest percentage of each limit that this admission passes, and use had not passed before."""
    passed = []
    for use in decision.uses:
        before = add(use.used, use.seat)
        after = add(use.used, largest(use.seat, decision.charge))
        for resource, limit in sorted(use.quota.limits.items()):
            for percent in sorted(rules.policy.warn_at, reverse=True):
                threshold = limit * percent
                if before.get(resource, 0) * 100 < threshold <= after.get(resource, 0) * 100:
                    passed.append(
                        Passed(
                            quota=use.quota.name,
                            key=rules.keys[resource],
                            percent=percent,
                            used=after.get(resource, 0),
                            limit=limit,
                        )
                    )
                    break
    return tuple(passed)

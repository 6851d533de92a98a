"""One review, from the bytes of a request to the bytes of its answer.

An adapter: it translates and logs, it never decides.
Decided is HTTP 200, whatever the decision; unreadable is 400; what could not be decided is 503 with the reason, so that
the webhook configuration's failurePolicy decides. A pod that asks for nothing of ours is allowed whatever our state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from webhook.admission import Candidate, Decision, Rules, candidate, decide
from webhook.api.admission_review import AdmissionRequest, decode_review, encode_response
from webhook.api.pod import decode_document
from webhook.book import Reservation
from webhook.defaulting import Refusal
from webhook.errors import ApiServerError, DecodeError, ReviewError, Undecided
from webhook.ledger import QuotaLedger, QuotaSnapshot
from webhook.mutation import Operation, mutation
from webhook.reports import denial

_log = logging.getLogger(__name__)

# A look-up that takes longer than this will not be waited for, however much time the request has left.
_LOOKUP_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: str = "application/json"


class PodLookup(Protocol):
    """Where a single pod can be looked up live."""

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        """Return the UID of the pod that is stored under a name, None when none is; raise ApiServerError."""


class ReviewObserver(Protocol):
    """Who is told of every answer, for the metrics."""

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision."""

    def undecided(self, reason: str, seconds: float) -> None:
        """Count a review without a decision; `reason` is one of few words."""


class MutationObserver(Protocol):
    """Who is told of every answer to /mutate, for the metrics."""

    def mutated(self, outcome: str, seconds: float) -> None:
        """Count an answer; `outcome` is `patched`, `unchanged`, `denied` or `unreadable`."""


def failure(status: int, reason: str) -> Answer:
    """Return an answer that carries no decision."""
    return Answer(status=status, body=msgspec.json.encode({"reason": reason}))


class _MustWait(Exception):  # noqa: N818 - control flow within this module
    """A live look-up is needed, and the caller may not be kept waiting."""


class Reviewer:
    """Answers AdmissionReviews.

    Args:
        rules: The families and choices in force.
        ledger: Where quotas and use are known, and admissions are reserved.
        lookup: Where a pod that was admitted and not seen is looked up before it makes anyone be refused.
        not_ready: Why no decision may be given now, such as a list that has not arrived; "" when one may.
        observer: Who is told of every answer.
        clock: Seconds that only move forward; deadlines are on it.
    """

    def __init__(  # noqa: PLR0913 - the collaborators of the one request path, by name
        self,
        *,
        rules: Rules,
        ledger: QuotaLedger,
        lookup: PodLookup,
        not_ready: Callable[[], str],
        observer: ReviewObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._ledger = ledger
        self._lookup = lookup
        self._not_ready = not_ready
        self._observer = observer
        self._clock = clock

    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Answer | None:
        """Return the answer to the body of a POST to /validate.

        Args:
            body: An AdmissionReview.
            deadline: When the answer has to be out, on the clock.
            may_wait: Whether the API server may be asked, which takes time. Without it, None says that it has to be.
        """
        started = self._clock()
        try:
            request = decode_review(body)
        except ReviewError as error:
            self._observer.undecided("unreadable", self._clock() - started)
            return failure(400, str(error))
        try:
            decision = self._decision(request, deadline, may_wait=may_wait)
        except _MustWait:
            return None
        except Undecided as error:
            _log.warning("review %s in namespace %s not decided: %s", request.uid, request.namespace, error)
            self._observer.undecided("undecided", self._clock() - started)
            return failure(503, str(error))
        self._observer.decided(decision, self._clock() - started)
        return self._answer(request, decision)

    def _answer(self, request: AdmissionRequest, decision: Decision) -> Answer:
        if decision.is_refused:
            _log.info("%s", denial.log_line(decision))
        return Answer(
            status=200,
            body=encode_response(
                request.uid,
                allowed=decision.is_allowed,
                message="" if decision.is_allowed else denial.denial(decision),
                warnings=denial.warnings(decision),
                audit_annotations=denial.audit_annotations(decision, self._rules.keys),
            ),
        )

    def _decision(self, request: AdmissionRequest, deadline: float, *, may_wait: bool) -> Decision:
        subject = candidate(request, self._rules)
        if isinstance(subject, Decision):
            return subject
        looked_up: set[str] = set()
        while True:
            if reason := self._not_ready():
                raise Undecided(reason)
            if self._clock() >= deadline:
                raise Undecided("no time is left to decide within the API server's timeout")
            decision = self._ledger.update(subject.namespace, subject.uid, subject.name, partial(self._decide, subject))
            unseen = [item for item in decision.unseen if item.uid not in looked_up]
            if not unseen:
                return decision
            if not may_wait:
                raise _MustWait
            for item in unseen:
                looked_up.add(item.uid)
                self._look_up(subject.namespace, item, deadline)

    def _decide(self, subject: Candidate, snapshot: QuotaSnapshot) -> Decision:
        return decide(subject, snapshot, self._rules)

    def _look_up(self, namespace: str, item: Reservation, deadline: float) -> None:
        """Give a reservation back if its pod was never stored."""
        timeout_s = min(deadline - self._clock(), _LOOKUP_TIMEOUT_S)
        if timeout_s <= 0:
            raise Undecided("no time is left to look up pods that were admitted and not seen")
        try:
            forget_if_gone(self._ledger, self._lookup, namespace, item, timeout_s)
        except ApiServerError as error:
            raise Undecided(f"pods that were admitted and not seen cannot be looked up: {error}") from error


class Mutator:
    """Answers AdmissionReviews with HAMi's defaulting.

    It reads nothing but the review: it answers before any list is in and reserves nothing, and a dry run is like any
    other.

    Args:
        rules: The families and choices in force.
        observer: Who is told of every answer.
        clock: Seconds that only move forward.
    """

    def __init__(
        self, rules: Rules, observer: MutationObserver, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules = rules
        self._observer = observer
        self._clock = clock

    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Answer:  # noqa: ARG002 - it never waits
        """Return the answer to the body of a POST to /mutate."""
        started = self._clock()
        try:
            request = decode_review(body)
        except ReviewError as error:
            self._observer.mutated("unreadable", self._clock() - started)
            return failure(400, str(error))
        result = self._mutation(request)
        if isinstance(result, Refusal):
            outcome, message = "denied", "\n".join(result.problems)
            answer = encode_response(request.uid, allowed=False, message=message)
        else:
            outcome = "patched" if result else "unchanged"
            answer = encode_response(request.uid, allowed=True, patch=result)
        self._observer.mutated(outcome, self._clock() - started)
        return Answer(status=200, body=answer)

    def _mutation(self, request: AdmissionRequest) -> list[Operation] | Refusal:
        if not request.creates_pod:
            return []
        rules = self._rules
        try:
            document = decode_document(request.object)
            return mutation(document, rules.backends, rules.policy, is_from_kubelet=request.is_from_kubelet)
        except DecodeError as error:
            return Refusal(problems=(str(error),))


def forget_if_gone(ledger: QuotaLedger, lookup: PodLookup, namespace: str, item: Reservation, timeout_s: float) -> bool:
    """Give a reservation back if its pod was never stored, and return whether it was.

    Gone means that nothing, or another pod, stands under its name. A pod without a name cannot have been stored.

    Raises:
        ApiServerError: The look-up failed, which says nothing about the pod.
    """
    uid = lookup.pod_uid(namespace, item.name, timeout_s) if item.name else None
    if uid == item.uid:
        return False
    _log.info("pod %s/%s was admitted and never stored: its share is free again", namespace, item.name)
    return ledger.forget(namespace, item.uid)

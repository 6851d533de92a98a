"""Updates that would dictate a pod's own use: who may write what, and what the choices make of it."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from builders import pod

from webhook.admission import Candidate, Decision, Rules, Verdict, candidate, decide
from webhook.api.admission_review import AdmissionRequest, GroupVersionResource, UserInfo
from webhook.devices.registry import load_backends
from webhook.ledger import QuotaLedger
from webhook.policy import Mode, Policy
from webhook.reports.denial import warnings

CONFIG = "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem, defaultGPUNum: 1}"
HAMI = "system:serviceaccount:kube-system:hami-scheduler"
ALLOCATED = "hami.io/vgpu-devices-allocated"
RECORDED = {ALLOCATED: "GPU-a,NVIDIA,4000,0:;"}


def rules(**choices: bool) -> Rules:
    return Rules(load_backends(CONFIG), Policy(trusted_users=frozenset({HAMI}), **choices))


def update(before: dict[str, str] | None, after: dict[str, str], user: str = "dev-1") -> AdmissionRequest:
    subject = pod("a").app("main", mem=4000)

    def raw(annotations: dict[str, str]) -> msgspec.Raw:
        return msgspec.Raw(json.dumps(subject.annotated(annotations).document).encode())

    return AdmissionRequest(
        uid="review",
        operation="UPDATE",
        namespace="team-a",
        resource=GroupVersionResource(version="v1", resource="pods"),
        user_info=UserInfo(username=user),
        object=raw(after),
        old_object=msgspec.Raw(b"null") if before is None else raw(before),
    )


def judged(request: AdmissionRequest, mode: Mode = Mode.ENFORCE, **choices: bool) -> Decision:
    in_force = rules(**choices)
    subject = candidate(request, in_force)
    if isinstance(subject, Decision):
        return subject
    assert isinstance(subject, Candidate)
    ledger = QuotaLedger(clock=lambda: 0.0, lookup_after_s=10.0, mode=lambda _label: mode)
    return decide(subject, ledger.snapshot("team-a"), in_force)


@pytest.mark.parametrize(
    ("before", "after", "user", "want"),
    [
        pytest.param({}, RECORDED, "dev-1", Verdict.FORGED, id="a tenant who writes what he holds"),
        pytest.param({}, {ALLOCATED: ""}, "dev-1", Verdict.FORGED, id="an empty text is a change, too"),
        pytest.param(RECORDED, {}, "dev-1", Verdict.FORGED, id="a tenant who removes it"),
        pytest.param(None, RECORDED, "dev-1", Verdict.FORGED, id="an old object that is not there says nothing"),
        pytest.param({}, RECORDED, HAMI, Verdict.NOT_OURS, id="HAMi"),
        pytest.param(RECORDED, RECORDED, "dev-1", Verdict.NOT_OURS, id="an update of something else"),
        pytest.param({}, {"nvidia.com/vgpu-mode": "mig"}, "dev-1", Verdict.FORGED, id="what sizes a pending pod"),
        pytest.param(
            RECORDED, {**RECORDED, "nvidia.com/vgpu-mode": "mig"}, "dev-1", Verdict.NOT_OURS, id="which then is over"
        ),
    ],
)
def test_an_update_is_forged_by_what_it_changes_and_who_asks(
    before: dict[str, str] | None, after: dict[str, str], user: str, want: Verdict
) -> None:
    assert judged(update(before, after, user), enforce_updates=True).verdict is want


@pytest.mark.parametrize(
    ("mode", "enforced", "want_allowed"),
    [
        pytest.param(Mode.ENFORCE, True, False, id="enforced"),
        pytest.param(Mode.AUDIT, True, False, id="in every mode"),
        pytest.param(Mode.OFF, True, True, id="but off"),
        pytest.param(Mode.ENFORCE, False, True, id="not enforced yet"),
    ],
)
def test_a_forged_update_is_refused_once_the_guard_is_enforced(mode: Mode, enforced: bool, want_allowed: bool) -> None:
    assert judged(update({}, RECORDED), mode, enforce_updates=enforced).is_allowed is want_allowed


def test_until_then_the_user_is_warned() -> None:
    [said] = warnings(judged(update({}, RECORDED)))
    assert said.startswith("would be refused: annotation hami.io/vgpu-devices-allocated: only HAMi's components may")


def test_an_object_that_cannot_be_read_stands_no_update_in_the_way() -> None:
    """It is stored already: whoever must remove its finalizer should not wait for us."""
    request = msgspec.structs.replace(update({}, {}), object=msgspec.Raw(b'{"metadata": 1}'))
    assert judged(request, enforce_updates=True).verdict is Verdict.NOT_OURS


def test_a_forged_update_reserves_nothing() -> None:
    decision = judged(update({}, RECORDED))
    assert replace(decision, cautions=()).reservation is None

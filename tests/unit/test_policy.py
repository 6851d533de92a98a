"""Choices, where they read something."""

from __future__ import annotations

import pytest

from webhook.policy import Mode, Policy


@pytest.mark.parametrize(
    ("label", "want"),
    [
        pytest.param(None, Mode.AUDIT, id="no label"),
        pytest.param("enforce", Mode.ENFORCE, id="enforce"),
        pytest.param("warn", Mode.WARN, id="warn"),
        pytest.param("audit", Mode.AUDIT, id="audit"),
        pytest.param("off", Mode.OFF, id="off"),
        pytest.param("", Mode.AUDIT, id="an empty label"),
        pytest.param("OFF", Mode.AUDIT, id="capitals are no mode"),
        pytest.param("disabled", Mode.AUDIT, id="a word that is no mode"),
    ],
)
def test_a_label_that_is_no_mode_leaves_the_default(label: str | None, want: Mode) -> None:
    assert Policy(default_mode=Mode.AUDIT).mode(label) is want


@pytest.mark.parametrize(
    ("policy", "scheduler", "want"),
    [
        pytest.param(Policy(), None, True, id="none"),
        pytest.param(Policy(), "", True, id="an empty one"),
        pytest.param(Policy(), "hami-scheduler", True, id="HAMi's"),
        pytest.param(Policy(), "default-scheduler", True, id="the default one"),
        pytest.param(Policy(), "volcano", False, id="another"),
        pytest.param(Policy(overwrite_default_scheduler=False), "default-scheduler", False, id="default, left alone"),
        pytest.param(
            Policy(overwrite_default_scheduler=False, scheduler_name="default-scheduler"),
            "default-scheduler",
            True,
            id="default, where HAMi's has that name",
        ),
        pytest.param(
            Policy(scheduler_name="mine"), "hami-scheduler", False, id="HAMi's usual name, where it has another"
        ),
    ],
)
def test_hami_takes_a_pod_by_its_schedulers_name(policy: Policy, scheduler: str | None, want: bool) -> None:
    assert policy.is_hami_scheduled(scheduler) is want

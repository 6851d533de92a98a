"""A pod after HAMi's defaulting, and HAMi's own reasons to refuse one."""

from __future__ import annotations

from typing import Any

import pytest
from builders import CORES, COUNT, MEMORY, PodBuilder, backends, pod

from webhook.api.pod import Pod
from webhook.defaulting import Refusal, defaulted, hami_refusal
from webhook.policy import Policy


def limits(result: Pod | Refusal) -> dict[str, dict[str, Any]]:
    """Return the limits by container."""
    assert isinstance(result, Pod)
    return {container.name: dict(container.limits) for container in result.containers()}


def test_every_container_of_both_lists_is_defaulted() -> None:
    subject = (
        pod()
        .init("load", mem=1, gpu=None)
        .sidecar("proxy", gpu=1)
        .app("server", mem=2, gpu=2)
        .app("idle", limits={"cpu": "1"})
    )

    assert limits(defaulted(subject.build(), backends())) == {
        "load": {MEMORY: "1", COUNT: "1"},
        "proxy": {COUNT: "1", CORES: "100"},
        "server": {MEMORY: "2", COUNT: "2"},
        "idle": {"cpu": "1"},
    }


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(pod().app("server", gpu=1), id="a whole card"),
        pytest.param(pod().app("server", mem=1, gpu=None), id="memory alone"),
        pytest.param(pod().init("load", pct=100, gpu=None).app("server", cores=1, gpu=None), id="shares and cores"),
        pytest.param(pod().app("server", gpu=0), id="no card"),
        pytest.param(pod().app("server"), id="nothing"),
    ],
)
def test_defaulting_its_own_result_changes_nothing(subject: PodBuilder) -> None:
    once = defaulted(subject.build(), backends())

    assert isinstance(once, Pod)
    assert defaulted(once, backends()) == once


def test_the_pod_given_stays_as_it_was() -> None:
    before = pod().app("server", gpu=1).build()

    defaulted(before, backends())

    assert limits(before) == {"server": {COUNT: "1"}}


def test_every_reason_is_told_container_by_container() -> None:
    subject = (
        pod()
        .init("load", pct=101)
        .app("server", pct=-1)
        .app("worker", mem=1, requests={"nvidia.com/gpumem-percentage": "5"})
        .app("fine", mem=1)
    )

    refused = defaulted(subject.build(), backends())

    assert isinstance(refused, Refusal)
    assert [problem.split(" cannot be used")[0] for problem in refused.problems] == [
        "container load: nvidia.com/gpumem-percentage '101'",
        "container server: nvidia.com/gpumem-percentage '-1'",
        "container worker: nvidia.com/gpumem-percentage '5'",
    ]


def test_a_resource_that_is_requested_and_not_limited_is_refused_as_the_api_server_refuses_it() -> None:
    refused = defaulted(pod().app("server", requests={COUNT: "1", MEMORY: "5"}).build(), backends())

    assert isinstance(refused, Refusal)
    assert len(refused.problems) == 2
    assert all("a limit must be set" in problem for problem in refused.problems)


def test_requests_beside_limits_are_as_the_api_server_makes_them() -> None:
    subject = pod().app("server", mem=5, requests={COUNT: "1", MEMORY: "5", "cpu": "1"})

    assert isinstance(defaulted(subject.build(), backends()), Pod)


@pytest.mark.parametrize(
    ("subject", "policy", "want"),
    [
        pytest.param(pod().app("a", mem=1), {}, [], id="nothing is wrong"),
        pytest.param(pod().app("a", privileged=True).app("b", mem=1), {}, ["container a is privileged"], id="an app"),
        pytest.param(
            pod().sidecar("s", privileged=True).init("i", privileged=True).app("b", mem=1),
            {},
            ["container s is privileged", "container i is privileged"],
            id="init entries",
        ),
        pytest.param(
            pod().app("a", mem=1).spec(nodeName="node-1"),
            {},
            ["spec.nodeName 'node-1' is set"],
            id="a node is assigned",
        ),
        pytest.param(
            pod().app("a", mem=1, privileged=True).spec(nodeName="node-1", schedulerName="default-scheduler"),
            {},
            ["container a is privileged", "spec.nodeName 'node-1' is set"],
            id="both, from the default scheduler, which HAMi takes over",
        ),
        pytest.param(
            pod().app("a", mem=1, privileged=True).spec(schedulerName="default-scheduler"),
            {"overwrite_default_scheduler": False},
            [],
            id="the default scheduler, where HAMi leaves it alone",
        ),
        pytest.param(
            pod().app("a", mem=1, privileged=True).spec(schedulerName="volcano"), {}, [], id="another scheduler's pod"
        ),
        pytest.param(
            pod().app("a", mem=1, privileged=True).spec(schedulerName="mine"),
            {"scheduler_name": "mine"},
            ["container a is privileged"],
            id="HAMi's scheduler under another name",
        ),
    ],
)
def test_hami_refuses_what_it_cannot_isolate_or_place(
    subject: PodBuilder, policy: dict[str, Any], want: list[str]
) -> None:
    refused = hami_refusal(subject.build(), Policy(**policy), is_mirror=False)

    assert (refused is None) == (not want)
    for problem, start in zip(refused.problems if refused else (), want, strict=True):
        assert problem.startswith(start)


def test_a_mirror_pod_is_not_refused() -> None:
    subject = pod().app("a", mem=1, privileged=True).spec(nodeName="node-1")

    assert hami_refusal(subject.build(), Policy(), is_mirror=True) is None

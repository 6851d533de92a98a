"""Pods, from the wire."""

from __future__ import annotations

import json

import pytest
from builders import pod

from webhook.api.pod import Container, Resources, convert_pod, decode_pod
from webhook.errors import DecodeError


def test_a_pod_is_read_as_far_as_the_rules_go() -> None:
    read = (
        pod("a")
        .init("load", mem=20000)
        .sidecar("proxy", mem=2000)
        .app("server", mem=10000, privileged=True)
        .spec(
            schedulerName="hami-scheduler",
            nodeName="node-1",
            priorityClassName="high",
            activeDeadlineSeconds=60,
            hostNetwork=True,
        )
        .annotated({"x": "y"})
        .statuses(load=0, proxy="running")
        .phase("Running")
        .deleting("2026-01-01T00:00:00Z")
        .build()
    )

    assert [container.name for container in read.containers()] == ["load", "proxy", "server"]
    assert [container.restart_policy for container in read.containers()] == [None, "Always", None]
    assert read.init_containers[0].limits == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"}
    assert read.spec.containers[0].security_context
    assert read.spec.containers[0].security_context.privileged
    assert read.spec.scheduler_name == "hami-scheduler"
    assert read.spec.node_name == "node-1"
    assert read.spec.priority_class_name == "high"
    assert read.spec.active_deadline_seconds == 60
    assert read.annotations == {"x": "y"}
    assert read.metadata.deletion_timestamp == "2026-01-01T00:00:00Z"
    assert read.status.init_container_statuses
    assert [status.name for status in read.status.init_container_statuses] == ["load", "proxy"]
    assert not read.is_terminal


def test_null_is_as_good_as_absent() -> None:
    read = decode_pod(
        b'{"metadata": {"annotations": null, "deletionTimestamp": null}, "status": {"initContainerStatuses": null},'
        b' "spec": {"initContainers": null, "affinity": null, "containers":'
        b' [{"name": "a", "resources": null, "securityContext": null, "restartPolicy": null},'
        b' {"name": "b", "resources": {"limits": null, "requests": null}}]}}'
    )

    assert read.annotations == {}
    assert read.init_containers == []
    assert [(dict(container.limits), dict(container.requests)) for container in read.containers()] == [({}, {})] * 2


@pytest.mark.parametrize(
    "where",
    ["metadata", "spec", "status"],
)
def test_a_part_of_the_pod_may_be_null(where: str) -> None:
    document = pod("a").app("server", mem=1).document | {where: None}

    assert decode_pod(json.dumps(document).encode()).is_terminal is False


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"metadata": {"name": None}}, id="a name that is null"),
        pytest.param({"metadata": {"namespace": None, "uid": None}}, id="namespace and UID that are null"),
        pytest.param({"spec": {"containers": None}}, id="containers that are null"),
        pytest.param({"spec": {"containers": [{"name": None}]}}, id="a container whose name is null"),
    ],
)
def test_a_field_that_is_always_a_text_or_a_list_may_be_null_too(document: dict) -> None:
    assert list(convert_pod(document).containers()) in ([], [Container()])


@pytest.mark.parametrize(
    ("document", "want_path"),
    [
        pytest.param({"spec": {"containers": {}}}, "$.spec.containers", id="containers that are no list"),
        pytest.param({"spec": {"containers": [1]}}, "$.spec.containers[0]", id="a container that is a number"),
        pytest.param({"metadata": {"annotations": {"x": 1}}}, "$.metadata.annotations", id="an annotation not a text"),
        pytest.param(
            {"spec": {"initContainers": [{"restartPolicy": 1}]}},
            "$.spec.initContainers[0].restartPolicy",
            id="a restart policy that is a number",
        ),
        pytest.param({"spec": {"activeDeadlineSeconds": "60"}}, "activeDeadlineSeconds", id="a deadline in quotes"),
    ],
)
def test_a_field_of_the_wrong_type_is_an_error_with_its_path(document: dict, want_path: str) -> None:
    for decode, value in ((convert_pod, document), (decode_pod, json.dumps(document).encode())):
        with pytest.raises(DecodeError, match="object: ") as caught:
            decode(value)
        assert want_path in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{", id="half an object"),
        pytest.param(b'{"metadata": {"name": "\xff"}}', id="a name that is no UTF-8"),
        pytest.param(b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", id="an object too deep to read"),
    ],
)
def test_what_is_no_pod_is_an_error(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_pod(raw)


@pytest.mark.parametrize(
    ("limits", "requests", "want"),
    [
        pytest.param({"r": "1"}, {"r": "2"}, "1", id="the limit goes first"),
        pytest.param({}, {"r": "2"}, "2", id="else the request"),
        pytest.param({"r": 0}, {"r": "2"}, 0, id="a limit of zero is a limit"),
        pytest.param({"other": "1"}, {}, None, id="else nothing"),
    ],
)
def test_a_resource_is_looked_up_in_limits_then_requests(limits: dict, requests: dict, want: object) -> None:
    assert Container(resources=Resources(limits=limits, requests=requests)).look("r") == want


def test_a_name_that_is_not_configured_is_never_found() -> None:
    assert Container(resources=Resources(limits={"": "1"}, requests={"": "1"})).look("") is None


def test_defaults_are_laid_over_and_the_container_stays_as_it_was() -> None:
    before = Container(name="a", resources=Resources(limits={"x": "1", "y": "1"}, requests={"z": "1"}))

    after = before.with_defaults({"y": "2"}, {"y": "2"})

    assert after.limits == {"x": "1", "y": "2"}
    assert after.requests == {"z": "1", "y": "2"}
    assert before.limits == {"x": "1", "y": "1"}
    assert before.requests == {"z": "1"}


def test_containers_are_replaced_list_by_list() -> None:
    before = pod("a").init("load").app("server").app("worker").build()

    after = before.with_containers([container.with_defaults({"x": "1"}, {}) for container in before.containers()])

    assert [container.name for container in after.init_containers] == ["load"]
    assert [container.name for container in after.spec.containers] == ["server", "worker"]
    assert all(container.limits == {"x": "1"} for container in after.containers())


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        pytest.param({"name": "web-1"}, "web-1", id="a name"),
        pytest.param({"name": None, "generateName": "job-"}, "job-*", id="a prefix, for a pod still to be named"),
        pytest.param({"name": None}, "*", id="neither"),
    ],
)
def test_a_pod_is_shown_by_name_or_prefix(metadata: dict, want: str) -> None:
    assert pod("a").metadata(**metadata).build().display_name == want


@pytest.mark.parametrize(
    ("phase", "want"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True)],
)
def test_only_success_and_failure_end_a_pod(phase: str, want: bool) -> None:
    assert pod("a").phase(phase).build().is_terminal is want

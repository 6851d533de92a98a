from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from builders import CORES, COUNT, MEMORY, PERCENT, Json, PodBuilder, device_config, pod

from webhook.api.pod import Container, Pod
from webhook.defaulting import Refusal
from webhook.devices.base import Defaults, ResourceNames
from webhook.devices.family import Family
from webhook.devices.registry import load_backends
from webhook.errors import DecodeError
from webhook.mutation import mutation
from webhook.policy import Policy

CONFIGS = Path(__file__).parents[1] / "vectors" / "config"
CHART = CONFIGS / "default.yaml"

SCHEDULED = ("add", "/spec/schedulerName", "hami-scheduler")
LIMITS = "/spec/containers/0/resources/limits"


def families(config: str = "") -> Any:
    return load_backends(config or CHART.read_text())


def mutate(subject: PodBuilder | Json, *, config: str = "", kubelet: bool = False, **policy: Any) -> Any:
    """Return the operations as (op, path, value), or the problems of a refused pod."""
    document = subject.document if isinstance(subject, PodBuilder) else subject
    result = mutation(document, families(config), Policy(**policy), is_from_kubelet=kubelet)
    if isinstance(result, Refusal):
        return result.problems
    return [(operation["op"], operation["path"], operation["value"]) for operation in result]


def app(limits: Json, requests: Json | None = None) -> PodBuilder:
    return pod().app("main", limits=limits, requests=requests)


def test_the_count_is_added_beside_memory_and_the_slash_of_its_name_escaped() -> None:
    """A user sets memory and no count, and the resource name holds a slash."""
    assert mutate(app({MEMORY: "7000"})) == [("add", f"{LIMITS}/nvidia.com~1gpu", "1"), SCHEDULED]


def test_a_tilde_is_escaped_too() -> None:
    class Odd(Family):
        def defaults(self, container: Container, pod: Pod) -> Defaults:
            return Defaults(annotations={"example.com/a~1": "x"})

    operations = mutation(app({}).document, [Odd(ResourceNames(count="example.com/odd"))], Policy())
    assert operations == [{"op": "add", "path": "/metadata/annotations", "value": {"example.com/a~1": "x"}}]
    annotated = app({}).annotated({"b": "y"}).document
    operations = mutation(annotated, [Odd(ResourceNames(count="example.com/odd"))], Policy())
    assert operations == [{"op": "add", "path": "/metadata/annotations/example.com~1a~01", "value": "x"}]


@pytest.mark.parametrize(
    ("container", "want"),
    [
        pytest.param(
            {"resources": {"requests": {COUNT: "1"}}},
            ("add", LIMITS, {CORES: "100"}),
            id="limits",
        ),
        pytest.param(
            {"resources": {"limits": None, "requests": {COUNT: "1"}}},
            ("replace", LIMITS, {CORES: "100"}),
            id="limits that are null",
        ),
    ],
)
def test_objects_that_are_missing_come_whole(container: Json, want: Any) -> None:
    """The API server refuses a request without a limit, but only after mutating webhooks."""
    document = {"spec": {"containers": [{"name": "main", **container}]}}
    assert mutate(document) == [want, SCHEDULED]


def test_env_and_annotations_that_are_missing_come_whole() -> None:
    tuned = (CONFIGS / "tuned.yaml").read_text()
    subject = {"metadata": None, "spec": {"containers": [{"name": "main", "resources": {"limits": {COUNT: "1"}}}]}}
    policy = ("add", "/spec/containers/0/env", [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}])
    assert policy in mutate(subject, config=tuned)
    threads = {"metadata": None, "spec": {"containers": [{"resources": {"limits": {"mthreads.com/vgpu": "2"}}}]}}
    assert ("replace", "/metadata", {"annotations": {"mthreads.com/request-gpu-num": "2"}}) in mutate(threads)


def test_variables_go_behind_those_that_are_there() -> None:
    tuned = (CONFIGS / "tuned.yaml").read_text()
    subject = app({COUNT: "1", "nvidia.com/priority": "1"}).document
    container = subject["spec"]["containers"][0]
    container["env"] = [{"name": "GPU_CORE_UTILIZATION_POLICY", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
    env = [operation for operation in mutate(subject, config=tuned) if "/env" in operation[1]]
    assert env == [("add", "/spec/containers/0/env/-", {"name": "CUDA_TASK_PRIORITY", "value": "1"})]


def test_operations_stand_in_the_order_of_the_containers_and_the_pods_own_come_last() -> None:
    tuned = (CONFIGS / "tuned.yaml").read_text()
    subject = pod().app("a", limits={MEMORY: "10"}).app("b", limits={PERCENT: "100"}).sidecar("s", limits={COUNT: "1"})
    assert [path for _, path, _ in mutate(subject, config=tuned)] == [
        "/spec/initContainers/0/resources/limits/nvidia.com~1gpucores",
        "/spec/initContainers/0/env",
        "/spec/containers/0/resources/limits/nvidia.com~1gpu",
        "/spec/containers/0/env",
        "/spec/containers/1/resources/limits/nvidia.com~1gpu",
        "/spec/containers/1/resources/limits/nvidia.com~1gpucores",
        "/spec/containers/1/env",
        "/spec/runtimeClassName",
        "/spec/schedulerName",
    ]


def test_two_families_in_one_container_are_each_given_theirs() -> None:
    ascend, memory = "huawei.com/Ascend910B2", "huawei.com/Ascend910B2-memory"
    assert mutate(app({MEMORY: "1000", ascend: "1"}, {ascend: "1"})) == [
        ("add", f"{LIMITS}/nvidia.com~1gpu", "1"),
        ("add", f"{LIMITS}/huawei.com~1Ascend910B2-memory", "65536"),
        ("add", f"{LIMITS.replace('limits', 'requests')}/{memory.replace('/', '~1')}", "65536"),
        SCHEDULED,
    ]


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(pod().app("main").spec(schedulerName="default-scheduler"), [], id="that asks for nothing"),
        pytest.param(pod().app("main", privileged=True), [], id="that is privileged and asks for nothing"),
        pytest.param(app({"cpu": "1"}), [], id="that asks for what is nobody's"),
        pytest.param(app({COUNT: "1", CORES: "0"}).spec(schedulerName="volcano"), [], id="of another scheduler"),
        pytest.param(
            app({COUNT: "1"}).app("b", privileged=True).spec(schedulerName="volcano", nodeName="n"),
            [],
            id="of another scheduler that HAMi would refuse",
        ),
        pytest.param(
            app({COUNT: "1", CORES: "0"}).spec(schedulerName="default-scheduler"),
            [("replace", "/spec/schedulerName", "hami-scheduler")],
            id="of the default scheduler",
        ),
        pytest.param(app({COUNT: "1", CORES: "0"}).spec(schedulerName="hami-scheduler"), [], id="that is as it should"),
        pytest.param(app({"nvidia.com/priority": "1"}), [], id="that has a priority alone (D11)"),
        pytest.param(
            app({COUNT: "1", CORES: "0", "nvidia.com/priority": "high"}),
            [SCHEDULED],
            id="with a priority that is no quantity, which the API server refuses",
        ),
    ],
)
def test_what_becomes_of_a_pod(subject: PodBuilder, want: Any) -> None:
    """A privileged container escapes isolation beside one that asks for a card."""
    assert mutate(subject) == want


def test_the_default_schedulers_pods_are_left_alone_where_hami_leaves_them() -> None:
    assert mutate(app({COUNT: "1"}).spec(schedulerName="default-scheduler"), overwrite_default_scheduler=False) == []


def test_the_scheduler_may_have_another_name() -> None:
    named = app({COUNT: "1", CORES: "0"})
    assert mutate(named, scheduler_name="gpu") == [("add", "/spec/schedulerName", "gpu")]


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param({"metadata": {}, "spec": {}}, ["no containers"], id="has no containers"),
        pytest.param(
            pod().init("prep", mem=1).spec(schedulerName="volcano"), ["no containers"], id="has init ones alone"
        ),
        pytest.param(
            pod().app("a", privileged=True).app("b", mem=1000), ["container a is privileged"], id="privileged"
        ),
        pytest.param(
            pod().init("i", privileged=True).app("a", mem=1, privileged=True).spec(nodeName="n"),
            ["container i is privileged", "container a is privileged", "spec.nodeName 'n' is set"],
            id="for several reasons",
        ),
        pytest.param(
            pod().app("a", pct=101).app("b", limits={"mthreads.com/vgpu": "0"}),
            ["container a: nvidia.com/gpumem-percentage '101'", "container b: mthreads.com/vgpu '0'"],
            id="amounts of two families",
        ),
    ],
)
def test_hami_refuses_a_pod_that(subject: PodBuilder | Json, want: list[str]) -> None:
    problems = mutate(subject)
    assert len(problems) == len(want)
    for problem, text in zip(problems, want, strict=True):
        assert text in problem


def test_a_static_pod_that_a_kubelet_shows_is_left_alone() -> None:
    shown = app({COUNT: "1"}).annotated({"kubernetes.io/config.mirror": "hash"}).spec(nodeName="node-1")
    assert mutate(shown, kubelet=True) == []
    assert "spec.nodeName" in mutate(shown)[0]
    assert mutate(app({COUNT: "1", CORES: "0"}), kubelet=True) == [SCHEDULED]


@pytest.mark.parametrize("env", [{"a": 1}, "x", ["x"], 7])
def test_variables_that_are_none_make_no_pod(env: Any) -> None:
    document = app({COUNT: "1"}).document
    document["spec"]["containers"][0]["env"] = env
    with pytest.raises(DecodeError, match="/spec/containers/0/env"):
        mutate(document)


@pytest.mark.parametrize("document", [None, [], {"spec": 7}, {"spec": {"containers": [None]}}])
def test_what_is_no_pod_is_not_decoded(document: Any) -> None:
    with pytest.raises(DecodeError):
        mutate(document)


class TestOverwriteEnv:
    """Cards are hidden from containers without any, whatever else the pod is, as its name says in HAMi's chart."""

    NONE = ("add", "/spec/containers/0/env", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])

    def test_in_a_pod_that_asks_for_nothing_and_its_scheduler_stays(self) -> None:
        assert mutate(pod().app("main"), config=device_config(overwriteEnv=True)) == [self.NONE]

    def test_in_a_pod_that_asks_in_another_container(self) -> None:
        subject = pod().app("main").app("gpu", limits={COUNT: "1", CORES: "0"})
        assert mutate(subject, config=device_config(overwriteEnv=True)) == [self.NONE, SCHEDULED]

    def test_not_in_a_pod_of_another_scheduler(self) -> None:
        subject = pod().app("main").spec(schedulerName="volcano")
        assert mutate(subject, config=device_config(overwriteEnv=True)) == []

    def test_not_over_what_the_user_says(self) -> None:
        document = pod().app("main").document
        document["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        assert mutate(document, config=device_config(overwriteEnv=True)) == []

    def test_once_for_all_chips_of_ascend(self) -> None:
        """HAMi appends it once for each chip that says so, and to containers with another chip (D11)."""
        document = yaml.safe_load(CHART.read_text())
        assert len(document["vnpus"]["configs"]) > 1
        for chip in document["vnpus"]["configs"]:
            chip["overwriteEnv"] = True
        config = yaml.safe_dump(document)
        bare = mutate(pod().app("main"), config=config)
        assert bare == [("add", "/spec/containers/0/env", [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}])]
        with_chip = mutate(app({"huawei.com/Ascend910A": "1"}), config=config)
        assert not [path for _, path, _ in with_chip if "env" in path]


def weak(identity: str, limits: Json, want: Any, requests: Json | None = None, **annotations: str) -> Any:
    return pytest.param(limits, limits if requests is None else requests, annotations, want, id=identity)


REFUSED = "refused"
LEFT = {"schedulerName": "hami-scheduler"}


@pytest.mark.parametrize(
    ("limits", "requests", "annotations", "want"),
    [
        # Amounts that HAMi takes and then counts as nothing, or as something else. HAMi's webhook lets the pod in, and
        # so does defaulting, which stands in its place; the pod is refused where it is judged, in the namespace's mode.
        weak("D3: memory that looks like bytes", {COUNT: "1", MEMORY: "16Gi"}, {}),
        weak("D4: memory that is not whole", {"hygon.com/dcunum": "1", "hygon.com/dcumem": "1500m"}, {}),
        weak("D5: a count beyond 32 bits", {"cambricon.com/vmlu": "4294967297"}, {}),
        weak("D14: a multiple of 1000", {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "1k"}, {}),
        weak("design-3: count 0", {"amd.com/gpu": "0"}, {}),
        # Memory 0 means a whole card, and is charged as one; HAMi charges nothing (D7).
        weak("D7: memory 0", {COUNT: "1", MEMORY: "0"}, {}),
        # HAMi rounds these up to a size and writes it over the user's figure. It would hide from /validate what was
        # asked, so the figure stays, and /validate refuses it.
        weak("D24: negative memory", {"huawei.com/Ascend910B2": "1", "huawei.com/Ascend910B2-memory": "-1"}, {}),
        weak("D27: memory 0", {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "0"}, {}),
        weak("D27: too much", {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "8Gi"}, {}),
        weak("fraction", {"huawei.com/Ascend910B2": "1", "huawei.com/Ascend910B2-memory": "500m"}, {}),
        # Here a family's own defaulting has no answer to give, so that it refuses, as it does other amounts.
        weak("D8: a percentage that is not whole", {COUNT: "1", PERCENT: "500m"}, REFUSED),
        weak("D24: memory 0", {"huawei.com/Ascend910B2": "1", "huawei.com/Ascend910B2-memory": "0"}, REFUSED),
        weak(
            "D23: a part of one 910C, of which HAMi makes two and then refuses its own result",
            {"huawei.com/Ascend910C": "1", "huawei.com/Ascend910C-memory": "8Ki"},
            REFUSED,
        ),
        weak(
            "design-3: cores that HAMi does not look at beside a count",
            {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "-50"},
            REFUSED,
        ),
        # A limit and a request of an extended resource must be equal: HAMi leaves the request, and with it a pod that
        # the API server refuses.
        weak(
            "D13: a request beside a limit that changes",
            {"iluvatar.ai/BI-V150-vgpu": "3", "iluvatar.ai/BI-V150.vCore": "100"},
            {
                "limits": {"iluvatar.ai/BI-V150-vgpu": "3", "iluvatar.ai/BI-V150.vCore": "300"},
                "requests": {"iluvatar.ai/BI-V150-vgpu": "3", "iluvatar.ai/BI-V150.vCore": "300"},
            },
        ),
        # The API server refuses these a moment later: nothing may be requested without a limit.
        weak("design-3: requests alone", {}, {"schedulerName": None}, {"amd.com/gpu": "2"}),
        # HAMi adds a count as well on a second run.
        weak("design-8: the count in requests alone", {}, {"limits": {CORES: "100"}}, {COUNT: "1"}),
    ],
)
def test_where_hamis_answer_is_not_ours(limits: Json, requests: Json, annotations: Json, want: Any) -> None:
    subject = app(limits, requests).annotated(annotations).document
    for key in ("limits", "requests"):
        subject["spec"]["containers"][0].setdefault("resources", {}).setdefault(key, {})
    result = mutation(subject, families(), Policy())
    if want == REFUSED:
        assert isinstance(result, Refusal)
        return
    assert not isinstance(result, Refusal)
    got = jsonpatch.apply_patch(subject, result)
    want = {"limits": limits, "requests": requests} | LEFT | want
    resources = got["spec"]["containers"][0]["resources"]
    assert (resources["limits"], resources["requests"]) == (want["limits"], want["requests"])
    assert got["spec"].get("schedulerName") == want["schedulerName"]
    assert mutation(got, families(), Policy()) == []

"""What one container asks of the NVIDIA family, its defaults, and the cards of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import COUNT, PERCENT, REGISTER, backends, node, node_with, pod, with_limits

from webhook.api.pod import Container, Pod
from webhook.devices.base import Card, CardKind, DeviceRequest, Ineffective, Unusable
from webhook.errors import DecodeError

PLAIN = "plain integer, MiB, e.g. 16384"


def container(**asks: Any) -> tuple[Container, Pod]:
    """Return the one container of a pod, and the pod."""
    built = pod().app("server", **asks).build()
    return built.spec.containers[0], built


Figures = tuple[int, int, int | None, int]
"""Cards, and for each card memory in MiB, percentage and cores, in the order the reference writes them."""


def ask(configured: dict[str, Any] | None = None, **asks: Any) -> Figures | Unusable | Ineffective | None:
    """Return what a container asks for after defaulting."""
    [backend] = backends(**(configured or {}))
    asked, its_pod = container(**asks)
    defaults = backend.defaults(asked, its_pod)
    if isinstance(defaults, Unusable):
        return defaults
    request = backend.request(with_limits(asked, defaults.limits), its_pod)
    if not isinstance(request, DeviceRequest):
        return request
    return request.cards, request.memory_mib, request.memory_percent, request.cores_percent


@pytest.mark.parametrize(
    ("asks", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"gpu": 1}, (1, 0, 100, 100), id="a card alone is a whole card, its cores included"),
        pytest.param({"gpu": 2}, (2, 0, 100, 100), id="cores are per card"),
        pytest.param({"mem": 3000, "gpu": None}, (1, 3000, None, 0), id="memory alone gets the default count"),
        pytest.param({"cores": 50, "gpu": None}, (1, 0, 100, 50), id="cores alone get it too"),
        pytest.param({"pct": 50, "gpu": None}, (1, 0, 50, 0), id="a percentage alone gets it too"),
        pytest.param({"gpu": 2, "mem": 4096}, (2, 4096, None, 0), id="memory is per card"),
        pytest.param({"pct": 50}, (1, 0, 50, 0), id="half of each card's memory"),
        pytest.param({"pct": 100}, (1, 0, 100, 100), id="all of a card's memory takes its cores"),
        pytest.param({"pct": 100, "cores": 20}, (1, 0, 100, 20), id="unless it says its cores"),
        pytest.param({"pct": 100, "cores": 0}, (1, 0, 100, 0), id="even none"),
        pytest.param({"mem": 2000, "pct": 30}, (1, 2000, 30, 0), id="memory goes before a percentage"),
        pytest.param({"mem": 0, "pct": 50}, (1, 0, 50, 0), id="memory 0 leaves the percentage"),
        pytest.param({"mem": 2000, "pct": 0}, (1, 2000, None, 0), id="percentage 0 is not set"),
        pytest.param({"mem": 2000, "cores": 100}, (1, 2000, None, 100), id="all cores"),
        pytest.param({"mem": 2147483647}, (1, 2147483647, None, 0), id="the largest memory"),
        pytest.param({"gpu": 2147483647}, (2147483647, 0, 100, 100), id="the largest count"),
    ],
)
def test_a_container_asks_for(asks: dict[str, Any], want: Figures | None) -> None:
    assert ask(**asks) == want


@pytest.mark.parametrize(
    ("text", "want_mib"),
    [
        pytest.param("16k", 16000, id="as the API server writes thousands"),
        pytest.param("8Ki", 8192, id="a binary suffix that fits"),
        pytest.param("2e3", 2000, id="scientific"),
        pytest.param("4096.0", 4096, id="with a fraction of nothing"),
        pytest.param("4096000m", 4096, id="in thousandths"),
    ],
)
def test_a_whole_amount_of_memory_is_that_amount_whatever_its_spelling(text: str, want_mib: int) -> None:
    assert ask(mem=text) == (1, want_mib, None, 0)


@pytest.mark.parametrize(
    ("asks", "want_resource", "want_value", "want_accepted"),
    [
        pytest.param({"mem": "16Gi"}, "nvidia.com/gpumem", "16Gi", PLAIN, id="memory in bytes"),
        pytest.param({"mem": "-1"}, "nvidia.com/gpumem", "-1", PLAIN, id="negative memory"),
        pytest.param({"mem": "1500m"}, "nvidia.com/gpumem", "1500m", PLAIN, id="a fraction of memory"),
        pytest.param({"mem": "1.5"}, "nvidia.com/gpumem", "1.5", PLAIN, id="a fraction written out"),
        pytest.param({"mem": 2147483648}, "nvidia.com/gpumem", "2147483648", "at most 2147483647", id="one too many"),
        pytest.param({"mem": "many"}, "nvidia.com/gpumem", "many", PLAIN, id="memory that is no number"),
        pytest.param({"mem": "16Gi", "gpu": None}, "nvidia.com/gpumem", "16Gi", PLAIN, id="without a count"),
        pytest.param(
            {"gpu": "1500m"}, "nvidia.com/gpu", "1500m", "from 0 to 2147483647, cards", id="a fraction of a card"
        ),
        pytest.param({"gpu": -1}, "nvidia.com/gpu", "-1", "from 0 to 2147483647, cards", id="a negative count"),
        pytest.param({"gpu": 2**32}, "nvidia.com/gpu", "4294967296", "cards", id="a count that 32 bits cannot hold"),
        pytest.param(
            {"mem": 1, "cores": 101}, "nvidia.com/gpucores", "101", "from 0 to 100", id="more than a card's cores"
        ),
        pytest.param({"mem": 1, "cores": -1}, "nvidia.com/gpucores", "-1", "from 0 to 100", id="negative cores"),
        pytest.param({"mem": 1, "cores": "500m"}, "nvidia.com/gpucores", "500m", "from 0 to 100", id="half a percent"),
        pytest.param({"mem": 1, "cores": 2**32 + 50}, "nvidia.com/gpucores", "4294967346", "100", id="cores that wrap"),
        pytest.param({"pct": 101}, "nvidia.com/gpumem-percentage", "101", "from 0 to 100", id="more than all memory"),
        pytest.param({"pct": -1}, "nvidia.com/gpumem-percentage", "-1", "from 0 to 100", id="a negative share"),
        pytest.param(
            {"pct": "500m"}, "nvidia.com/gpumem-percentage", "500m", "from 0 to 100", id="half a percent of it"
        ),
        pytest.param({"gpu": 0, "mem": 100}, "nvidia.com/gpu", "0", "at least 1 card", id="no card beside memory"),
        pytest.param({"gpu": 0, "pct": 50}, "nvidia.com/gpu", "0", "at least 1 card", id="no card beside a share"),
        pytest.param({"gpu": 0, "pct": 0}, "nvidia.com/gpu", "0", "at least 1 card", id="no card beside a share of 0"),
        pytest.param({"gpu": 0, "mem": 0}, "nvidia.com/gpu", "0", "at least 1 card", id="no card beside memory 0"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_is_accepted(
    asks: dict[str, Any], want_resource: str, want_value: str, want_accepted: str
) -> None:
    refused = ask(**asks)

    assert isinstance(refused, Unusable)
    assert (refused.container, refused.resource, refused.value) == ("server", want_resource, want_value)
    assert want_accepted in refused.accepted
    assert str(refused) == (f"container server: {want_resource} '{want_value}' cannot be used: {refused.accepted}")


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param({"gpu": 0}, id="alone, with the cores that defaulting adds to it"),
        pytest.param({"gpu": 0, "cores": 0}, id="with no cores"),
        pytest.param({"gpu": 0, "cores": 100}, id="with the cores that HAMi's own mutation left"),
    ],
)
def test_a_count_of_0_asks_for_nothing(asks: dict[str, Any]) -> None:
    assert ask(**asks) is None


@pytest.mark.parametrize(
    "configured",
    [
        pytest.param({"defaultCores": 30}, id="default cores"),
        pytest.param({"defaultCores": 30, "resourceCoreName": None}, id="default cores and no name to ask for cores"),
        pytest.param({"defaultMemory": 1500}, id="a default memory"),
        pytest.param({"defaultGPUNum": 2}, id="a default count"),
    ],
)
def test_a_count_of_0_asks_for_nothing_whatever_the_defaults_are(configured: dict[str, Any]) -> None:
    assert ask(configured, gpu=0) is None


@pytest.mark.parametrize(
    ("configured", "asks", "want"),
    [
        pytest.param({"memoryFactor": 2}, {"mem": 1024}, (1, 2048, None, 0), id="memory in units of 2 MiB"),
        pytest.param({"memoryFactor": 0}, {"mem": 1024}, (1, 1024, None, 0), id="a factor of 0 acts as 1"),
        pytest.param({"memoryFactor": None}, {"mem": 1024}, (1, 1024, None, 0), id="no factor acts as 1"),
        pytest.param({"defaultMemory": 512}, {"gpu": 1}, (1, 512, None, 100), id="a default memory"),
        pytest.param(
            {"defaultMemory": 512, "memoryFactor": 2}, {"gpu": 1}, (1, 512, None, 100), id="which is not scaled"
        ),
        pytest.param({"defaultMemory": 512}, {"pct": 50}, (1, 0, 50, 0), id="a share goes before it"),
        pytest.param({"defaultMemory": 512}, {"pct": 100}, (1, 0, 100, 100), id="and so does a whole card"),
        pytest.param({"defaultCores": 30}, {"mem": 1}, (1, 1, None, 30), id="default cores"),
        pytest.param({"defaultCores": 30}, {"gpu": 1}, (1, 0, 100, 100), id="a whole card goes before them"),
        pytest.param({"defaultCores": 30}, {"mem": 1, "cores": 0}, (1, 1, None, 0), id="and written cores"),
        pytest.param({"defaultCores": 300}, {"mem": 1}, (1, 1, None, 100), id="no more than a card's cores"),
        pytest.param({"defaultGPUNum": 2}, {"mem": 1, "gpu": None}, (2, 1, None, 0), id="a default count of 2"),
        pytest.param(
            {"resourceCoreName": None}, {"gpu": 1}, (1, 0, 100, 0), id="no cores are added without their name"
        ),
        pytest.param(
            {"resourceMemoryName": None}, {"gpu": 1}, (1, 0, 100, 100), id="no memory name: every card is whole"
        ),
    ],
)
def test_the_configuration_decides(configured: dict[str, Any], asks: dict[str, Any], want: Figures) -> None:
    assert ask(configured, **asks) == want


def test_the_largest_memory_is_smaller_in_larger_units() -> None:
    assert ask({"memoryFactor": 10}, mem=214748364) == (1, 2147483640, None, 0)
    refused = ask({"memoryFactor": 10}, mem=214748365)
    assert isinstance(refused, Unusable)
    assert refused.accepted == "plain integer, units of 10 MiB, e.g. 1638, at most 214748364"


@pytest.mark.parametrize("amount", ["mem", "pct", "cores"])
def test_an_amount_without_a_count_has_no_effect_where_no_count_is_default(amount: str) -> None:
    """HAMi allocates nothing for it (D10)."""
    said = ask({"defaultGPUNum": 0}, **{amount: 50, "gpu": None})

    assert isinstance(said, Ineffective)
    assert str(said) == f"container server: {said.resource} has no effect without {COUNT}"


def test_a_priority_alone_asks_for_nothing() -> None:
    assert ask(limits={"nvidia.com/priority": "1"}) is None


def test_names_are_those_of_the_configuration() -> None:
    [backend] = backends(
        resourceCountName="example.com/vgpu",
        resourceMemoryName="example.com/vgpu-mem",
        resourceMemoryPercentageName=None,
        resourceCoreName=None,
        memoryFactor=2,
    )

    assert (backend.names.count, backend.names.memory, backend.names.cores) == (
        "example.com/vgpu",
        "example.com/vgpu-mem",
        "",
    )
    assert backend.names.memory_factor == 2
    assert backend.managed_resources == ("example.com/vgpu", "example.com/vgpu-mem")


def test_limits_go_before_requests() -> None:
    assert ask(mem=1, requests={"nvidia.com/gpu": "4", "nvidia.com/gpumem": "40960"}) == (1, 1, None, 0)


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param({"gpu": 1}, id="a whole card"),
        pytest.param({"mem": 1000, "gpu": None}, id="memory alone"),
        pytest.param({"cores": 10, "gpu": None}, id="cores alone"),
        pytest.param({"pct": 100, "gpu": None}, id="a whole card as a share"),
        pytest.param({"gpu": 0}, id="no card"),
        pytest.param({"requests": {COUNT: "4"}}, id="a count in requests alone, which only offline input can hold"),
        pytest.param({"requests": {COUNT: "4", PERCENT: "100"}}, id="a whole card in requests alone"),
    ],
)
def test_defaulting_changes_nothing_once_it_was_applied(asks: dict[str, Any]) -> None:
    [backend] = backends(defaultGPUNum=2)
    asked, its_pod = container(**asks)
    first = backend.defaults(asked, its_pod)
    assert not isinstance(first, Unusable)

    again = backend.defaults(with_limits(asked, first.limits), its_pod)

    assert not isinstance(again, Unusable)
    assert not again.limits


def facts(cards: tuple[Card, ...]) -> tuple[tuple[str, str, str, int], ...]:
    """Return UUID, type, mode and memory of each card."""
    return tuple((card.uuid, card.kind.model, card.kind.mode, card.kind.memory_mib) for card in cards)


def test_cards_are_read_from_a_nodes_registration() -> None:
    [backend] = backends()

    assert facts(backend.cards(node("node-1", 40960, 81920, model="NVIDIA A100", mode="mig"))) == (
        ("node-1-gpu-0", "NVIDIA A100", "mig", 40960),
        ("node-1-gpu-1", "NVIDIA A100", "mig", 81920),
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", (), id="empty"),
        pytest.param("[]", (), id="an empty list"),
        pytest.param("null", (), id="null"),
        pytest.param(' [{"id": "G"}]', (("G", "", "", 0),), id="a blank before it"),
        pytest.param(
            "GPU-0,10,40960,100,NVIDIA-A100,0,true:",
            (("GPU-0", "NVIDIA-A100", "hami-core", 40960),),
            id="the older form, 7 fields",
        ),
        pytest.param(
            "GPU-0,10,40960,100,NVIDIA-A100,0,true,3,mig:GPU-1,10,81920,100,NVIDIA-A100,1,false,4,mps:",
            (
                ("GPU-0", "NVIDIA-A100", "mig", 40960),
                ("GPU-1", "NVIDIA-A100", "mps", 81920),
            ),
            id="the older form, 9 fields",
        ),
        pytest.param(
            json.dumps([{"ID": "G", "DevMem": 5, "TYPE": "T", "Mode": "m", "unknown": {}}]),
            (("G", "T", "m", 5),),
            id="keys in any letter case",
        ),
    ],
)
def test_a_registration_has_two_forms(text: str, want: tuple[tuple[str, str, str, int], ...]) -> None:
    [backend] = backends()

    assert facts(backend.cards(node_with({REGISTER: text}))) == want


def test_a_node_without_registration_has_no_cards() -> None:
    [backend] = backends()

    assert backend.cards(node_with({})) == ()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{}", id="an object"),
        pytest.param("[1]", id="a list of numbers"),
        pytest.param("[" * 100_000, id="a deep list"),
        pytest.param('[{"id": "G"', id="half a list"),
        pytest.param('[{"id": 1}]', id="a UUID that is a number"),
        pytest.param('[{"id": "G", "devmem": "1"}]', id="memory that is a text"),
        pytest.param('[{"id": "G", "devmem": -1}]', id="negative memory"),
        pytest.param('[{"id": "G", "devmem": 2147483648}]', id="memory beyond 32 bits"),
        pytest.param('[{"id": "G", "devmem": true}]', id="memory that is a boolean"),
        pytest.param('[{"id": "G", "devmem": 1.5}]', id="memory with a fraction"),
        pytest.param("garbage", id="no colon"),
        pytest.param("garbage:", id="no comma"),
        pytest.param("GPU-0,10,40960,100,A100,0:", id="six fields"),
        pytest.param("GPU-0,10,much,100,A100,0,true:", id="memory that is no number"),
        pytest.param("GPU-0,10,-1,100,A100,0,true:", id="a negative memory"),
        pytest.param("GPU-0,10,99999999999,100,A100,0,true:", id="a memory beyond 32 bits"),
        pytest.param("GPU-0,10,٣,100,A100,0,true:", id="a digit of another script"),
    ],
)
def test_a_registration_that_cannot_be_read_is_an_error_that_names_the_annotation(text: str) -> None:
    [backend] = backends()

    with pytest.raises(DecodeError, match=r"hami\.io/node-nvidia-register: ") as caught:
        backend.cards(node_with({REGISTER: text}))

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("annotations", "model", "mode", "want"),
    [
        pytest.param({}, "NVIDIA A100", "mig", True, id="no annotation admits every card"),
        pytest.param({"nvidia.com/use-gputype": "a100"}, "NVIDIA A100", "", True, id="part of the type, any case"),
        pytest.param({"nvidia.com/use-gputype": "H100, A100"}, "NVIDIA A100", "", True, id="one of several"),
        pytest.param({"nvidia.com/use-gputype": "H100"}, "NVIDIA A100", "", False, id="another type"),
        pytest.param({"nvidia.com/use-gputype": ""}, "NVIDIA A100", "", True, id="an empty list is no constraint"),
        pytest.param({"nvidia.com/use-gputype": " , "}, "NVIDIA A100", "", True, id="nor is a list of blanks"),
        pytest.param({"nvidia.com/nouse-gputype": "A100"}, "NVIDIA A100", "", False, id="a type to avoid"),
        pytest.param({"nvidia.com/nouse-gputype": "H100"}, "NVIDIA A100", "", True, id="another type to avoid"),
        pytest.param(
            {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "40GB"},
            "NVIDIA A100-40GB",
            "",
            False,
            id="to use and to avoid",
        ),
        pytest.param({"nvidia.com/vgpu-mode": "mig"}, "", "mig", True, id="the card's mode"),
        pytest.param({"nvidia.com/vgpu-mode": "mig"}, "", "hami-core", False, id="another mode"),
        pytest.param({"nvidia.com/vgpu-mode": ""}, "", "hami-core", True, id="an empty mode is no constraint"),
    ],
)
def test_a_pods_annotations_admit_kinds_of_cards(
    annotations: dict[str, str],
    model: str,
    mode: str,
    want: bool,
) -> None:
    [backend] = backends()

    assert backend.constraint(annotations).admits(CardKind(model=model, mode=mode)) is want


def test_a_constraint_says_whether_it_names_single_cards() -> None:
    [backend] = backends()

    assert not backend.constraint({"nvidia.com/use-gputype": "A100"}).names_cards
    assert backend.constraint({"nvidia.com/use-gpuuuid": "GPU-0"}).names_cards
    assert backend.constraint({"nvidia.com/nouse-gpuuuid": "GPU-0"}).names_cards

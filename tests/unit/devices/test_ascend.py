"""What one container asks of an Ascend chip, how HAMi rounds it, and the cards of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import Asked, families, node, world_of
from builders import PodBuilder, pod

from webhook.admission import Verdict
from webhook.defaulting import Refusal, defaulted
from webhook.devices.base import (
    Card,
    CardConstraint,
    CardKind,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    Unusable,
)
from webhook.errors import DeviceConfigError

COUNT, MEMORY, CORES = "huawei.com/Ascend910B2", "huawei.com/Ascend910B2-memory", "huawei.com/Ascend910B2-core"
MODE = "huawei.com/vnpu-mode"
ENV = "ASCEND_VISIBLE_DEVICES"


def chip(word: str = "Ascend910B2", **keys: Any) -> dict[str, Any]:
    """Return an entry of the configuration like the chart's, but for `keys`; None drops one."""
    entry = {
        "commonWord": word,
        "resourceName": f"huawei.com/{word}",
        "resourceMemoryName": f"huawei.com/{word}-memory",
        "resourceCoreName": f"huawei.com/{word}-core",
        "memoryAllocatable": 65536,
        "memoryCapacity": 65536,
        "memoryFactor": 1,
        "templates": [{"name": "vir12", "memory": 32768}, {"name": "vir03", "memory": 8192}],
    } | keys
    return {key: value for key, value in entry.items() if value is not None}


def backend_of(word: str = "Ascend910B2", **keys: Any) -> DeviceBackend:
    """Return the family of one chip."""
    return families({"vnpus": {"configs": [chip(word, **keys)]}})[word]


B2 = backend_of()
PAIRED = backend_of("Ascend910C", superPod=True)
SMALLER = backend_of("Ascend310P", memoryAllocatable=21527, memoryCapacity=24576, templates=[])


def subject(backend: DeviceBackend, *, soft: bool = False, requests: dict[str, str] | None = None, **asks: Any) -> Any:
    """Return a pod of one container that limits `n`, `mem` and `cores` of a chip."""
    names = {"n": backend.names.count, "mem": backend.names.memory, "cores": backend.names.cores}
    limits = {names[amount]: str(value) for amount, value in asks.items()}
    built: PodBuilder = pod().app("server", limits=limits, requests=requests)
    return (built.annotated({MODE: "hami-core"}) if soft else built).build()


def changed(backend: DeviceBackend, **asks: Any) -> Defaults | Unusable:
    """Return what HAMi's defaulting changes."""
    built = subject(backend, **asks)
    return backend.defaults(built.spec.containers[0], built)


def ask(backend: DeviceBackend, **asks: Any) -> Asked | Unusable | Ineffective | None:
    """Return what a container asks for after defaulting."""
    built = subject(backend, **asks)
    changes = backend.defaults(built.spec.containers[0], built)
    if isinstance(changes, Unusable):
        return changes
    request = backend.request(built.spec.containers[0].with_defaults(changes.limits, changes.requests), built)
    if not isinstance(request, DeviceRequest):
        return request
    return request.cards, request.memory_mib, request.memory_percent, request.cores_percent


@pytest.mark.parametrize(
    ("asks", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"n": 1}, (1, 65536, None, 0), id="a card alone is a whole card"),
        pytest.param({"n": 5}, (5, 65536, None, 0), id="any number of them"),
        pytest.param({"n": 1, "mem": 1}, (1, 8192, None, 0), id="memory rounds up to the smallest template"),
        pytest.param({"n": 1, "mem": 8192}, (1, 8192, None, 0), id="which it fills"),
        pytest.param({"n": 1, "mem": 8193}, (1, 32768, None, 0), id="then to the next, however they are written"),
        pytest.param({"n": 1, "mem": 32769}, (1, 65536, None, 0), id="then to the whole card"),
        pytest.param({"n": 2, "mem": 40000}, (2, 65536, None, 0), id="whole cards, several of them"),
        pytest.param({"n": 1, "cores": 0}, (1, 65536, None, 0), id="no cores"),
        pytest.param({"n": "2.0", "mem": "65536.0"}, (2, 65536, None, 0), id="whole numbers with a fraction"),
        pytest.param({"n": 1, "mem": 5000, "cores": 30, "soft": True}, (1, 5000, None, 30), id="soft: as asked"),
        pytest.param({"n": 2, "mem": 5000, "soft": True}, (2, 5000, None, 0), id="soft: a part of several cards"),
        pytest.param({"n": 1, "soft": True}, (1, 65536, None, 0), id="soft: a whole card"),
        pytest.param({"n": 1, "mem": 65536, "soft": True}, (1, 65536, None, 0), id="soft: all of its memory"),
    ],
)
def test_a_container_asks_for(asks: dict[str, Any], want: Asked | None) -> None:
    assert ask(B2, **asks) == want


def test_a_chip_with_less_memory_than_it_was_built_with_gives_what_it_has() -> None:
    assert ask(SMALLER, n=1, mem=22000) == (1, 21527, None, 0)
    assert ask(SMALLER, n=1, mem=24576) == (1, 21527, None, 0)


@pytest.mark.parametrize(
    ("backend", "asks", "want_resource", "want_accepted"),
    [
        pytest.param(B2, {"n": 1, "mem": 65537}, "mem", "from 1 to 65536", id="more memory than a card has"),
        pytest.param(B2, {"n": 1, "mem": "16Gi"}, "mem", "plain integer, MiB, from 1 to 65536", id="bytes"),
        pytest.param(B2, {"n": 2, "mem": 8192}, "mem", "a whole card's 65536, or no memory, beside 2", id="parts"),
        pytest.param(B2, {"n": 1, "cores": 30}, "cores", f"only with the annotation {MODE}", id="cores, hard"),
        pytest.param(B2, {"n": 1, "mem": "1.5"}, "mem", "from 1 to 65536", id="a fraction, rounded up by HAMi"),
        pytest.param(B2, {"n": 1, "mem": "1.5", "soft": True}, "mem", "from 1 to 65536", id="soft: a fraction"),
        pytest.param(B2, {"n": 1, "mem": "some"}, "mem", "from 1 to 65536", id="no number"),
        pytest.param(B2, {"n": 1, "cores": 101, "soft": True}, "cores", "from 0 to 100", id="soft: too many cores"),
        pytest.param(B2, {"n": 1, "cores": "33.3", "soft": True}, "cores", "from 0 to 100", id="soft: parts of them"),
        pytest.param(B2, {"n": "1.5"}, "n", "from 0 to 2147483647, cards", id="a part of a card"),
        pytest.param(B2, {"n": -2}, "n", "from 0 to 2147483647, cards", id="a negative count"),
        pytest.param(B2, {"n": "some"}, "n", "from 0 to 2147483647, cards", id="a count that is no number"),
        pytest.param(PAIRED, {"n": 3}, "n", "1 or an even number of cards", id="an odd number of a paired chip"),
        pytest.param(PAIRED, {"n": -1}, "n", "1 or an even number of cards", id="and an odd negative one"),
    ],
)
def test_what_cannot_be_used_is_refused(
    backend: DeviceBackend, asks: dict[str, Any], want_resource: str, want_accepted: str
) -> None:
    refused = ask(backend, **asks)

    assert isinstance(refused, Unusable)
    names = {"n": backend.names.count, "mem": backend.names.memory, "cores": backend.names.cores}
    assert (refused.container, refused.resource) == ("server", names[want_resource])
    assert refused.value == str(asks[want_resource])
    assert want_accepted in refused.accepted


@pytest.mark.parametrize("asks", [{"mem": 0}, {"mem": -1}, {"mem": 0, "soft": True}, {"mem": -1, "soft": True}])
def test_d24_memory_of_0_and_less_is_refused(asks: dict[str, Any]) -> None:
    """HAMi makes the smallest template of it, or a whole card that is charged nothing."""
    refused = ask(B2, n=1, **asks)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (MEMORY, str(asks["mem"]))


@pytest.mark.parametrize("cores", [0, 30])
def test_design_3_more_memory_than_the_card_has_is_refused_for_soft_sharing_too(cores: int) -> None:
    """HAMi takes it, and no node registers such a card: Ascend's device plugin registers `memoryAllocatable`."""
    refused = ask(SMALLER, n=1, mem=24576, cores=cores, soft=True)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (SMALLER.names.memory, "24576")
    assert "from 1 to 21527" in refused.accepted


@pytest.mark.parametrize(
    "asks", [{}, {"cores": 0}, {"mem": 65536}, {"soft": True}], ids=["alone", "no cores", "once defaulted", "soft"]
)
def test_design_3_a_count_of_0_alone_asks_for_nothing(asks: dict[str, Any]) -> None:
    """HAMi gives a whole card's memory to it and allocates nothing; nothing is what we charge."""
    assert ask(B2, n=0, **asks) is None


@pytest.mark.parametrize("asks", [{"mem": 8192}, {"mem": 1, "soft": True}, {"cores": 30, "soft": True}])
def test_design_3_a_count_of_0_beside_amounts_is_refused(asks: dict[str, Any]) -> None:
    """HAMi ignores the amounts in silence; whoever writes them expects to get them."""
    refused = ask(B2, n=0, **asks)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


@pytest.mark.parametrize("asks", [{"mem": 8192}, {"cores": 30}])
def test_amounts_without_a_count_have_no_effect(asks: dict[str, Any]) -> None:
    said = ask(B2, **asks)

    assert isinstance(said, Ineffective)
    assert said.count_name == COUNT


def test_what_stands_in_requests_alone_is_refused() -> None:
    refused = defaulted(subject(B2, requests={COUNT: "1"}), [B2])

    assert isinstance(refused, Refusal)
    assert "a limit must be set for an extended resource that is requested" in refused.problems[0]


@pytest.mark.parametrize(
    ("backend", "asks", "want"),
    [
        pytest.param(
            B2,
            {"n": 1},
            Defaults(is_found=True, limits={MEMORY: "65536"}, requests={MEMORY: "65536"}),
            id="memory is written where none is said",
        ),
        pytest.param(
            B2,
            {"n": 1, "requests": {COUNT: "1", MEMORY: "8192"}},
            Defaults(is_found=True, limits={MEMORY: "65536"}, requests={MEMORY: "65536"}),
            id="in limits",
        ),
        pytest.param(
            B2,
            {"n": 1, "mem": 8192},
            Defaults(is_found=True, requests={MEMORY: "8192"}),
            id="and in requests always",
        ),
        pytest.param(
            B2,
            {"n": 1, "mem": "8Ki", "requests": {MEMORY: "8Ki"}},
            Defaults(is_found=True, limits={MEMORY: "8192"}, requests={MEMORY: "8192"}),
            id="in a plain spelling",
        ),
        pytest.param(
            B2,
            {"n": 1, "mem": "5k", "requests": {MEMORY: "5k"}, "soft": True},
            Defaults(is_found=True),
            id="the API server's spelling is plain",
        ),
        pytest.param(
            B2,
            {"n": 1, "mem": 10000, "soft": True},
            Defaults(is_found=True, requests={MEMORY: "10k"}),
            id="and is the one that is written",
        ),
        pytest.param(B2, {"n": 1, "mem": "-1"}, Defaults(is_found=True), id="what is refused later stays"),
        pytest.param(
            PAIRED,
            {"n": 1, "mem": 65536, "requests": {PAIRED.names.count: "1", PAIRED.names.memory: "65536"}},
            Defaults(is_found=True, limits={PAIRED.names.count: "2"}, requests={PAIRED.names.count: "2"}),
            id="one card of a paired chip is two",
        ),
        pytest.param(
            PAIRED,
            {"n": 1, "mem": 65536},
            Defaults(is_found=True, limits={PAIRED.names.count: "2"}, requests={PAIRED.names.memory: "65536"}),
            id="in requests only where it stands there",
        ),
        pytest.param(
            backend_of(runtimeClassName="ascend"),
            {"n": 1, "mem": 8192, "requests": {MEMORY: "8192"}},
            Defaults(is_found=True, runtime_class_name="ascend"),
            id="a runtime class",
        ),
        pytest.param(backend_of(resourceMemoryName=None), {"n": 1}, Defaults(is_found=True), id="no name for memory"),
        pytest.param(B2, {"requests": {COUNT: "1"}}, Defaults(), id="a count in requests alone is not looked at"),
    ],
)
def test_hami_writes_what_a_container_will_get(backend: DeviceBackend, asks: dict[str, Any], want: Defaults) -> None:
    assert changed(backend, **asks) == want


def test_d11_devices_are_hidden_from_containers_without_any_and_from_no_others() -> None:
    """HAMi hides them from containers that have cards of another chip, too."""
    both = families({"vnpus": {"configs": [chip("Ascend910A", overwriteEnv=True), chip("Ascend910B2")]}})
    hiding, other = both["Ascend910A"], both["Ascend910B2"]

    assert changed(hiding) == Defaults(env=((ENV, ""),))
    assert changed(hiding, mem=8192) == Defaults(env=((ENV, ""),))
    assert changed(hiding, n=1, mem=8192, requests={hiding.names.memory: "8192"}) == Defaults(is_found=True)
    assert changed(other) == Defaults()
    built = subject(other, n=1)
    assert hiding.defaults(built.spec.containers[0], built) == Defaults()


def test_d22_memory_is_rounded_before_the_factor_is_applied() -> None:
    """Odd, but what HAMi books; a figure of our own would be another one than is used later."""
    backend = backend_of(memoryFactor=2)
    world = world_of(backend, hard={f"limits.{MEMORY}": "20k"})

    assert ask(backend, n=1, mem=1) == (1, 16384, None, 0)
    assert ask(backend, n=1) == (1, 131072, None, 0)
    assert ask(backend, n=1, mem=5000, soft=True) == (1, 10000, None, 0)
    assert world.create(pod("a").app("server", limits={COUNT: "1", MEMORY: "2048"})).charge[MEMORY] == 16384
    assert world.create(pod("b").app("server", limits={COUNT: "1", MEMORY: "8193"})).verdict is Verdict.EXCEEDED
    refused = ask(backend, n=1, mem=0)
    assert isinstance(refused, Unusable)
    assert "plain integer, units of 2 MiB" in refused.accepted


@pytest.mark.parametrize("memory", ["1", "8192", "10k", "16.0"])
def test_d23_a_part_of_a_paired_card_is_refused_however_few_were_asked(memory: str) -> None:
    """HAMi makes two cards of one and does not see that they are several, until it sees its own result."""
    for count in (1, 2):
        refused = ask(PAIRED, n=count, mem=memory)

        assert isinstance(refused, Unusable)
        assert (refused.resource, refused.value) == (PAIRED.names.memory, memory)
        assert refused.accepted == "a whole card's 65536, or no memory, beside 2 cards"
    assert ask(PAIRED, n=1, mem=1, soft=True) == (2, 1, None, 0)
    assert ask(PAIRED, n=1) == (2, 65536, None, 0)


def test_cards_come_in_pairs_only_where_it_is_configured() -> None:
    assert ask(backend_of("Ascend910C"), n=1, mem=1) == (1, 8192, None, 0)
    assert ask(backend_of(superPod=True), n=3) == (3, 65536, None, 0)


def test_d25_the_cores_of_a_template_are_charged_to_nobody() -> None:
    """Nobody books them, so there is nothing to compare them with; the core quota warns of such pods."""
    world = world_of(B2, hard={f"limits.{CORES}": "10"})

    decision = world.create(pod().app("server", limits={COUNT: "1", MEMORY: "8192"}))

    assert decision.is_allowed
    assert decision.charge == {COUNT: 1, MEMORY: 8192}


def test_an_entry_that_configures_no_sizes_rounds_nothing() -> None:
    backend = backend_of(memoryAllocatable=None, memoryCapacity=None, templates=None, memoryFactor=None)

    refused = ask(backend, n=1, mem=0)
    assert isinstance(refused, Unusable)
    assert "from 1 to 2147483647" in refused.accepted

    assert ask(backend, n=1, mem=2000) == (1, 2000, None, 0)
    assert ask(backend, n=2, mem=2000) == (2, 2000, None, 0)
    assert ask(backend, n=1) == (1, 0, 100, 0)
    assert ask(backend, n=1, mem=2000, soft=True) == (1, 2000, None, 0)
    registered = [{"id": "A", "devmem": 32768}]
    world = world_of(
        backend,
        node({"hami.io/node-register-Ascend910B2": json.dumps(registered)}),
        hard={f"limits.{MEMORY}": "100k"},
    )
    assert world.create(pod().app("server", limits={COUNT: "1"})).charge[MEMORY] == 32768


def test_without_a_name_for_cores_they_are_nobodys() -> None:
    backend = backend_of(resourceCoreName=None)

    assert backend.managed_resources == (COUNT, MEMORY)
    built = pod().app("server", limits={COUNT: "1", MEMORY: "8192", CORES: "30"}).build()
    assert not isinstance(backend.defaults(built.spec.containers[0], built), Unusable)


def test_every_entry_with_a_count_is_a_family() -> None:
    configs = [chip("Ascend910A"), chip("Ascend910B2", resourceName=None), chip("Ascend310P")]

    assert families({"vnpus": {"configs": configs}}).keys() & {"Ascend910A", "Ascend910B2", "Ascend310P"} == {
        "Ascend910A",
        "Ascend310P",
    }


@pytest.mark.parametrize(
    ("configs", "want"),
    [
        pytest.param([chip(commonWord=None)], "stands in an entry without a commonWord", id="an entry without a name"),
        pytest.param(
            [chip(), chip(resourceName="a.b/c")],
            "Ascend910B2 is the one of another entry, too",
            id="two entries of one name",
        ),
    ],
)
def test_entries_that_cannot_be_told_apart_stop_the_start(configs: list[dict[str, Any]], want: str) -> None:
    with pytest.raises(DeviceConfigError, match=want):
        families({"vnpus": {"configs": configs}})


def test_a_chip_has_annotations_and_cards_of_its_own() -> None:
    registered = [{"id": "A", "devmem": 65536, "devcore": 24, "type": "Ascend910B2"}]
    annotations = {"hami.io/use-Ascend910B2-uuid": "A", "hami.io/no-use-Ascend910B2-uuid": "B"}

    assert B2.key == "Ascend910B2"
    assert B2.allocated_annotation == "hami.io/Ascend910B2-devices-allocated"
    assert B2.owned_annotations == (
        "hami.io/Ascend910B2-devices-allocated",
        "hami.io/Ascend910B2-devices-to-allocate",
        "huawei.com/Ascend910B2",
    )
    assert B2.constraint(annotations) == CardConstraint(use_uuids=frozenset({"A"}), avoid_uuids=frozenset({"B"}))
    assert B2.cards(node({"hami.io/node-register-Ascend910B2": json.dumps(registered)})) == (
        Card("A", CardKind("Ascend910B2", "", 65536, 24)),
    )
    assert B2.cards(node()) == ()

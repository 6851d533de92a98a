"""What one container asks of the Iluvatar families, their defaults, and the cards of a node."""

from __future__ import annotations

import pytest
from asking import Asked, ask, container, defaults, families, node, world_of
from builders import pod

from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, Ineffective, Unusable
from webhook.errors import DeviceConfigError

COUNT, MEMORY, CORES = "iluvatar.ai/BI-V150-vgpu", "iluvatar.ai/BI-V150.vMem", "iluvatar.ai/BI-V150.vCore"
REGISTER = "hami.io/node-BI-V150-register"


def entry(chip: str) -> dict[str, str]:
    """Return the configuration of a chip."""
    return {
        "chipName": chip,
        "commonWord": chip,
        "resourceCountName": f"iluvatar.ai/{chip}-vgpu",
        "resourceMemoryName": f"iluvatar.ai/{chip}.vMem",
        "resourceCoreName": f"iluvatar.ai/{chip}.vCore",
    }


BOTH = families({"iluvatars": [entry("BI-V150"), entry("MR-V100")]})
BACKEND = BOTH["BI-V150"]
ENV = (("SOL_CONTINER_NAME", "server"),)


def test_each_chip_is_a_family() -> None:
    other = BOTH["MR-V100"]

    assert other.names.count == "iluvatar.ai/MR-V100-vgpu"
    assert other.names.memory_factor == 256
    assert other.allocated_annotation == "hami.io/MR-V100-devices-allocated"
    assert other.owned_annotations == ("hami.io/MR-V100-devices-allocated", "hami.io/MR-V100-devices-to-allocate")


@pytest.mark.parametrize(
    ("config", "want"),
    [
        pytest.param([{"resourceCountName": COUNT}], r"line 2: iluvatars\[0\].commonWord: must name", id="no chip"),
        pytest.param([{"commonWord": ""}], r"line 2: iluvatars\[0\].commonWord: must name", id="an empty chip"),
        pytest.param(entry("BI-V150"), "line 2: iluvatars: must be a list", id="a mapping"),
        pytest.param(
            [
                entry("BI-V150"),
                entry("BI-V150") | {"resourceCountName": "a", "resourceMemoryName": "", "resourceCoreName": ""},
            ],
            "two families are named BI-V150",
            id="one chip twice",
        ),
        pytest.param([entry("BI-V150")] * 2, "two families are named BI-V150", id="one entry twice"),
    ],
)
def test_a_list_that_cannot_be_meant_stops_the_start(config: object, want: str) -> None:
    with pytest.raises(DeviceConfigError, match=want):
        families({"iluvatars": config})


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "1"}, (1, 0, 100, 0), id="a card alone is a whole card without a word on cores"),
        pytest.param({COUNT: "1", MEMORY: "64", CORES: "50"}, (1, 16384, None, 50), id="memory in units of 256 MiB"),
        pytest.param({COUNT: "1", MEMORY: "64.0"}, (1, 16384, None, 0), id="a whole number with a fraction"),
        pytest.param({COUNT: "2", MEMORY: "64"}, (2, 16384, None, 100), id="several cards have their cores"),
        pytest.param({COUNT: "3", MEMORY: "1", CORES: "20"}, (3, 256, None, 100), id="whatever they say"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(BACKEND, limits) == want


@pytest.mark.parametrize(
    ("cores", "want_cores"),
    [
        pytest.param("100", 100, id="a card's"),
        pytest.param("50", 50, id="half of one"),
        pytest.param("150", 100, id="more, of which HAMi books a card's"),
        pytest.param("200", 100, id="those of all cards"),
    ],
)
def test_cores_of_several_cards_that_were_not_defaulted_are_what_hami_books(cores: str, want_cores: int) -> None:
    """HAMi's defaulting looks at limits; a count in requests alone is offline only."""
    assert ask(BACKEND, {}, {COUNT: "2", CORES: cores}) == (2, 0, 100, want_cores)


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "1", MEMORY: "16Ti"}, MEMORY, "units of 256 MiB, e.g. 64, at most 8388607", id="bytes"),
        pytest.param({COUNT: "1", CORES: "-1"}, CORES, "from 0 to 100", id="negative cores"),
        pytest.param({COUNT: "5G"}, COUNT, "cards", id="a count that wraps"),
        pytest.param({COUNT: "1500m"}, COUNT, "cards", id="a fraction of a card"),
        pytest.param({COUNT: "many"}, COUNT, "cards", id="no number"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    refused = ask(BACKEND, limits)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (want_resource, limits[want_resource])
    assert want_accepted in refused.accepted


def test_design_3_more_cores_than_a_card_has_are_refused() -> None:
    """HAMi charges 200 and books 100: neither is what was meant."""
    assert isinstance(ask(BACKEND, {COUNT: "1", MEMORY: "64", CORES: "200"}), Unusable)
    assert isinstance(ask(BACKEND, {}, {COUNT: "2", CORES: "201"}), Unusable)


def test_design_3_a_count_of_0_alone_asks_for_nothing() -> None:
    """HAMi takes the pod over and allocates nothing; nothing is what we charge."""
    assert ask(BACKEND, {COUNT: "0"}) is None


def test_design_3_a_count_of_0_beside_memory_is_refused() -> None:
    """HAMi ignores the memory in silence; whoever writes it expects to get it."""
    refused = ask(BACKEND, {COUNT: "0", MEMORY: "1"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


def test_an_amount_without_a_count_has_no_effect() -> None:
    assert ask(BACKEND, {MEMORY: "16"}) == Ineffective(container="server", resource=MEMORY, count_name=COUNT)


@pytest.mark.parametrize(
    ("limits", "requests", "want"),
    [
        pytest.param({}, {}, Defaults(), id="nothing"),
        pytest.param({}, {COUNT: "2"}, Defaults(), id="a count in requests alone"),
        pytest.param({COUNT: "1"}, {}, Defaults(is_found=True, env=ENV), id="one card"),
        pytest.param(
            {COUNT: "2"}, {COUNT: "2"}, Defaults(is_found=True, env=ENV, limits={CORES: "200"}), id="several cards"
        ),
        pytest.param(
            {COUNT: "10"}, {}, Defaults(is_found=True, env=ENV, limits={CORES: "1k"}), id="as the API server writes it"
        ),
        pytest.param({COUNT: "2", CORES: "200"}, {}, Defaults(is_found=True, env=ENV), id="the right cores"),
        pytest.param({COUNT: "1500m"}, {}, Defaults(is_found=True, env=ENV), id="a count that is refused elsewhere"),
        pytest.param(
            {COUNT: "2", CORES: "20"},
            {COUNT: "2", CORES: "20"},
            Defaults(is_found=True, env=ENV, limits={CORES: "200"}, requests={CORES: "200"}),
            id="D13: a request that HAMi leaves behind, and the API server then refuses",
        ),
    ],
)
def test_what_defaulting_changes(limits: dict[str, str], requests: dict[str, str], want: Defaults) -> None:
    assert defaults(BACKEND, limits, requests) == want


def test_a_container_without_a_name_gets_no_variable() -> None:
    assert BACKEND.defaults(*container({COUNT: "1"}, name="")) == Defaults(is_found=True)


def test_a_family_without_a_core_name_has_none_to_set() -> None:
    backend = families({"iluvatars": [entry("BI-V150") | {"resourceCoreName": ""}]})["BI-V150"]

    assert defaults(backend, {COUNT: "2"}) == Defaults(is_found=True, env=ENV)


def test_d12_the_cores_of_several_cards_are_charged_once() -> None:
    """HAMi writes 100 for each card, charges that for each card again, and books 100 a card."""
    world = world_of(BACKEND, hard={f"limits.{CORES}": "200"})

    assert world.create(pod().app("server", limits={COUNT: "2", MEMORY: "64"})).charge == {
        COUNT: 2,
        MEMORY: 32768,
        CORES: 200,
    }


def test_d1_a_whole_card_is_charged_the_largest_card_of_its_chip() -> None:
    """HAMi charges 0 and books the card later."""
    register = "a,10,32768,100,BI-V150,0,true:"
    world = world_of(BACKEND, node({REGISTER: register}), hard={f"limits.{MEMORY}": "1000"})

    assert world.create(pod().app("server", limits={COUNT: "1"})).charge[MEMORY] == 32768


def test_a_node_registers_cards_of_each_chip() -> None:
    registered = node({REGISTER: "a,10,32768,100,BI-V150,0,true:"})

    assert BACKEND.cards(registered) == (Card("a", CardKind("BI-V150", "hami-core", 32768, 100)),)
    assert BOTH["MR-V100"].cards(registered) == ()


def test_a_pod_names_cards_of_each_chip() -> None:
    annotations = {"hami.io/use-BI-V150-uuid": "a", "hami.io/no-use-BI-V150-uuid": "b"}

    assert BACKEND.constraint(annotations) == CardConstraint(use_uuids=frozenset({"a"}), avoid_uuids=frozenset({"b"}))
    assert BOTH["MR-V100"].constraint(annotations) == CardConstraint()

"""What one container asks of the Hygon family, and the cards of a node."""

from __future__ import annotations

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import pod

from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, DeviceBackend, Ineffective, Unusable
from webhook.errors import DecodeError

COUNT, MEMORY, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"


def backend(memory_factor: int | None = None) -> DeviceBackend:
    """Return the family with a memory factor, or without one."""
    block = {
        "resourceCountName": COUNT,
        "resourceMemoryName": MEMORY,
        "resourceCoreName": CORES,
        "memoryFactor": memory_factor,
    }
    return families({"hygon": block})["DCU"]


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "1"}, (1, 0, 100, 100), id="a card alone is a whole card, its cores included"),
        pytest.param({COUNT: "2", MEMORY: "2000", CORES: "15"}, (2, 2000, None, 15), id="amounts of each card"),
        pytest.param({COUNT: "1", MEMORY: "100", CORES: "0"}, (1, 100, None, 0), id="no cores"),
        pytest.param({COUNT: "1", MEMORY: "0"}, (1, 0, 100, 100), id="memory 0 is a whole card"),
        pytest.param({COUNT: "1", MEMORY: "4096.0"}, (1, 4096, None, 100), id="a whole number with a fraction"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(backend(1), limits) == want


@pytest.mark.parametrize(("factor", "want_mib"), [(None, 2000), (0, 2000), (1, 2000), (2, 4000)])
def test_memory_is_in_units_of_the_factor(factor: int | None, want_mib: int) -> None:
    family = backend(factor)

    assert ask(family, {COUNT: "1", MEMORY: "2k"}) == (1, want_mib, None, 100)
    assert family.names.memory_factor == (factor or 1)


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "1", MEMORY: "16Gi"}, MEMORY, "plain integer, units of 2 MiB, e.g. 8192", id="bytes"),
        pytest.param({COUNT: "1", MEMORY: "1.5"}, MEMORY, "at most 1073741823", id="a fraction, read as a whole card"),
        pytest.param({COUNT: "1", MEMORY: "1073741824"}, MEMORY, "at most 1073741823", id="one unit too many"),
        pytest.param({COUNT: "1", MEMORY: "-1"}, MEMORY, "plain integer", id="negative memory"),
        pytest.param({COUNT: "1", CORES: "101"}, CORES, "from 0 to 100", id="more cores than a card has"),
        pytest.param({COUNT: "1", CORES: "0.5"}, CORES, "from 0 to 100", id="a fraction, read as all cores"),
        pytest.param({COUNT: "1.5"}, COUNT, "cards", id="a fraction of a card"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    refused = ask(backend(2), limits)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (want_resource, limits[want_resource])
    assert want_accepted in refused.accepted


def test_design_3_more_cores_than_a_card_has_are_refused() -> None:
    """HAMi charges 120 and books 100: neither is what was meant."""
    assert isinstance(ask(backend(), {COUNT: "1", MEMORY: "4096", CORES: "120"}), Unusable)


def test_design_3_a_count_of_0_alone_asks_for_nothing() -> None:
    """HAMi takes the pod over and allocates nothing; nothing is what we charge."""
    assert ask(backend(), {COUNT: "0"}) is None


def test_design_3_a_count_of_0_beside_memory_is_refused() -> None:
    """HAMi ignores the memory in silence; whoever writes it expects to get it."""
    refused = ask(backend(), {COUNT: "0", MEMORY: "2000"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


def test_an_amount_without_a_count_has_no_effect() -> None:
    assert ask(backend(), {CORES: "30"}) == Ineffective(container="server", resource=CORES, count_name=COUNT)


def test_a_limit_on_the_count_makes_a_pod_hamis() -> None:
    assert defaults(backend(), {COUNT: "1"}) == Defaults(is_found=True)
    assert defaults(backend(), {MEMORY: "1"}) == Defaults()


def test_d1_a_whole_card_is_charged_the_largest_card_of_a_type_that_the_pod_admits() -> None:
    """HAMi charges 0 and books the card later."""
    cards = "a,4,16384,100,DCU-Z100,0,true:b,4,65536,100,DCU-K100,0,true:"
    world = world_of(backend(), node({REGISTER: cards}), hard={f"limits.{MEMORY}": "1000000"})

    assert world.create(pod("a").app("server", limits={COUNT: "1"})).charge[MEMORY] == 65536
    typed = pod("b").app("server", limits={COUNT: "1"}).annotated({"hygon.com/use-dcutype": "z100"})
    assert world.create(typed).charge[MEMORY] == 16384


def test_a_pod_names_types_and_cards() -> None:
    annotations = {
        "hygon.com/use-dcutype": "Z100,K100",
        "hygon.com/nouse-dcutype": "K100-AI",
        "hygon.com/use-gpuuuid": "a",
        "hygon.com/nouse-gpuuuid": "b,c",
    }

    assert backend().constraint(annotations) == CardConstraint(
        use_models=("z100", "k100"),
        avoid_models=("k100-ai",),
        use_uuids=frozenset({"a"}),
        avoid_uuids=frozenset({"b", "c"}),
    )


def test_a_node_registers_cards() -> None:
    assert backend().cards(node({REGISTER: "a,4,16384,60,DCU-Z100,-1,true,3,mine:"})) == (
        Card("a", CardKind("DCU-Z100", "mine", 16384, 60)),
    )
    assert backend().cards(node()) == ()


@pytest.mark.parametrize(
    ("card", "want"),
    [
        pytest.param("a,4,16384,100,DCU,0,yes", "health 'yes' must be true or false", id="health"),
        pytest.param("a,x,16384,100,DCU,0,true", "count 'x' must be an integer", id="a count"),
        pytest.param("a,4,16384,100,DCU,x,true", "numa 'x' must be an integer", id="a NUMA node"),
        pytest.param("a,4,16384,100,DCU,0,true,-1,m", "index '-1' must be an integer", id="an index"),
    ],
)
def test_a_card_that_hami_cannot_read_is_an_error(card: str, want: str) -> None:
    with pytest.raises(DecodeError, match=f"{REGISTER}.*{want}"):
        backend().cards(node({REGISTER: f"{card}:"}))

"""What one container asks of the AMD family, how its cores are counted, and the cards of a node."""

from __future__ import annotations

import pytest
from asking import Asked, ask, container, defaults, families, node, world_of
from builders import pod

from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, Ineffective, Share, Unusable

COUNT, MEMORY, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
REGISTER = "hami.io/node-amd-register"
ALLOCATED = "hami.io/amd-devices-allocated"
BACKEND = families({"amd": {"resourceCountName": COUNT, "resourceMemoryName": MEMORY, "resourceCoreName": CORES}})[
    "AMD"
]
MI300X = '[{"id": "a", "type": "AMD Instinct MI300X", "devmem": 196608, "devcore": 304, "health": true}]'


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "1"}, (1, 0, None, 100), id="a card alone is a whole card, its cores included"),
        pytest.param({COUNT: "2", MEMORY: "16384", CORES: "25"}, (2, 16384, None, 25), id="amounts of each card"),
        pytest.param({COUNT: "1", MEMORY: "0"}, (1, 0, None, 100), id="memory 0 is a whole card"),
        pytest.param({COUNT: "1", CORES: "1.0"}, (1, 0, None, 1), id="a whole number with a fraction"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(BACKEND, limits) == want


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "1", MEMORY: "16Gi"}, MEMORY, "plain integer, MiB, e.g. 16384", id="bytes"),
        pytest.param({COUNT: "1", CORES: "0"}, CORES, "from 1 to 100", id="no cores"),
        pytest.param({COUNT: "1", CORES: "101"}, CORES, "from 1 to 100", id="more cores than a card has"),
        pytest.param({COUNT: "-2"}, COUNT, "cards", id="a negative count"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    refused = ask(BACKEND, limits)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (want_resource, limits[want_resource])
    assert want_accepted in refused.accepted


def test_hamis_own_error_is_one_of_its_defaulting() -> None:
    refused = defaults(BACKEND, {COUNT: "1", CORES: "150"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (CORES, "150")


def test_design_3_a_count_of_0_alone_asks_for_nothing() -> None:
    """HAMi takes the pod over and allocates nothing; nothing is what we charge."""
    assert ask(BACKEND, {COUNT: "0"}) is None


def test_design_3_a_count_of_0_beside_memory_is_refused() -> None:
    """HAMi ignores the memory in silence; whoever writes it expects to get it."""
    refused = ask(BACKEND, {COUNT: "0", MEMORY: "16384"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


@pytest.mark.parametrize("resource", [MEMORY, CORES])
def test_d21_an_amount_without_a_count_makes_a_pod_hamis_and_has_no_effect(resource: str) -> None:
    """HAMi takes the pod over and allocates nothing; it is warned about, and charged nothing."""
    assert defaults(BACKEND, {resource: "20"}) == Defaults(is_found=True)
    assert ask(BACKEND, {resource: "20"}) == Ineffective(container="server", resource=resource, count_name=COUNT)


def test_d21_unusable_cores_without_a_count_are_refused_all_the_same() -> None:
    """HAMi looks at cores only beside a count; defaulting has its word, and the request is refused."""
    assert defaults(BACKEND, {CORES: "150"}) == Defaults(is_found=True)
    assert isinstance(ask(BACKEND, {CORES: "150"}), Unusable)


def test_design_3_requests_are_not_read() -> None:
    """HAMi counts nothing for them; without limits an API server refuses them, and so does `defaulted` here."""
    assert defaults(BACKEND, {}, {COUNT: "1"}) == Defaults()
    assert BACKEND.request(*container({}, {COUNT: "1", MEMORY: "16384"})) is None
    assert ask(BACKEND, {COUNT: "1"}, {COUNT: "1", MEMORY: "16384"}) == (1, 0, None, 100)


def test_names_that_are_not_configured_are_nobodys() -> None:
    legacy = families({"amd": {"resourceCountName": COUNT}})["AMD"]

    assert ask(legacy, {COUNT: "1", CORES: "0", MEMORY: "16Gi"}) == (1, 0, None, 100)
    assert defaults(legacy, {MEMORY: "1"}) == Defaults()


@pytest.mark.parametrize(
    ("booked", "units", "want_percent"),
    [
        pytest.param(304, 304, 100, id="a whole card"),
        pytest.param(76, 304, 25, id="a quarter"),
        pytest.param(100, 304, 33, id="a third, of which HAMi booked a little less"),
        pytest.param(3, 304, 1, id="one percent, of which HAMi booked a little less"),
        pytest.param(1, 20, 5, id="the one unit that HAMi books at least"),
        pytest.param(0, 304, 0, id="nothing"),
        pytest.param(400, 304, 100, id="more than the card has"),
    ],
)
def test_d20_booked_compute_units_count_in_percent_of_the_card(booked: int, units: int, want_percent: int) -> None:
    """HAMi adds up units against a limit that is written in percent, as requests are."""
    assert BACKEND.counted(8192, booked, CardKind(cores=units)) == Share(8192, want_percent)


@pytest.mark.parametrize(("booked", "want_percent"), [(20, 20), (304, 100)])
@pytest.mark.parametrize("kind", [None, CardKind(cores=0)])
def test_d20_units_of_an_unknown_card_count_as_percent(booked: int, want_percent: int, kind: CardKind | None) -> None:
    """There is nothing to convert by; no more than a whole card can have been booked."""
    assert BACKEND.counted(0, booked, kind) == Share(0, want_percent)


@pytest.mark.parametrize("percent", range(1, 101))
@pytest.mark.parametrize("units", [100, 104, 110, 228, 304])
def test_d20_what_is_booked_counts_no_more_than_what_was_charged(percent: int, units: int) -> None:
    booked = max(units * percent // 100, 1)

    assert BACKEND.counted(0, booked, CardKind(cores=units)).cores_percent <= percent


def test_d20_request_limit_and_use_are_in_percent() -> None:
    world = world_of(BACKEND, node({REGISTER: MI300X}), hard={f"limits.{CORES}": "50"})
    held = pod("a").app("server", limits={COUNT: "1", CORES: "25"}).annotated({ALLOCATED: "a,AMD,196608,76:;"})
    record = world.see(held.annotated({"hami.io/vgpu-node": "n1"}))

    assert record is not None
    assert record.charge == {COUNT: 1, MEMORY: 196608, CORES: 25}
    assert world.admits(pod("b").app("server", limits={COUNT: "1", CORES: "25"}))
    assert not world.admits(pod("c").app("server", limits={COUNT: "1", CORES: "1"}))


def test_d1_a_whole_card_is_charged_the_largest_card_the_pod_could_get() -> None:
    """HAMi charges 0 and books the card later."""
    world = world_of(BACKEND, node({REGISTER: MI300X}), hard={f"limits.{MEMORY}": "1000000"})

    assert world.create(pod().app("server", limits={COUNT: "1"})).charge == {COUNT: 1, MEMORY: 196608, CORES: 100}


def test_a_pod_names_types_and_cards() -> None:
    annotations = {
        "amd.com/use-gputype": "MI300X, MI210",
        "amd.com/nouse-gputype": "MI100",
        "amd.com/use-gpu-uuid": "a",
        "amd.com/nouse-gpu-uuid": "b",
    }

    assert BACKEND.constraint(annotations) == CardConstraint(
        use_models=("mi300x", "mi210"),
        avoid_models=("mi100",),
        use_uuids=frozenset({"a"}),
        avoid_uuids=frozenset({"b"}),
    )


def test_a_node_registers_cards_with_their_compute_units() -> None:
    assert BACKEND.cards(node({REGISTER: MI300X})) == (Card("a", CardKind("AMD Instinct MI300X", "", 196608, 304)),)
    assert BACKEND.cards(node()) == ()

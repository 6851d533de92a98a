"""What one container asks of the Moore Threads family, its defaults, and the cards of a node."""

from __future__ import annotations

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import pod

from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, Ineffective, Unusable

COUNT, MEMORY, CORES = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
BLOCK = {"resourceCountName": COUNT, "resourceMemoryName": MEMORY, "resourceCoreName": CORES}
BACKEND = families({"mthreads": BLOCK})["Mthreads"]
SIZES = "one of 2, 4, 8, 16, 32, 64, 96, units of 512 MiB"


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "1"}, (1, 49152, None, 16), id="a card alone gets all its memory and cores"),
        pytest.param({COUNT: "1", CORES: "8"}, (1, 49152, None, 16), id="whatever cores it says"),
        pytest.param({COUNT: "1", MEMORY: "32"}, (1, 16384, None, 0), id="with memory it gets no cores"),
        pytest.param({COUNT: "1", MEMORY: "32", CORES: "8"}, (1, 16384, None, 8), id="unless it says them"),
        pytest.param({COUNT: "2"}, (2, 49152, None, 16), id="several cards are whole ones"),
        pytest.param({COUNT: "2", MEMORY: "32", CORES: "8"}, (2, 49152, None, 16), id="whatever they say"),
        pytest.param({COUNT: "1", MEMORY: "2000m"}, (1, 1024, None, 0), id="a whole number in thousandths"),
        pytest.param({COUNT: "43690"}, (43690, 49152, None, 16), id="as many as 32 bits can count the memory of"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(BACKEND, limits) == want


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "1", MEMORY: "3"}, MEMORY, SIZES, id="a size that no card is cut into"),
        pytest.param({COUNT: "1", MEMORY: "0"}, MEMORY, SIZES, id="memory 0"),
        pytest.param({COUNT: "1", MEMORY: "2.5"}, MEMORY, SIZES, id="a fraction of memory"),
        pytest.param({COUNT: "1", MEMORY: "2Gi"}, MEMORY, SIZES, id="bytes"),
        pytest.param({COUNT: "1", MEMORY: "16", CORES: "-1"}, CORES, "from 0 to 100, 16 for each card", id="cores"),
        pytest.param({COUNT: "0"}, COUNT, "from 1 to 43690, cards", id="a count of 0, which HAMi refuses"),
        pytest.param({COUNT: "-1"}, COUNT, "from 1 to 43690, cards", id="a negative count"),
        pytest.param({COUNT: "1.5"}, COUNT, "from 1 to 43690, cards", id="a fraction of a card"),
        pytest.param({COUNT: "43691"}, COUNT, "from 1 to 43690, cards", id="memory that 32 bits cannot hold"),
        pytest.param({COUNT: "4294967297"}, COUNT, "from 1 to 43690, cards", id="a count that 32 bits cannot hold"),
        pytest.param({MEMORY: "1.5"}, MEMORY, "units of 512 MiB, e.g. 32, at most 4194303", id="without a count"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    refused = ask(BACKEND, limits)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (want_resource, limits[want_resource])
    assert want_accepted in refused.accepted


def test_design_3_more_cores_than_hami_books_of_a_card_are_refused() -> None:
    """A card has 16, and HAMi clamps to 100 as it does for percent: it charges 101 and books 100."""
    refused = ask(BACKEND, {COUNT: "1", MEMORY: "16", CORES: "101"})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (CORES, "101")


@pytest.mark.parametrize(("resource", "value"), [(MEMORY, "3"), (CORES, "8")])
def test_an_amount_without_a_count_has_no_effect(resource: str, value: str) -> None:
    assert ask(BACKEND, {resource: value}) == Ineffective(container="server", resource=resource, count_name=COUNT)
    assert defaults(BACKEND, {resource: value}) == Defaults()


@pytest.mark.parametrize(
    ("limits", "requests", "want"),
    [
        pytest.param(
            {COUNT: "1"}, {COUNT: "1"}, Defaults(is_found=True, limits={CORES: "16", MEMORY: "96"}), id="one card"
        ),
        pytest.param({COUNT: "1", MEMORY: "32"}, {}, Defaults(is_found=True), id="one card with memory"),
        pytest.param(
            {COUNT: "4"},
            {},
            Defaults(
                is_found=True,
                limits={CORES: "64", MEMORY: "384"},
                annotations={"mthreads.com/request-gpu-num": "4"},
            ),
            id="several cards",
        ),
        pytest.param(
            {COUNT: "2", MEMORY: "192", CORES: "32"},
            {},
            Defaults(is_found=True, annotations={"mthreads.com/request-gpu-num": "2"}),
            id="the right amounts",
        ),
        pytest.param(
            {COUNT: "125"},
            {},
            Defaults(
                is_found=True,
                limits={CORES: "2k", MEMORY: "12k"},
                annotations={"mthreads.com/request-gpu-num": "125"},
            ),
            id="as the API server writes it",
        ),
        pytest.param(
            {},
            {COUNT: "1"},
            Defaults(is_found=True, limits={CORES: "16", MEMORY: "96"}),
            id="a count in requests alone, which HAMi takes here",
        ),
        pytest.param(
            {COUNT: "1", CORES: "8"},
            {COUNT: "1", CORES: "8", MEMORY: "16"},
            Defaults(is_found=True, limits={CORES: "16", MEMORY: "96"}, requests={CORES: "16", MEMORY: "96"}),
            id="D13: requests that HAMi leaves behind, and the API server then refuses",
        ),
    ],
)
def test_what_defaulting_changes(limits: dict[str, str], requests: dict[str, str], want: Defaults) -> None:
    assert defaults(BACKEND, limits, requests) == want


def test_d26_nothing_of_several_cards_is_left_uncounted() -> None:
    """HAMi drops what a count does not divide; what its defaulting writes, a count always divides."""
    world = world_of(BACKEND, hard={f"limits.{MEMORY}": "1k"})

    decision = world.create(pod().app("server", limits={COUNT: "3", MEMORY: "97", CORES: "5"}))

    assert decision.charge == {COUNT: 3, MEMORY: 3 * 49152, CORES: 48}


def test_names_that_are_not_configured_are_nobodys() -> None:
    backend = families({"mthreads": {"resourceCountName": COUNT}})["Mthreads"]

    assert defaults(backend, {COUNT: "1", MEMORY: "3"}) == Defaults(is_found=True)
    assert ask(backend, {COUNT: "2", MEMORY: "3"}) == (2, 0, 100, 0)


@pytest.mark.parametrize(
    ("capacity", "want"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({CORES: "32", MEMORY: "192"}, [49152, 49152], id="two cards"),
        pytest.param({CORES: "24", MEMORY: "96"}, [32768, 32768], id="a rest makes a card too"),
    ],
)
def test_a_node_has_the_cards_that_its_capacity_stands_for(capacity: dict[str, str], want: list[int]) -> None:
    assert BACKEND.cards(node(capacity=capacity)) == tuple(
        Card(f"n1-mthreads-{index}", CardKind("Mthreads", "", memory_mib, 16)) for index, memory_mib in enumerate(want)
    )


def test_a_pod_names_cards() -> None:
    annotations = {"mthreads.ai/use-gpuuuid": "a", "mthreads.ai/nouse-gpuuuid": "b"}

    assert BACKEND.constraint(annotations) == CardConstraint(use_uuids=frozenset({"a"}), avoid_uuids=frozenset({"b"}))


def test_only_hami_writes() -> None:
    """The number of cards is not among them: HAMi's webhook writes it into the pod that is created."""
    assert BACKEND.owned_annotations == (
        "hami.io/mthreads-vgpu-devices-allocated",
        "hami.io/mthreads-vgpu-devices-to-allocate",
        "mthreads.com/gpu-index",
        "mthreads.com/predicate-time",
        "mthreads.com/predicate-node",
    )

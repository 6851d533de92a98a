"""The size that a request without a memory figure is charged, from the cards that nodes register."""

from __future__ import annotations

import pytest
from builders import MEMORY, PodBuilder, World, pod

HALF = pod("a").app("server", pct=50)
WHOLE = pod("a").app("server", gpu=2)


@pytest.fixture
def world() -> World:
    """A world with a quota nobody reaches."""
    world = World()
    world.quota(mem=10_000_000)
    return world


def charge(world: World, subject: PodBuilder) -> int | None:
    """Return the memory charged; None when no size is known."""
    decision = world.create(subject, dry_run=True)
    return None if decision.unsized else decision.charge.get(MEMORY, 0)


def test_without_cards_no_size_is_known(world: World) -> None:
    assert charge(world, HALF) is None


def test_a_share_is_of_the_card_and_per_card(world: World) -> None:
    world.node("node-1", 40000, 40000)

    assert charge(world, HALF) == 20000
    assert charge(world, pod().app("server", gpu=3, pct=50)) == 60000
    assert charge(world, WHOLE) == 80000


def test_a_share_is_rounded_down_as_hami_books_it(world: World) -> None:
    world.node("node-1", 24268)

    assert charge(world, pod().app("server", pct=33)) == 8008


def test_the_largest_card_counts_so_that_nothing_slips_through(world: World) -> None:
    world.node("node-1", 24000)
    world.node("node-2", 40000, 16000)

    assert charge(world, HALF) == 20000


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({}, 40000, id="any card"),
        pytest.param({"nvidia.com/use-gputype": "a100"}, 20000, id="a type"),
        pytest.param({"nvidia.com/nouse-gputype": "H100"}, 20000, id="not a type"),
        pytest.param({"nvidia.com/use-gputype": "T4,A100"}, 20000, id="one of two types"),
        pytest.param({"nvidia.com/use-gpuuuid": "small-gpu-0"}, 8000, id="one card by name"),
        pytest.param({"nvidia.com/use-gpuuuid": "small-gpu-0,middle-gpu-1"}, 20000, id="two cards by name"),
        pytest.param(
            {"nvidia.com/use-gpuuuid": "middle-gpu-0,large-gpu-0", "nvidia.com/nouse-gpuuuid": "large-gpu-0"},
            20000,
            id="two cards by name, one of them avoided",
        ),
        pytest.param({"nvidia.com/nouse-gpuuuid": "large-gpu-0"}, 20000, id="every card of a kind avoided by name"),
        pytest.param({"nvidia.com/nouse-gpuuuid": "middle-gpu-0"}, 40000, id="one card of a kind avoided by name"),
        pytest.param(
            {"nvidia.com/nouse-gpuuuid": "large-gpu-0,middle-gpu-0"}, 20000, id="all of one kind and one of another"
        ),
        pytest.param({"nvidia.com/nouse-gpuuuid": "unknown"}, 40000, id="an unknown card avoided"),
        pytest.param(
            {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gpuuuid": "middle-gpu-0,middle-gpu-1"},
            8000,
            id="a type and cards avoided",
        ),
        pytest.param({"nvidia.com/vgpu-mode": "mig"}, 8000, id="a mode"),
    ],
)
def test_only_cards_that_the_pods_annotations_admit_count(world: World, annotations: dict[str, str], want: int) -> None:
    world.node("large", 80000, model="NVIDIA H100")
    world.node("middle", 40000, 40000, model="NVIDIA A100")
    world.node("small", 16000, model="NVIDIA A100", mode="mig")

    assert charge(world, HALF.annotated(annotations)) == want


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"nvidia.com/use-gputype": "T4"}, id="a type nobody registered"),
        pytest.param({"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "A100"}, id="a contradiction"),
    ],
)
def test_a_pod_that_no_card_can_take_has_no_size(world: World, annotations: dict[str, str]) -> None:
    world.node("node-1", 40000)

    assert charge(world, HALF.annotated(annotations)) is None


def test_a_pod_that_names_unknown_cards_is_sized_by_the_largest_it_could_mean(world: World) -> None:
    """Its card may register any moment, so the largest known one stands in."""
    world.node("node-1", 40000)

    assert charge(world, HALF.annotated({"nvidia.com/use-gpuuuid": "unknown"})) == 20000


def test_a_size_is_kept_while_the_pool_is_scaled_to_zero(world: World) -> None:
    world.node("node-1", 40000)
    world.node("node-1")

    assert charge(world, HALF) == 20000


def test_the_largest_size_once_known_is_kept_only_while_no_card_is_there(world: World) -> None:
    world.node("node-1", 80000)
    world.node("node-1")
    world.node("node-2", 40000)

    assert charge(world, HALF) == 20000


def test_a_kind_that_is_gone_is_remembered_for_whoever_asks_for_it(world: World) -> None:
    world.node("node-1", 80000, model="NVIDIA H100")
    world.node("node-2", 40000, model="NVIDIA A100")
    world.node("node-1", model="NVIDIA H100")

    assert charge(world, HALF.annotated({"nvidia.com/use-gputype": "H100"})) == 40000


def test_a_node_may_change_its_cards(world: World) -> None:
    world.node("node-1", 80000, 40000)
    world.node("node-1", 40000)

    assert charge(world, HALF) == 20000


def test_a_card_that_reports_no_memory_gives_no_size(world: World) -> None:
    world.node("node-1", 0)

    assert charge(world, HALF) is None


def test_a_configured_size_serves_until_a_card_is_registered() -> None:
    world = World(assumed_card_memory_mib={"NVIDIA": 24000})
    world.quota(mem=10_000_000)

    assert charge(world, HALF) == 12000

    world.node("node-1", 40000)
    assert charge(world, HALF) == 20000

    world.node("node-1")
    assert charge(world, HALF) == 20000


def test_memory_that_is_given_needs_no_card(world: World) -> None:
    assert charge(world, pod().app("server", mem=4000, pct=50)) == 4000


def test_two_nodes_that_claim_one_card_do_not_lose_it(world: World) -> None:
    """A node that is renamed may be seen under both names for a while."""
    card = {"nvidia.com/use-gpuuuid": "old-gpu-0"}
    world.node("old", 40000)
    before = world.ledger.inventory
    world.ledger.set_node("new", world.ledger._nodes["old"])
    world.node("old")

    assert charge(world, HALF.annotated(card)) == 20000
    assert world.ledger.inventory.counts == before.counts

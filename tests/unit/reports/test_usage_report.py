"""What is used, split by what holds it, and how tables show it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from builders import MEMORY, World, backends, pod

from webhook.devices.registry import load_backends
from webhook.reports.usage import KeyUse, NamespaceUse, namespace_use, percent
from webhook.reports.usage_text import Format, render

DEVICE_CONFIG = Path(__file__).parents[3] / "examples" / "device-config.yaml"


def use_of(world: World, namespace: str = "team-a") -> NamespaceUse:
    memory = {backend.names.memory for backend in world.rules.backends}
    return namespace_use(world.ledger.view(namespace), world.rules.keys, memory)


def memory_of(world: World, quota: str = "gpu-cap") -> KeyUse:
    [row] = [row for row in use_of(world).keys if row.key.resource == MEMORY and row.quota == quota]
    return row


def split(row: KeyUse) -> dict[str, int]:
    parts = {"allocated": row.allocated, "pending": row.pending, "reserved": row.reserved}
    return {name: amount for name, amount in parts.items() if amount} | (
        {"terminating": row.terminating} if row.terminating else {}
    )


def text(world: World, form: Format = Format.TABLE, *, namespaces: bool = False, pods: bool = False) -> str:
    return render([use_of(world)], world.rules.keys, form, with_namespaces=namespaces, with_pods=pods)


@pytest.fixture
def world() -> World:
    world = World()
    world.quota(mem=8000)
    return world


def test_used_is_split_by_what_holds_it(world: World):
    world.see(pod("placed").app("main", mem=1000).allocated("GPU-a,NVIDIA,1000,0:;"))
    world.see(
        pod("done")
        .init("load", mem=900)
        .app("main", mem=500)
        .statuses(load=0)
        .allocated("GPU-a,NVIDIA,900,0:;GPU-a,NVIDIA,500,0:;")
    )
    world.see(pod("waiting").app("main", mem=300))
    world.see(pod("leaving").app("main", mem=40).allocated("GPU-a,NVIDIA,40,0:;").deleting())
    assert world.admits(pod("new").app("main", mem=7))

    row = memory_of(world)

    assert split(row) == {"allocated": 1540, "pending": 300, "reserved": 7, "terminating": 40}
    assert (row.used, row.limit, row.free, row.percent, row.pods) == (1847, 8000, 6153, 23, 5)


def test_the_split_adds_up_to_what_the_ledger_holds(world: World):
    world.quota("short", mem=500, scopes=["Terminating"])
    world.see(pod("a").app("main", mem=100).spec(activeDeadlineSeconds=1))
    world.see(pod("b").app("main", mem=200))
    world.create(pod("c").app("main", mem=4))

    totals = world.ledger.totals("team-a")

    assert {row.quota: row.used for row in use_of(world).keys} == {
        name: amounts[MEMORY] for name, amounts in totals.items()
    }
    assert split(memory_of(world, "short")) == {"pending": 100}


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        pytest.param(200, 300, {"reserved": 300}, id="the larger one is admitted and not seen"),
        pytest.param(300, 200, {"pending": 300}, id="the larger one is seen"),
        pytest.param(300, 300, {"pending": 300}, id="both ask as much: what is seen is sure"),
    ],
)
def test_of_two_claims_to_one_name_the_larger_counts(world: World, first: int, second: int, want: dict[str, int]):
    world.see(pod("web-0").metadata(uid="old").app("main", mem=first))
    world.create(pod("web-0").metadata(uid="new").app("main", mem=second))

    assert split(memory_of(world)) == want
    assert memory_of(world).used == world.used()
    assert memory_of(world).pods == 1


def test_a_namespace_without_a_quota_shows_what_its_pods_hold():
    world = World()
    world.see(pod("a").app("main", mem=100))

    assert [(row.quota, row.key.resource, row.used, row.limit, row.percent) for row in use_of(world).keys] == [
        (None, "nvidia.com/gpu", 1, None, None),
        (None, MEMORY, 100, None, None),
    ]


def test_figures_stand_in_the_keys_own_unit_each_rounded_up_by_itself():
    world = World(backends(memoryFactor=10))
    world.quota(mem=100)
    world.see(pod("a").app("main", mem=1).allocated("GPU-a,NVIDIA,601,0:;"))
    world.see(pod("b").app("main", mem=1).allocated("GPU-a,NVIDIA,202,0:;"))

    [key] = json.loads(text(world, Format.JSON))["namespaces"][0]["keys"]

    assert (key["used"], key["allocated"], key["limit"], key["free"]) == (81, 81, 100, 19)
    assert key["unit"] == "units of 10 MiB"


@pytest.mark.parametrize(
    ("used", "limit", "want"),
    [
        pytest.param(0, 1000, 0, id="nothing"),
        pytest.param(1, 1000, 1, id="next to nothing is something"),
        pytest.param(574, 1000, 57, id="the nearest percent"),
        pytest.param(999, 1000, 99, id="nearly all is not all"),
        pytest.param(1000, 1000, 100, id="all"),
        pytest.param(1001, 1000, 101, id="a little too much is too much"),
    ],
)
def test_a_percentage_never_hides_that_a_limit_is_met_or_passed(used: int, limit: int, want: int):
    assert percent(Fraction(used, limit)) == want


def test_a_limit_of_zero_has_no_percentage(world: World):
    world.see(pod("a").app("main", mem=1))
    world.quota(mem=0)

    assert (memory_of(world).percent, memory_of(world).free) == (None, 0)


# Pods.


def test_pods_stand_by_their_share_of_the_tightest_memory_limit(world: World):
    world.quota("short", mem=1000, scopes=["Terminating"])
    world.see(pod("large").app("main", mem=4000))
    world.see(pod("tight").app("main", mem=900).spec(activeDeadlineSeconds=1))
    world.see(pod("cards").app("main", gpu=2, mem=0))
    world.see(pod("b").app("main", mem=10))
    world.see(pod("a").app("main", mem=10))

    assert [(item.name, item.percent) for item in use_of(world).pods] == [
        ("tight", 90),
        ("large", 50),
        ("a", 1),
        ("b", 1),
        ("cards", 0),
    ]


def test_a_pod_carries_its_stage_its_end_and_what_is_wrong_with_it(world: World):
    seen = pod("a").app("main", mem=10)
    world.see(seen.allocated("GPU-a,NVIDIA,10,0:;"))
    world.see(seen.allocated("\x1b[31mnonsense").deleting())
    world.create(pod("b").app("main", mem=5))

    first, second = use_of(world).pods

    assert (first.stage, first.terminating_since) == ("allocated", "2026-01-01T00:00:30Z")
    assert first.problem
    assert (second.stage, second.terminating_since, second.problem) == ("reserved", "", "")
    shown = text(world, pods=True)
    assert "TERMINATING SINCE" in shown
    assert all(line.isprintable() for line in shown.splitlines()), "nothing a tenant writes reaches the terminal raw"


# Tables.


def test_a_table_has_the_columns_that_have_something_to_say(world: World):
    world.see(pod("a").app("main", mem=10))
    assert text(world).splitlines() == [
        "QUOTA    RESOURCE           USED  LIMIT  USE  ALLOCATED  PENDING  UNIT",
        "gpu-cap  nvidia.com/gpumem    10   8000   1%          0       10  MiB",
    ]
    world.see(pod("a").app("main", mem=10).deleting())
    assert text(world, namespaces=True).splitlines() == [
        "NAMESPACE  QUOTA    RESOURCE           USED  LIMIT  USE  ALLOCATED  PENDING  TERMINATING  UNIT",
        "team-a     gpu-cap  nvidia.com/gpumem    10   8000   1%          0       10           10  MiB",
    ]


def test_nothing_to_show_is_said():
    assert text(World()) == "Namespace team-a: no quota on HAMi's resources, and no pod that holds any."
    assert text(World(), namespaces=True).startswith("All namespaces: ")


def test_resources_of_two_families_with_one_bare_name_keep_their_domains():
    world = World(load_backends(DEVICE_CONFIG.read_text(encoding="utf-8")))
    world.see(pod("a").app("main", mem=10, limits={"amd.com/gpu": "1"}))

    heading = text(world, pods=True).splitlines()[-2]

    assert "nvidia.com/gpu cards" in heading
    assert "amd.com/gpu cards" in heading
    assert "GPUMEM MiB" in heading

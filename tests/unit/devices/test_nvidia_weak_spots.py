"""Where HAMi's answer for NVIDIA is a weak spot and the design leaves ours open: one test a kind, with the reason.

The cases of the vectors that carry one of these tags without the design's answer are left out there.
"""

from __future__ import annotations

from typing import Any

import pytest
from builders import CORES, COUNT, MEMORY, World, backends, pod
from test_nvidia import ask

from webhook.admission import Verdict
from webhook.defaulting import Refusal, defaulted
from webhook.devices.base import Unusable


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param({"mem": 0}, id="memory 0"),
        pytest.param({"pct": 0}, id="percentage 0"),
        pytest.param({"mem": 0, "cores": 0}, id="memory 0 and cores 0"),
        pytest.param({"gpu": 2, "mem": 0}, id="memory 0 on several cards"),
        pytest.param({"pct": 0, "cores": 10}, id="percentage 0 with cores"),
    ],
)
def test_d7_memory_0_and_percentage_0_are_whole_cards(asks: dict[str, Any]) -> None:
    """HAMi charges 0 for them and books the whole card later; we charge what will be booked.

    The cores that go with an exclusive card are not added, since HAMi's defaulting does not add them: the record is
    HAMi's.
    """
    cards = asks.get("gpu", 1)
    world = World()
    world.node("node-1", 40000)
    world.quota(mem=1_000_000)

    assert ask(**asks) == (cards, 0, 100, asks.get("cores", 0))
    assert world.create(pod().app("server", **asks)).charge[MEMORY] == 40000 * cards


@pytest.mark.parametrize("asks", [{"mem": 0}, {"pct": 0}, {"gpu": 1}, {"cores": 20}])
def test_d9_the_default_memory_is_mib_whatever_the_factor(asks: dict[str, Any]) -> None:
    """HAMi scales what is asked and what is limited by the factor, and not the default; what it books is our charge."""
    world = World(backends(defaultMemory=1500, memoryFactor=2))
    world.quota(mem=750)

    decision = world.create(pod("a").app("server", **asks))

    assert decision.charge[MEMORY] == 1500
    assert decision.is_allowed
    assert world.create(pod("b").app("server", **asks)).verdict is Verdict.EXCEEDED


def test_design_3_a_count_of_0_alone_asks_for_nothing() -> None:
    """HAMi takes the pod over, adds the cores of a whole card, and allocates nothing; nothing is what we charge."""
    world = World()
    world.quota(mem=0, cores=0, gpu=0)

    decision = world.create(pod().app("server", gpu=0))

    assert decision.is_allowed
    assert not decision.charge


def test_design_3_a_count_of_0_beside_memory_is_refused() -> None:
    """HAMi ignores the memory in silence; whoever writes it expects to get it."""
    world = World()

    decision = world.create(pod().app("server", gpu=0, mem=3000))

    assert decision.verdict is Verdict.INVALID
    assert COUNT in decision.problems[0]


def test_design_3_more_cores_than_a_card_has_are_refused() -> None:
    """HAMi charges 120 and books 100: neither is what was meant."""
    refused = ask(mem=4096, cores=120)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (CORES, "120")


def test_design_3_what_stands_in_requests_alone_is_refused() -> None:
    """HAMi counts nothing; an API server refuses such a pod before admission, so this is offline only."""
    refused = defaulted(pod().app("server", requests={MEMORY: "1000"}).build(), backends())

    assert isinstance(refused, Refusal)
    [problem] = refused.problems
    assert problem.startswith("container server: nvidia.com/gpumem '1000' cannot be used: a limit must be set")

"""The laws of the formula, one test each."""

from __future__ import annotations

from builders import MEMORY, PodBuilder, backends
from hypothesis import assume, given
from hypothesis import strategies as st

from property.strategies import CARDS, allocations, claims, figures, pods, statuses
from webhook.effective import Claim, ContainerKind, busiest_moment, effective, steady_state
from webhook.inventory import Inventory
from webhook.pod_request import PodRequest, pod_request
from webhook.resources import add, largest
from webhook.usage import UsageRules, next_record

Claims = list[Claim[str]]

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP

ANY_CLAIM = claims().filter(bool).flatmap(st.sampled_from)


def at_least(left: dict[str, int], right: dict[str, int]) -> bool:
    """Return whether `left` is at least `right`, key by key."""
    return all(left.get(key, 0) >= amount for key, amount in right.items())


def total(several: Claims) -> dict[str, int]:
    """Return the sum of all claims, whatever their kind."""
    amounts: dict[str, int] = {}
    for claim in several:
        amounts = add(amounts, claim.amounts)
    return amounts


def without_zeros(amounts: dict[str, int]) -> dict[str, int]:
    """Return amounts without those that are 0."""
    return {key: amount for key, amount in amounts.items() if amount}


@given(claims())
def test_it_is_the_largest_of_the_moments_that_a_pod_lives_through(several: Claims) -> None:
    """Written from the lives of the containers, not by a running sum: who runs while each entry runs, and at last."""
    moments = [
        total([*(other for other in several[:number] if other.kind is SIDECAR), claim])
        for number, claim in enumerate(several)
        if claim.kind is INIT
    ]
    moments.append(total([claim for claim in several if claim.kind is not INIT]))
    most: dict[str, int] = {}
    for moment in moments:
        most = largest(most, moment)

    assert without_zeros(effective(several)) == without_zeros(most)


@given(claims(), st.randoms())
def test_the_order_of_apps_is_irrelevant(several: Claims, random) -> None:
    apps = [claim for claim in several if claim.kind is APP]
    random.shuffle(apps)
    shuffled = [claim for claim in several if claim.kind is not APP] + apps

    assert effective(shuffled) == effective(several)


@given(claims(), ANY_CLAIM, st.data())
def test_adding_a_container_never_lowers_it(several: Claims, added: Claim[str], data) -> None:
    entries = sum(claim.kind is not APP for claim in several)
    first, last = (entries, len(several)) if added.kind is APP else (0, entries)
    position = data.draw(st.integers(first, last))
    more = [*several[:position], added, *several[position:]]

    assert at_least(effective(more), effective(several))
    assert at_least(steady_state(more), steady_state(several))


@given(claims(), ANY_CLAIM, st.data())
def test_a_container_that_asks_nothing_changes_nothing(several: Claims, added: Claim[str], data) -> None:
    entries = sum(claim.kind is not APP for claim in several)
    first, last = (entries, len(several)) if added.kind is APP else (0, entries)
    position = data.draw(st.integers(first, last))
    idle = Claim(container="idle", kind=added.kind, amounts={})

    assert effective([*several[:position], idle, *several[position:]]) == effective(several)


@given(claims())
def test_it_is_at_least_each_claim(several: Claims) -> None:
    needed = effective(several)

    assert all(at_least(needed, dict(claim.amounts)) for claim in several)


@given(claims())
def test_it_is_at_most_the_sum(several: Claims) -> None:
    assert at_least(total(several), effective(several))


@given(claims(init_kinds=(SIDECAR,)))
def test_without_init_containers_it_is_the_sum(several: Claims) -> None:
    assert without_zeros(effective(several)) == without_zeros(total(several))


@given(claims(init_kinds=(INIT,)))
def test_without_sidecars_it_is_the_larger_of_the_largest_init_container_and_the_apps(several: Claims) -> None:
    peak: dict[str, int] = {}
    for claim in several:
        if claim.kind is INIT:
            peak = largest(peak, claim.amounts)
    apps = total([claim for claim in several if claim.kind is APP])

    assert without_zeros(effective(several)) == without_zeros(largest(peak, apps))


@given(claims(), st.integers(1, 1000))
def test_scaling_commutes(several: Claims, factor: int) -> None:
    """The customer applies the factor once to the result; we apply it where a value is read. They are one."""
    scaled = [
        Claim(
            container=claim.container,
            kind=claim.kind,
            amounts={key: amount * factor for key, amount in claim.amounts.items()},
        )
        for claim in several
    ]

    assert effective(scaled) == {key: amount * factor for key, amount in effective(several).items()}


@given(claims(), st.data())
def test_moving_a_sidecar_earlier_never_lowers_it(several: Claims, data) -> None:
    movable = [number for number, claim in enumerate(several) if claim.kind is SIDECAR]
    assume(movable)
    old = data.draw(st.sampled_from(movable))
    new = data.draw(st.integers(0, old))
    moved = several.copy()
    moved.insert(new, moved.pop(old))

    assert at_least(effective(moved), effective(several))
    assert steady_state(moved) == steady_state(several)


@given(claims())
def test_making_an_init_container_a_sidecar_never_lowers_it(several: Claims) -> None:
    everyone = [
        Claim(container=claim.container, kind=SIDECAR if claim.kind is INIT else claim.kind, amounts=claim.amounts)
        for claim in several
    ]

    assert at_least(effective(everyone), effective(several))


@given(claims(), claims())
def test_larger_claims_never_lower_it(several: Claims, others: Claims) -> None:
    grown = [
        Claim(container=claim.container, kind=claim.kind, amounts=add(claim.amounts, other.amounts))
        for claim, other in zip(several, others, strict=False)
    ]

    assert at_least(effective([*grown, *several[len(grown) :]]), effective(several))


@given(claims(), figures)
def test_keys_do_not_see_each_other(several: Claims, amount: int) -> None:
    others = [
        Claim(container=claim.container, kind=claim.kind, amounts={**claim.amounts, "other": amount})
        for claim in several
    ]
    needed = effective(others)
    needed.pop("other", None)

    assert needed == effective(several)


@given(claims(keys=CARDS))
def test_the_total_by_card_is_at_least_the_total_by_name(several: Claims) -> None:
    by_name = [
        Claim(container=claim.container, kind=claim.kind, amounts={"mem": sum(claim.amounts.values())})
        for claim in several
    ]

    assert sum(effective(several).values()) >= effective(by_name).get("mem", 0)


@given(claims())
def test_the_steady_state_is_at_most_the_peak(several: Claims) -> None:
    assert at_least(effective(several), steady_state(several))


@given(claims())
def test_the_steady_state_is_what_is_left_without_init_containers(several: Claims) -> None:
    left = [claim for claim in several if claim.kind is not INIT]

    assert without_zeros(steady_state(several)) == without_zeros(total(left))


@given(claims(), st.sampled_from(("mem", "cores", "cards")))
def test_the_busiest_moment_adds_up_to_it(several: Claims, key: str) -> None:
    moment = busiest_moment(several, key)

    assert sum(claim.amounts[key] for claim in moment) == effective(several).get(key, 0)
    assert all(claim.amounts[key] for claim in moment)
    assert sum(claim.kind is INIT for claim in moment) <= 1


@given(claims())
def test_the_claims_given_stay_as_they_were(several: Claims) -> None:
    before = [dict(claim.amounts) for claim in several]

    effective(several)
    steady_state(several)

    assert [dict(claim.amounts) for claim in several] == before


# Pods.


def request(subject: PodBuilder, factor: int) -> PodRequest:
    """Return what a pod asks for under a memory factor."""
    asked = pod_request(subject.build(), backends(memoryFactor=factor), Inventory(), {})
    assert isinstance(asked, PodRequest)
    return asked


@given(pods(), st.integers(1, 100))
def test_the_memory_factor_enters_once(subject: PodBuilder, factor: int) -> None:
    once, scaled = request(subject, 1), request(subject, factor)

    assert scaled.charge.get(MEMORY, 0) == factor * once.charge.get(MEMORY, 0)
    assert {**scaled.charge, MEMORY: 0} == {**once.charge, MEMORY: 0}


@given(st.data())
def test_a_pods_shrunk_figure_is_at_most_its_collapsed_one(data) -> None:
    subject = data.draw(pods())
    rules = UsageRules(backends=backends(), assumed_card_memory_mib={})
    allocated = subject.allocated(data.draw(allocations(subject)))

    record = next_record(None, allocated.statuses(**data.draw(statuses(subject))).build(), rules, Inventory())

    assert record is not None
    assert at_least(dict(record.figure.peak), dict(record.figure.steady))
    assert dict(record.charge) in (record.figure.peak, record.figure.steady)

"""The formula, situation by situation. Its laws are under tests/property."""

from __future__ import annotations

import pytest
from builders import MEMORY, PodBuilder, backends, pod

from webhook.effective import Claim, ContainerKind, busiest_moment, effective, kinds, steady_state
from webhook.inventory import Inventory
from webhook.pod_request import PodRequest, pod_request

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def walk(text: str) -> list[Claim[str]]:
    """Return claims on one key: `i5000 s1000 a2000`, in declaration order."""
    letters = {"i": INIT, "s": SIDECAR, "a": APP}
    return [
        Claim(container=entry, kind=letters[entry[0]], amounts={"mem": int(entry[1:])} if entry[1:] != "0" else {})
        for entry in text.split()
    ]


@pytest.mark.parametrize(
    ("order", "want", "want_steady"),
    [
        pytest.param("s2000 i20000 a10000", 22000, 12000, id="a sidecar runs beside the init container behind it"),
        pytest.param("i20000 s2000 a10000", 20000, 12000, id="and not beside the one before it"),
        pytest.param(
            "i5000 s1000 i6000 s3000 i4000 a2000 a1500", 8000, 7500, id="inits and sidecars interleaved, two apps"
        ),
        pytest.param("s10240 a10240", 20480, 20480, id="sidecar and app on one card run together"),
        pytest.param("s4000 a4000", 8000, 8000, id="a sidecar is added, not max-ed away"),
        pytest.param("i20480 s2048 a10240", 20480, 12288, id="init container first"),
        pytest.param("s2048 i20480 a10240", 22528, 12288, id="sidecar first"),
        pytest.param("i6000 i7000 a5000", 7000, 5000, id="init containers run one after the other"),
        pytest.param("a4000 a3001", 7001, 7001, id="apps run together"),
        pytest.param("s1000 s2000 s3000", 6000, 6000, id="sidecars alone"),
        pytest.param("i6000", 6000, 0, id="an init container alone"),
        pytest.param("s5000 i1000", 6000, 5000, id="a sidecar and an init container, nothing after"),
        pytest.param("i0 a16000 a16000", 32000, 32000, id="an init container that asks nothing shifts nobody"),
        pytest.param("s0 i0 a0", 0, 0, id="nobody asks"),
        pytest.param("", 0, 0, id="no containers"),
    ],
)
def test_a_pod_needs_what_runs_together_at_its_busiest_moment(order: str, want: int, want_steady: int) -> None:
    claims = walk(order)

    assert effective(claims).get("mem", 0) == want
    assert steady_state(claims).get("mem", 0) == want_steady


def test_each_key_peaks_on_its_own() -> None:
    """The maxima are taken key by key: memory may peak in the init phase and cores after it."""
    claims = [
        Claim(container="load", kind=INIT, amounts={"mem": 9000, "cores": 10}),
        Claim(container="proxy", kind=SIDECAR, amounts={"mem": 1000, "cores": 20}),
        Claim(container="server", kind=APP, amounts={"mem": 2000, "cores": 30}),
    ]

    assert effective(claims) == {"mem": 9000, "cores": 50}
    assert steady_state(claims) == {"mem": 3000, "cores": 50}


def test_an_init_container_and_an_app_on_two_cards_are_less_by_name_than_by_card() -> None:
    by_name = [
        Claim(container="i", kind=INIT, amounts={"mem": 8}),
        Claim(container="a", kind=APP, amounts={"mem": 8}),
    ]
    by_card = [
        Claim(container="i", kind=INIT, amounts={"GPU-0": 8}),
        Claim(container="a", kind=APP, amounts={"GPU-1": 8}),
    ]

    assert sum(effective(by_name).values()) == 8
    assert sum(effective(by_card).values()) == 16


def test_amounts_beyond_64_bits_do_not_wrap() -> None:
    assert effective(walk(f"s{2**63} a{2**63}")) == {"mem": 2**64}


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(pod().sidecar("c"), SIDECAR, id="an init entry with restartPolicy Always"),
        pytest.param(pod().init("c"), INIT, id="an init entry without restartPolicy"),
        pytest.param(pod().init("c", restart_policy="OnFailure"), INIT, id="an init entry with OnFailure"),
        pytest.param(pod().init("c", restart_policy="Never"), INIT, id="an init entry with Never"),
        pytest.param(pod().init("c", restart_policy="always"), INIT, id="an init entry with always in small letters"),
        pytest.param(pod().init("c", restart_policy=""), INIT, id="an init entry with an empty restartPolicy"),
        pytest.param(
            pod().init("c").spec(restartPolicy="Always"), INIT, id="the pod's own restartPolicy plays no part"
        ),
        pytest.param(pod().app("c"), APP, id="an entry of containers"),
    ],
)
def test_a_container_is_of_the_kind_its_list_and_its_own_restart_policy_say(
    subject: PodBuilder, want: ContainerKind
) -> None:
    [(kind, container)] = kinds(subject.build())

    assert (kind, container.name) == (want, "c")


def test_an_app_with_a_restart_policy_of_its_own_stays_an_app() -> None:
    document = pod().app("c").document
    document["spec"]["containers"][0]["restartPolicy"] = "Always"

    [(kind, _)] = kinds(pod().spec(**document["spec"]).build())

    assert kind is APP


def test_kinds_come_in_declaration_order_init_entries_first() -> None:
    subject = pod().app("a1").init("i1").sidecar("s1").init("i2").app("a2").build()

    assert [(str(kind), container.name) for kind, container in kinds(subject)] == [
        ("init", "i1"),
        ("sidecar", "s1"),
        ("init", "i2"),
        ("app", "a1"),
        ("app", "a2"),
    ]


@pytest.mark.parametrize(
    ("order", "want"),
    [
        pytest.param("s2000 i20000 a10000", ["s2000", "i20000"], id="the sidecars before an init container, and it"),
        pytest.param("i20000 s2000 a10000", ["i20000"], id="the init container alone"),
        pytest.param("i1000 s2000 a10000", ["s2000", "a10000"], id="sidecars and apps"),
        pytest.param("i12000 s2000 a10000", ["s2000", "a10000"], id="the steady state, where both need the same"),
        pytest.param("i7 i7 a1", ["i7"], id="the first of several init containers"),
        pytest.param("i0 s0 a5", ["a5"], id="without those that ask nothing"),
        pytest.param("s1 i0", ["s1"], id="an init container that asks nothing makes no moment"),
        pytest.param("", [], id="nobody"),
    ],
)
def test_the_containers_of_the_busiest_moment_are_named(order: str, want: list[str]) -> None:
    claims = walk(order)

    moment = busiest_moment(claims, "mem")

    assert [claim.container for claim in moment] == want
    assert sum(claim.amounts["mem"] for claim in moment) == effective(claims).get("mem", 0)


@pytest.mark.parametrize(
    ("subject", "want", "want_steady"),
    [
        pytest.param(
            pod().sidecar("proxy", mem=2000).init("load", mem=20000).app("server", mem=10000),
            22000,
            12000,
            id="sidecar, init, app",
        ),
        pytest.param(
            pod().init("load", mem=20000).sidecar("proxy", mem=2000).app("server", mem=10000),
            20000,
            12000,
            id="init, sidecar, app",
        ),
        pytest.param(
            pod()
            .init("i1", mem=5000)
            .sidecar("s1", mem=1000)
            .init("i2", mem=6000)
            .sidecar("s2", mem=3000)
            .init("i3", mem=4000)
            .app("a1", mem=2000)
            .app("a2", mem=1500),
            8000,
            7500,
            id="interleaved",
        ),
        pytest.param(
            pod().sidecar("proxy", mem=1000, gpu=2).app("server", mem=3000, gpu=4),
            14000,
            14000,
            id="several cards each",
        ),
    ],
)
def test_a_pods_memory_is_walked_by_resource_name(subject: PodBuilder, want: int, want_steady: int) -> None:
    request = pod_request(subject.build(), backends(), Inventory(), {})

    assert isinstance(request, PodRequest)
    assert request.charge[MEMORY] == want
    assert request.steady[MEMORY] == want_steady

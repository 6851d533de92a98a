"""What one container asks of whole and of shared MetaX cards, and the cards of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import PodBuilder, pod

from webhook.admission import Verdict
from webhook.defaulting import Refusal, defaulted
from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, DeviceRequest, Ineffective, Unusable
from webhook.errors import DecodeError

WHOLE = "metax-tech.com/gpu"
COUNT, MEMORY, CORES = "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"
APP_CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
REGISTER = "metax-tech.com/node-gpu-devices"
CONFIG = {
    "resourceCountName": WHOLE,
    "resourceVCountName": COUNT,
    "resourceVMemoryName": MEMORY,
    "resourceVCoreName": CORES,
}
FAMILIES = families({"metax": CONFIG})
CARDS, SHARED = FAMILIES["Metax-GPU"], FAMILIES["Metax-SGPU"]


def in_pod(limits: dict[str, str], **annotations: str) -> PodBuilder:
    """Return a pod of one container with annotations, `app` and `qos`."""
    named = {"app": APP_CLASS, "qos": QOS}
    return pod().annotated({named[key]: value for key, value in annotations.items()}).app("server", limits=limits)


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "1"}, (1, 0, 100, 100), id="a card alone is a whole card, its cores included"),
        pytest.param({COUNT: "1", MEMORY: "0"}, (1, 0, 100, 100), id="memory 0 is a whole card"),
        pytest.param({COUNT: "2", MEMORY: "8", CORES: "30"}, (2, 8192, None, 30), id="memory in GiB"),
        pytest.param({COUNT: "1", MEMORY: "16Gi"}, (1, 16384, None, 100), id="memory in bytes, binary"),
        pytest.param({COUNT: "1", MEMORY: "16G"}, (1, 15258, None, 100), id="memory in bytes, decimal"),
        pytest.param({COUNT: "1", MEMORY: "1.5Gi"}, (1, 1536, None, 100), id="a fraction of a unit"),
        pytest.param({COUNT: "1", MEMORY: "0Gi"}, (1, 0, 100, 100), id="no bytes"),
        pytest.param({COUNT: "1", MEMORY: "16.0"}, (1, 16384, None, 100), id="a whole number with a fraction"),
        pytest.param({COUNT: "1", CORES: "0"}, (1, 0, 100, 0), id="no cores"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(SHARED, limits) == want


@pytest.mark.parametrize(
    ("text", "want_mib"),
    [
        pytest.param("64000", 64000 * 1024, id="plain"),
        pytest.param("64k", 64000 * 1024, id="as the API server writes it"),
        pytest.param("1e3", 1000 * 1024, id="scientific"),
        pytest.param("1024", 1024 * 1024, id="no multiple of 1000 in any case"),
    ],
)
def test_d14_a_multiple_of_1000_is_gibibytes_like_any_number(text: str, want_mib: int) -> None:
    """HAMi takes the `k` for a unit, reads bytes, gets 0 MiB, and gives a whole card away for nothing."""
    assert ask(SHARED, {COUNT: "1", MEMORY: text}) == (1, want_mib, None, 100)


@pytest.mark.parametrize(
    ("limits", "want_resource"),
    [
        pytest.param({COUNT: "1", MEMORY: "512Ki"}, MEMORY, id="less than 1 MiB, a whole card to HAMi (D14)"),
        pytest.param({COUNT: "1", MEMORY: "1.5"}, MEMORY, id="a fraction, a whole card to HAMi (D4)"),
        pytest.param({COUNT: "1", MEMORY: "2097152"}, MEMORY, id="one GiB too many"),
        pytest.param({COUNT: "1", MEMORY: "4Pi"}, MEMORY, id="more bytes than 32 bits of MiB hold"),
        pytest.param({COUNT: "1", MEMORY: "-1Gi"}, MEMORY, id="negative memory"),
        pytest.param({COUNT: "1", MEMORY: "much"}, MEMORY, id="memory that is no number"),
        pytest.param({COUNT: "1", CORES: "33.3"}, CORES, id="a fraction of a percent, 100 to HAMi"),
        pytest.param({COUNT: "1", CORES: "150"}, CORES, id="more cores than a card has"),
        pytest.param({COUNT: "2147483648"}, COUNT, id="a count that 32 bits cannot hold"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str) -> None:
    refused = ask(SHARED, limits)

    assert isinstance(refused, Unusable)
    assert (refused.container, refused.resource, refused.value) == ("server", want_resource, limits[want_resource])


def test_design_3_a_count_of_0_alone_asks_for_nothing() -> None:
    """HAMi takes the pod over and allocates nothing; nothing is what we charge."""
    assert ask(SHARED, {COUNT: "0"}) is None
    assert ask(SHARED, {COUNT: "0", CORES: "0"}) is None


@pytest.mark.parametrize("limits", [{MEMORY: "4"}, {CORES: "30"}])
def test_design_3_a_count_of_0_beside_amounts_is_refused(limits: dict[str, str]) -> None:
    """HAMi ignores the amounts in silence; whoever writes them expects to get them."""
    refused = ask(SHARED, {COUNT: "0"} | limits)

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (COUNT, "0")


def test_an_amount_without_a_count_has_no_effect() -> None:
    assert ask(SHARED, {CORES: "30"}) == Ineffective(container="server", resource=CORES, count_name=COUNT)


def test_design_3_what_stands_in_requests_alone_is_refused() -> None:
    """HAMi reads limits alone, and counts nothing; an API server refuses such a pod before admission."""
    assert ask(SHARED, {}, {COUNT: "1"}) is None
    refused = defaulted(pod().app("server", requests={COUNT: "1"}).build(), [SHARED])

    assert isinstance(refused, Refusal)
    assert "a limit must be set for an extended resource that is requested" in refused.problems[0]


def test_memory_in_requests_alone_is_not_looked_at() -> None:
    assert ask(SHARED, {COUNT: "1"}, {COUNT: "1", MEMORY: "16"}) == (1, 0, 100, 100)


def test_d15_an_online_pod_is_charged_no_cores() -> None:
    """HAMi charges 100 at admission and books none."""
    world = world_of(SHARED, hard={f"limits.{CORES}": "50"})

    assert world.create(in_pod({COUNT: "1", MEMORY: "4"}, app="online")).charge == {COUNT: 1, MEMORY: 4096}
    assert world.create(in_pod({COUNT: "1", MEMORY: "4"}, app="offline")).verdict is Verdict.EXCEEDED


@pytest.mark.parametrize(
    ("annotations", "limits", "want"),
    [
        pytest.param({}, {}, Defaults(), id="a container that asks for none"),
        pytest.param({}, {COUNT: "1"}, Defaults(is_found=True, annotations={QOS: "best-effort"}), id="the default"),
        pytest.param({"qos": "fixed-share"}, {COUNT: "1"}, Defaults(is_found=True), id="what is said stays"),
        pytest.param({"app": "online"}, {COUNT: "1"}, Defaults(is_found=True), id="nothing for an online pod"),
        pytest.param({"app": "online", "qos": "x"}, {COUNT: "1"}, Defaults(is_found=True), id="whatever it says"),
        pytest.param(
            {"app": "offline"},
            {COUNT: "1"},
            Defaults(is_found=True, annotations={QOS: "best-effort"}),
            id="an offline pod",
        ),
    ],
)
def test_hami_gives_a_quality_of_service_to_a_pod_that_says_none(
    annotations: dict[str, str], limits: dict[str, str], want: Defaults
) -> None:
    subject = in_pod(limits, **annotations).build()

    assert SHARED.defaults(subject.spec.containers[0], subject) == want


@pytest.mark.parametrize(
    ("annotations", "count", "want"),
    [
        pytest.param(
            {"qos": ""},
            "1",
            f"annotation {QOS} '' cannot be used: one of best-effort, fixed-share, burst-share",
            id="an empty quality of service",
        ),
        pytest.param(
            {"app": "Online"},
            "1",
            f"annotation {APP_CLASS} 'Online' cannot be used: one of online, offline",
            id="an unknown class",
        ),
        pytest.param(
            {"app": "offline"},
            "2",
            f"{COUNT} '2' cannot be used: 1 card in a pod with the annotation {APP_CLASS}",
            id="two cards in a pod with a class",
        ),
        pytest.param(
            {"app": "online"},
            "some",
            f"{COUNT} 'some' cannot be used: 1 card in a pod with the annotation {APP_CLASS}",
            id="a count that is no number",
        ),
    ],
)
def test_what_hami_refuses_is_refused(annotations: dict[str, str], count: str, want: str) -> None:
    subject = in_pod({COUNT: count}, **annotations).build()

    assert str(SHARED.defaults(subject.spec.containers[0], subject)) == f"container server: {want}"


def registered(*cards: dict[str, Any]) -> Any:
    """Return a node that registers cards in MetaX's own form."""
    return node({REGISTER: json.dumps(cards)})


def test_a_nodes_cards_are_in_metax_own_registration() -> None:
    cards = SHARED.cards(
        registered({"uuid": "G0", "totalVRam": 65536, "totalCompute": 100, "model": "MXC500"}, {"UUID": "G1"})
    )

    assert cards == (
        Card("G0", CardKind(model="Metax-SGPU", memory_mib=65536, cores=100)),
        Card("G1", CardKind(model="Metax-SGPU", memory_mib=0, cores=0)),
    )


@pytest.mark.parametrize("annotations", [{}, {REGISTER: ""}, {REGISTER: "null"}, {REGISTER: "[]"}])
def test_a_node_without_cards(annotations: dict[str, str]) -> None:
    assert SHARED.cards(node(annotations)) == ()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[", id="half a list"),
        pytest.param("[" * 100_000, id="a deep list"),
        pytest.param("{}", id="an object"),
        pytest.param("[1]", id="a list of numbers"),
        pytest.param('[{"uuid": 1}]', id="a UUID that is a number"),
        pytest.param('[{"totalVRam": "1"}]', id="memory that is a text"),
        pytest.param('[{"totalVRam": true}]', id="memory that is a boolean"),
        pytest.param('[{"totalVRam": -1}]', id="negative memory"),
        pytest.param('[{"totalCompute": 2147483648}]', id="cores beyond 32 bits"),
    ],
)
def test_a_registration_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(DecodeError, match=REGISTER) as caught:
        SHARED.cards(node({REGISTER: text}))

    assert len(str(caught.value)) < 500


def test_d1_a_whole_shared_card_is_charged_the_largest_card_the_pod_could_get() -> None:
    """HAMi charges 0 and books the card later."""
    cards = [{"uuid": "small", "totalVRam": 32768}, {"uuid": "large", "totalVRam": 65536}]
    world = world_of(SHARED, registered(*cards), hard={f"limits.{MEMORY}": "1k"})

    assert world.create(pod("a").app("server", limits={COUNT: "1"})).charge[MEMORY] == 65536
    avoiding = pod("b").annotated({"metax-tech.com/nouse-gpuuuid": "large"}).app("server", limits={COUNT: "2"})
    assert world.create(avoiding).charge[MEMORY] == 65536


def test_shared_cards_are_in_force_only_where_their_count_has_a_name() -> None:
    assert families({"metax": {"resourceCountName": WHOLE, "resourceVMemoryName": MEMORY}}).keys() >= {"Metax-GPU"}
    assert "Metax-SGPU" not in families({"metax": {"resourceCountName": WHOLE, "resourceVMemoryName": MEMORY}})
    assert families({"metax": {"resourceVCountName": COUNT}}).keys() >= {"Metax-SGPU"}
    assert "Metax-GPU" not in families({"metax": {"resourceVCountName": COUNT}})


def test_whole_cards_are_counted() -> None:
    assert ask(CARDS, {}) is None
    assert ask(CARDS, {WHOLE: "4"}) == (4, 0, 100, 100)
    assert ask(CARDS, {WHOLE: "0"}) is None
    assert isinstance(ask(CARDS, {WHOLE: "1.5"}), Unusable)
    assert defaults(CARDS, {WHOLE: "1"}) == Defaults(is_found=True)
    assert defaults(CARDS, {}, {WHOLE: "1"}) == Defaults()


def test_d28_the_count_of_whole_cards_can_be_limited() -> None:
    """HAMi exposes no name that could be, for this family and four others."""
    world = world_of(CARDS, hard={f"limits.{WHOLE}": "4"})

    assert world.admits(pod("a").app("server", limits={WHOLE: "3"}))
    assert world.create(pod("b").app("server", limits={WHOLE: "2"})).verdict is Verdict.EXCEEDED


def test_whole_cards_are_the_nodes_capacity() -> None:
    kind = CardKind(model="Metax-GPU", memory_mib=65536, cores=100)

    assert CARDS.cards(node(capacity={WHOLE: "2"})) == (Card("n1-metax-0", kind), Card("n1-metax-1", kind))


@pytest.mark.parametrize("capacity", [None, {}, {WHOLE: "0"}, {WHOLE: "1500m"}, {WHOLE: "-1"}, {WHOLE: "some"}])
def test_a_node_without_whole_cards(capacity: dict[str, str] | None) -> None:
    assert CARDS.cards(node(capacity=capacity)) == ()


def test_a_capacity_that_no_node_has_is_an_error() -> None:
    with pytest.raises(DecodeError, match=f"status.capacity of {WHOLE}: 4097 is more than the 4096 a node can have"):
        CARDS.cards(node(capacity={WHOLE: "4097"}))


@pytest.mark.parametrize("backend", [CARDS, SHARED], ids=lambda backend: backend.key)
def test_a_pod_names_cards(backend: Any) -> None:
    annotations = {"metax-tech.com/use-gpuuuid": "a, b", "metax-tech.com/nouse-gpuuuid": "c"}

    assert backend.constraint(annotations) == CardConstraint(
        use_uuids=frozenset({"a", "b"}), avoid_uuids=frozenset({"c"})
    )
    assert backend.constraint({}) == CardConstraint()


def test_what_is_recorded_counts_as_it_is() -> None:
    request = DeviceRequest(cards=1, memory_mib=0, memory_percent=100, cores_percent=30)

    assert SHARED.counted(4096, 30, None) == (4096, 30)
    assert SHARED.share(request, CardKind(memory_mib=65536)) == (65536, 30)

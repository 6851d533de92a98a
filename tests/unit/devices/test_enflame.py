"""What one container asks of whole Enflame cards and of slices, and what the slices of registered cards are worth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import ask, container, defaults, families, node, world_of
from builders import World, pod

from webhook.admission import Verdict
from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, DeviceRequest, Unusable
from webhook.devices.enflame import SliceRequest
from webhook.errors import DecodeError

WHOLE, COUNT = "enflame.com/gcu", "enflame.com/drs-gcu"
MEMORY, CORES = "enflame.com/gcu-memory", "enflame.com/gcu-core"
REGISTER = "enflame.com/gcu-drs-capacity"
NVIDIA = {"nvidia": {"resourceCountName": "nvidia.com/gpu"}}
FAMILIES = families(
    {
        "enflame": {
            "resourceNameGCU": WHOLE,
            "resourceNameDRSGCU": COUNT,
            "resourceNameGCUMemory": MEMORY,
            "resourceNameGCUCore": CORES,
        }
    }
)
CARDS, SLICES = FAMILIES["GCU"], FAMILIES["Enflame"]
PROFILES = {"1g.8gb": "0", "3g.24gb": "1", "6g.48gb": "2"}
KIND = CardKind(model="Enflame", memory_mib=49152, cores=100, profiles=((1, 8 * 1024), (3, 24 * 1024), (6, 48 * 1024)))


def registered(*devices: dict[str, Any], profiles: Any = PROFILES, name: str = "n1") -> Any:
    """Return a node with devices that can be cut into profiles; one device where none are given."""
    spec = {"devices": devices or [{"index": "0", "minor": "0", "capacity": 6}], "profiles": profiles}
    return node({REGISTER: json.dumps(spec)}, name=name)


def slice_request(limits: dict[str, str], requests: dict[str, str] | None = None) -> Any:
    """Return what a container asks for after defaulting: size, memory as asked and cores, or why it cannot."""
    asking, its_pod = container(limits, requests)
    changes = SLICES.defaults(asking, its_pod)
    if isinstance(changes, Unusable):
        return changes
    request = SLICES.request(asking.with_defaults(changes.limits, changes.requests), its_pod)
    if not isinstance(request, SliceRequest):
        return request
    assert (request.cards, request.memory_by_card, request.cores_by_card) == (1, True, True)
    return request.slices, request.memory_asked, request.cores_percent


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({COUNT: "2"}, (2, 0, 0), id="a slice by its size"),
        pytest.param({MEMORY: "12"}, (0, 12, 0), id="by its memory"),
        pytest.param({CORES: "25"}, (0, 0, 25), id="by its cores"),
        pytest.param({MEMORY: "12288", CORES: "25"}, (0, 12288, 25), id="by both"),
        pytest.param({COUNT: "2", MEMORY: "24", CORES: "100"}, (2, 0, 0), id="the size goes before both"),
        pytest.param({COUNT: "2", MEMORY: "0", CORES: "0"}, (2, 0, 0), id="whatever they say"),
        pytest.param({COUNT: "1.0"}, (1, 0, 0), id="a whole number with a fraction"),
    ],
)
def test_a_container_asks_for_one_slice(limits: dict[str, str], want: tuple[int, int, int] | None) -> None:
    assert slice_request(limits) == want


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "0"}, COUNT, "from 1 to 2147483647, slices of one card", id="no slice, refused by HAMi"),
        pytest.param({COUNT: "-2"}, COUNT, "slices of one card", id="a negative size"),
        pytest.param({COUNT: "0.5"}, COUNT, "slices of one card", id="half a slice, nothing to HAMi"),
        pytest.param({COUNT: "3Gi"}, COUNT, "slices of one card", id="a size that 32 bits cannot hold"),
        pytest.param({COUNT: "some"}, COUNT, "slices of one card", id="a size that is no number"),
        pytest.param({MEMORY: "0"}, MEMORY, "GB or MiB, e.g. 12 or 12288", id="no memory, refused by HAMi"),
        pytest.param({MEMORY: "2Gi"}, MEMORY, "GB or MiB", id="bytes, nothing to HAMi"),
        pytest.param({MEMORY: "500m"}, MEMORY, "GB or MiB", id="a fraction, rounded up by HAMi (design-3)"),
        pytest.param({CORES: "0"}, CORES, "from 1 to 100, percent of a card's cores", id="no cores, refused by HAMi"),
        pytest.param({CORES: "101"}, CORES, "from 1 to 100", id="more cores than a card has"),
        pytest.param({CORES: "33.3"}, CORES, "from 1 to 100", id="a fraction of a percent"),
        pytest.param({COUNT: "1", MEMORY: "1.5"}, MEMORY, "GB or MiB", id="memory that HAMi does not look at"),
        pytest.param({COUNT: "1", CORES: "-1"}, CORES, "from 1 to 100", id="cores that HAMi does not look at"),
    ],
)
def test_what_cannot_be_used_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    refused = slice_request(limits)

    assert isinstance(refused, Unusable)
    assert (refused.container, refused.resource, refused.value) == ("server", want_resource, limits[want_resource])
    assert want_accepted in refused.accepted


@pytest.mark.parametrize(
    ("limits", "requests", "want"),
    [
        pytest.param({}, None, Defaults(), id="nothing"),
        pytest.param(
            {COUNT: "2"}, None, Defaults(is_found=True, requests={COUNT: "2"}), id="limits are copied to requests"
        ),
        pytest.param({}, {COUNT: "2"}, Defaults(is_found=True, limits={COUNT: "2"}), id="and requests to limits"),
        pytest.param({COUNT: "2"}, {COUNT: "2"}, Defaults(is_found=True), id="where it is missing"),
        pytest.param(
            {MEMORY: "12"},
            {CORES: "25"},
            Defaults(is_found=True, limits={CORES: "25"}, requests={MEMORY: "12"}),
            id="memory and cores, each from where it stands",
        ),
        pytest.param(
            {COUNT: "2", MEMORY: "12"},
            None,
            Defaults(is_found=True, requests={COUNT: "2"}),
            id="not beside a size",
        ),
    ],
)
def test_hami_lays_what_is_asked_over_limits_and_requests(
    limits: dict[str, str], requests: dict[str, str] | None, want: Defaults
) -> None:
    assert defaults(SLICES, limits, requests) == want


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({COUNT: "1"}, (8192, 17), id="the smallest, its cores rounded up"),
        pytest.param({COUNT: "6"}, (49152, 100), id="all of a card"),
        pytest.param({COUNT: "2"}, None, id="a size that no profile has"),
        pytest.param({MEMORY: "8"}, (8192, 17), id="GB that fill a profile"),
        pytest.param({MEMORY: "9"}, (24576, 50), id="GB that need the next one"),
        pytest.param({MEMORY: "96"}, None, id="GB up to twice the largest profile, more than a card has"),
        pytest.param({MEMORY: "97"}, (8192, 17), id="more is MiB"),
        pytest.param({MEMORY: "8193"}, (24576, 50), id="MiB, rounded up to GB"),
        pytest.param({MEMORY: "65536"}, None, id="more MiB than a card has"),
        pytest.param({CORES: "17"}, (8192, 17), id="cores that fill a profile"),
        pytest.param({CORES: "18"}, (24576, 50), id="cores that need the next one"),
        pytest.param({MEMORY: "8", CORES: "51"}, (49152, 100), id="the first that has both"),
    ],
)
def test_d16_a_slice_is_worth_what_the_card_is_cut_to(limits: dict[str, str], want: tuple[int, int] | None) -> None:
    """HAMi charges the number as it was asked, slices, GB or MiB, and books the profile's MiB and percent."""
    request = SLICES.request(*container(limits))

    assert isinstance(request, DeviceRequest)
    assert SLICES.share(request, KIND) == want


def test_d16_slices_are_charged_in_mib_at_admission_too() -> None:
    world = world_of(SLICES, registered(), hard={f"limits.{MEMORY}": "30000", f"limits.{CORES}": "200"})

    assert world.create(pod("a").app("server", limits={COUNT: "3"})).charge == {COUNT: 1, MEMORY: 24576, CORES: 50}
    assert world.create(pod("b").app("server", limits={MEMORY: "8"})).verdict is Verdict.EXCEEDED


def test_d16_slices_of_unknown_size_are_refused_where_memory_or_cores_are_limited() -> None:
    """HAMi compares the number of slices with the limit in MiB."""
    for resource in (MEMORY, CORES):
        world = world_of(SLICES, hard={f"limits.{resource}": "100000"})

        assert world.create(pod().app("server", limits={COUNT: "6"})).verdict is Verdict.UNSIZED
    world = world_of(SLICES, hard={f"limits.{COUNT}": "1"})
    assert world.create(pod("a").app("server", limits={COUNT: "6"})).charge == {COUNT: 1}
    assert world.create(pod("b").app("server", limits={COUNT: "1"})).verdict is Verdict.EXCEEDED


def test_of_a_card_whose_size_is_configured_the_whole_is_charged() -> None:
    world = World([SLICES], assumed_card_memory_mib={"Enflame": 49152})
    world.quota(hard={f"limits.{MEMORY}": "100000"})

    assert world.create(pod().app("server", limits={COUNT: "1"})).charge == {COUNT: 1, MEMORY: 49152, CORES: 100}


def test_only_requests_of_the_family_have_a_share() -> None:
    other = DeviceRequest(cards=1, memory_mib=0, memory_percent=None, cores_percent=0)

    assert SLICES.share(other, KIND) is None


def test_a_card_whose_profiles_state_no_memory_gives_nothing() -> None:
    [card] = SLICES.cards(registered(profiles={"6g.x": "2"}))
    request = SLICES.request(*container({COUNT: "6"}))

    assert isinstance(request, DeviceRequest)
    assert SLICES.share(request, card.kind) is None


@pytest.mark.parametrize(
    ("profiles", "want_profiles", "want_mib"),
    [
        pytest.param(PROFILES, KIND.profiles, 49152, id="sizes and memory"),
        pytest.param({" 3G.24GB.me ": "1"}, ((3, 24576),), 24576, id="any letter case, blanks and a suffix"),
        pytest.param({"1g": "0", "6g.x": "2"}, ((6, 0),), 6144, id="no memory: the largest size stands for GB"),
        pytest.param({"2.16": "0", "g.8gb": "1", "0g.8gb": "2"}, ((2, 16384),), 16384, id="units may be missing"),
        pytest.param({"1g.8gb": "0", "6g.-1gb": "1"}, ((1, 8192), (6, 0)), 8192, id="memory below 0 is none"),
    ],
)
def test_profiles_are_read_from_their_names(
    profiles: dict[str, str], want_profiles: tuple[tuple[int, int], ...], want_mib: int
) -> None:
    [card] = SLICES.cards(registered(profiles=profiles))

    assert card == Card("n1-enflame-drs-0", CardKind("Enflame", "", want_mib, 100, want_profiles))


def test_cards_are_read_from_enflames_own_registration() -> None:
    devices = ({"Index": "3", "Capacity": "6"}, {"index": "x", "capacity": 6.5}, {"capacity": 1})

    assert SLICES.cards(registered(*devices)) == (
        Card("n1-enflame-drs-3", KIND),
        Card("n1-enflame-drs-1", KIND),
        Card("n1-enflame-drs-2", KIND),
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="half an object"),
        pytest.param("[" * 100_000, id="a deep list"),
        pytest.param("null", id="null"),
        pytest.param("[]", id="a list"),
        pytest.param('{"devices": {}}', id="no profile"),
        pytest.param('{"devices": 1, "profiles": {"1g.8gb": "0"}}', id="devices that are no list"),
        pytest.param('{"devices": [], "profiles": ["1g.8gb"]}', id="profiles that are a list"),
        pytest.param('{"devices": [1], "profiles": {"1g.8gb": "0"}}', id="a device that is a number"),
        pytest.param('{"devices": [{}], "profiles": {"1g.8gb": "0"}}', id="no capacity"),
        pytest.param('{"devices": [{"capacity": "x"}], "profiles": {"1g.8gb": "0"}}', id="a capacity of words"),
        pytest.param('{"devices": [{"capacity": true}], "profiles": {"1g.8gb": "0"}}', id="a capacity of true"),
        pytest.param('{"devices": [{"capacity": NaN}], "profiles": {"1g.8gb": "0"}}', id="a capacity of NaN"),
        pytest.param('{"devices": [{"capacity": 1, "index": 1}], "profiles": {"1g.8gb": "0"}}', id="a number as index"),
        pytest.param('{"devices": [], "profiles": {"1g.999999999gb": "0"}}', id="a card beyond 32 bits"),
    ],
)
def test_a_registration_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(DecodeError, match=REGISTER) as caught:
        SLICES.cards(node({REGISTER: text}))

    assert len(str(caught.value)) < 500


def test_a_node_without_registration_has_no_cards() -> None:
    assert SLICES.cards(node()) == ()


@pytest.mark.parametrize(
    ("block", "want"),
    [
        pytest.param({}, (COUNT, MEMORY, CORES), id="no block at all"),
        pytest.param(
            {"enflame": {"resourceNameVGCU": "enflame.com/vgcu"}},
            ("enflame.com/vgcu", MEMORY, CORES),
            id="the older count name",
        ),
        pytest.param(
            {
                "enflame": {
                    "resourceNameVGCU": "a.b/old",
                    "resourceNameDRSGCU": "a.b/new",
                    "resourceNameGCUCore": "a.b/c",
                }
            },
            ("a.b/new", MEMORY, "a.b/c"),
            id="the newer one goes before it",
        ),
    ],
)
def test_d29_slices_have_built_in_names(block: dict[str, Any], want: tuple[str, str, str]) -> None:
    """As in HAMi: a pod that asks for them is placed, so it is charged."""
    backend = families(NVIDIA | block)["Enflame"]

    assert backend.managed_resources == want
    assert (backend.names.count, backend.names.memory, backend.names.cores) == want
    assert backend.names.memory_factor == 1


def test_whole_cards_are_in_force_only_where_they_have_a_name() -> None:
    assert "GCU" not in families(NVIDIA)


def test_whole_cards_are_counted_and_are_the_nodes_capacity() -> None:
    world = world_of(CARDS, hard={f"limits.{WHOLE}": "2"})

    assert ask(CARDS, {WHOLE: "2"}) == (2, 100, 100, 100)
    assert CARDS.cards(node(capacity={WHOLE: "1"})) == (Card("n1-GCU-0", CardKind("GCU", "", 100, 100)),)
    assert world.create(pod().app("server", limits={WHOLE: "3"})).verdict is Verdict.EXCEEDED


def test_pods_name_cards_of_slices_alone() -> None:
    annotations = {"enflame.com/use-gpuuuid": "a", "enflame.com/nouse-gpuuuid": "b"}

    assert SLICES.constraint(annotations) == CardConstraint(use_uuids=frozenset({"a"}), avoid_uuids=frozenset({"b"}))
    assert CARDS.constraint(annotations) == CardConstraint()


def test_a_percentage_of_the_older_kind_is_nobodys() -> None:
    assert ask(SLICES, {"enflame.com/vgcu-percentage": "50"}) is None

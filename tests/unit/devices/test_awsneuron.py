"""What one container asks of the AWS Neuron family, and the devices of a node."""

from __future__ import annotations

from typing import Any

import pytest
from asking import Asked, ask, defaults, families, node, world_of
from builders import World, pod

from webhook.admission import Verdict
from webhook.devices.base import Card, CardConstraint, CardKind, Defaults, DeviceRequest, Unusable
from webhook.errors import DecodeError

COUNT, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
BACKEND = families({"awsneuron": {"resourceCountName": COUNT, "resourceCoreName": CORES}})["AWSNeuron"]


def devices(count: int, cores: int, *, name: str = "n1") -> Any:
    """Return a node with some devices and cores in all."""
    return node(capacity={COUNT: str(count), CORES: str(cores)}, name=name)


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({CORES: "1"}, (1, 0, None, 1), id="one core of a device"),
        pytest.param({CORES: "2"}, (1, 0, None, 2), id="two cores of a device"),
        pytest.param({CORES: "8"}, (4, 0, None, 2), id="cores two by two"),
        pytest.param({CORES: "4294967294"}, (2147483647, 0, None, 2), id="the most cores"),
        pytest.param({COUNT: "3"}, (3, 0, None, 0), id="devices, whose cores depend on the device"),
        pytest.param({COUNT: "1", CORES: "100"}, (1, 0, None, 0), id="the count goes before cores"),
        pytest.param({COUNT: "1", CORES: "0"}, (1, 0, None, 0), id="whatever they say"),
        pytest.param({COUNT: "2.0"}, (2, 0, None, 0), id="a whole number with a fraction"),
    ],
)
def test_a_container_asks_for(limits: dict[str, str], want: Asked | None) -> None:
    assert ask(BACKEND, limits) == want


@pytest.mark.parametrize(
    ("limits", "want_resource", "want_accepted"),
    [
        pytest.param({COUNT: "0"}, COUNT, "plain integer from 1 to 2147483647", id="no device, refused by HAMi"),
        pytest.param({COUNT: "-2"}, COUNT, "from 1 to 2147483647", id="a negative count"),
        pytest.param({COUNT: "500m"}, COUNT, "from 1 to 2147483647", id="half a device"),
        pytest.param({COUNT: "8589934592"}, COUNT, "from 1 to 2147483647", id="more than 32 bits hold"),
        pytest.param({CORES: "0"}, CORES, "from 1 to 4294967294", id="no cores, refused by HAMi"),
        pytest.param({CORES: "many"}, CORES, "from 1 to 4294967294", id="cores that are no number"),
        pytest.param({CORES: "3"}, CORES, "1 core, or a multiple of 2", id="cores that fill no devices"),
        pytest.param({COUNT: "0", CORES: "2"}, COUNT, "from 1 to 2147483647", id="no device beside cores"),
    ],
)
def test_what_hami_refuses_is_refused(limits: dict[str, str], want_resource: str, want_accepted: str) -> None:
    for refused in (ask(BACKEND, limits), defaults(BACKEND, limits)):
        assert isinstance(refused, Unusable)
        assert (refused.container, refused.resource, refused.value) == ("server", want_resource, limits[want_resource])
        assert want_accepted in refused.accepted


@pytest.mark.parametrize("cores", ["-50", "4294967346", "0.5"])
def test_design_3_cores_that_are_no_number_of_cores_are_refused_beside_a_count_too(cores: str) -> None:
    """HAMi does not look at them; a number that means nothing is a mistake, whoever looks."""
    refused = ask(BACKEND, {COUNT: "1", CORES: cores})

    assert isinstance(refused, Unusable)
    assert (refused.resource, refused.value) == (CORES, cores)


def test_a_count_or_cores_make_a_pod_hamis_in_requests_too() -> None:
    assert defaults(BACKEND, {COUNT: "1"}) == Defaults(is_found=True)
    assert defaults(BACKEND, {}, {CORES: "1"}) == Defaults(is_found=True)
    assert defaults(BACKEND, {}) == Defaults()


def test_d19_devices_are_charged_the_cores_that_nodes_register() -> None:
    """HAMi charges the cores of the first node it saw, and 0 before; the largest device is what the pod could get."""
    world = world_of(BACKEND, devices(4, 8), devices(2, 16, name="n2"), hard={f"limits.{CORES}": "20"})

    assert world.create(pod("a").app("server", limits={COUNT: "2"})).charge == {COUNT: 2, CORES: 16}
    named = pod("b").annotated({"aws.amazon.com/use-neuron-uuid": "n1-AWSNeuron-0,n1-AWSNeuron-1"})
    assert world.create(named.app("server", limits={COUNT: "2"})).charge == {COUNT: 2, CORES: 4}


def test_d19_devices_of_unknown_cores_are_refused_where_cores_are_limited() -> None:
    """Sized like a percentage: neither 0 nor a guess. A size in memory says nothing of cores."""
    world = World([BACKEND], assumed_card_memory_mib={"AWSNeuron": 16384})
    world.quota(hard={f"limits.{CORES}": "20", f"limits.{COUNT}": "4"})

    assert world.create(pod("a").app("server", limits={COUNT: "1"})).verdict is Verdict.UNSIZED
    assert world.create(pod("b").app("server", limits={CORES: "4"})).charge == {COUNT: 2, CORES: 4}


def test_d18_cores_are_charged_as_a_plain_number() -> None:
    world = world_of(BACKEND, hard={f"limits.{CORES}": "8"})

    assert world.create(pod("a").sidecar("s", limits={CORES: "1"}).app("b", limits={CORES: "4"})).charge[CORES] == 5
    assert world.admits(pod("b").app("server", limits={CORES: "2"}))
    assert world.create(pod("c").app("server", limits={CORES: "2"})).verdict is Verdict.EXCEEDED


@pytest.mark.parametrize(
    ("mask", "want"),
    [
        pytest.param(0, 0, id="none"),
        pytest.param(1, 1, id="the first core"),
        pytest.param(2, 1, id="the second core, 2 to HAMi"),
        pytest.param(3, 2, id="both, 3 to HAMi"),
        pytest.param(255, 8, id="a device of eight, 255 to HAMi"),
    ],
)
def test_d18_booked_cores_are_counted_by_the_bits_of_the_mask(mask: int, want: int) -> None:
    assert BACKEND.counted(0, mask, None) == (0, want)


def test_without_a_name_for_cores_devices_are_counted_alone() -> None:
    backend = families({"awsneuron": {"resourceCountName": COUNT}})["AWSNeuron"]
    world = world_of(backend, hard={f"limits.{COUNT}": "4"})

    assert backend.managed_resources == (COUNT,)
    assert world.create(pod().app("server", limits={COUNT: "2"})).charge == {COUNT: 2}


@pytest.mark.parametrize(
    ("capacity", "want"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({CORES: "4"}, [], id="cores without devices"),
        pytest.param({COUNT: "2", CORES: "4"}, [3, 3], id="two cores each"),
        pytest.param({COUNT: "2", CORES: "16"}, [255, 255], id="eight cores each"),
        pytest.param({COUNT: "2", CORES: "5"}, [3, 3], id="a rest is nobody's"),
        pytest.param({COUNT: "2"}, [0, 0], id="no cores"),
    ],
)
def test_a_nodes_devices_are_its_capacity_and_their_cores_a_mask(capacity: dict[str, str], want: list[int]) -> None:
    assert BACKEND.cards(node(capacity=capacity)) == tuple(
        Card(f"n1-AWSNeuron-{index}", CardKind("AWSNeuron", "", 0, mask)) for index, mask in enumerate(want)
    )


@pytest.mark.parametrize("capacity", [{COUNT: "1", CORES: "32"}, {COUNT: "100000"}, {COUNT: "1", CORES: "100000"}])
def test_a_capacity_that_no_node_has_is_an_error(capacity: dict[str, str]) -> None:
    with pytest.raises(DecodeError, match=r"status.capacity of aws.amazon.com/neuron"):
        BACKEND.cards(node(capacity=capacity))


def test_a_device_without_cores_cannot_size_a_request() -> None:
    request = DeviceRequest(cards=1, memory_mib=0, memory_percent=None, cores_percent=0, cores_by_card=True)

    assert BACKEND.share(request, CardKind(model="AWSNeuron")) is None
    assert BACKEND.share(request, CardKind(model="AWSNeuron", cores=3)) == (0, 2)


def test_a_pod_names_devices() -> None:
    annotations = {"aws.amazon.com/use-neuron-uuid": "a", "aws.amazon.com/nouse-neuron-uuid": "b"}

    assert BACKEND.constraint(annotations) == CardConstraint(use_uuids=frozenset({"a"}), avoid_uuids=frozenset({"b"}))

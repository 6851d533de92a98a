"""The codec of the allocation annotations, and at which containers devices are laid."""

from __future__ import annotations

import json

import pytest
from builders import ALLOCATED, PodBuilder, pod

from webhook.allocation import (
    Allocated,
    MigAllocation,
    decode_mig_allocations,
    decode_segments,
    devices_by_container,
    encode_segments,
)
from webhook.errors import InvalidAllocation

A = Allocated(uuid="GPU-a", type="NVIDIA", memory=1000, cores=30)
B = Allocated(uuid="GPU-b", type="NVIDIA", memory=2000, cores=0)
TEXT_A = "GPU-a,NVIDIA,1000,30:"
TEXT_B = "GPU-b,NVIDIA,2000,0:"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(";", [[]], id="one container without devices"),
        pytest.param(";;;", [[], [], []], id="three of them"),
        pytest.param(f"{TEXT_A};", [[A]], id="one card"),
        pytest.param(f"{TEXT_A}{TEXT_B};", [[A, B]], id="two cards"),
        pytest.param(f"{TEXT_A}{TEXT_A};", [[A, A]], id="one card twice"),
        pytest.param(f";{TEXT_A};", [[], [A]], id="an empty segment counts as a position"),
        pytest.param(f"{TEXT_A};;{TEXT_B};", [[A], [], [B]], id="in the middle"),
        pytest.param(f"{TEXT_A};;", [[A], []], id="at the end"),
    ],
)
def test_a_text_and_its_segments_are_one(text: str, want: list[list[Allocated]]) -> None:
    assert decode_segments(ALLOCATED, text) == want
    assert encode_segments(want) == text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(TEXT_A, [[A]], id="without the last semicolon"),
        pytest.param("GPU-a,NVIDIA,1000,30", [[A]], id="without any separator"),
        pytest.param(f"::{TEXT_A}::;", [[A]], id="with empty pieces"),
        pytest.param("GPU-a,NVIDIA,1000,30,more:;", [[A]], id="with a fifth field"),
        pytest.param("GPU-a,NVIDIA,+1000,+030:;", [[A]], id="with signs and leading zeros"),
        pytest.param("", [[]], id="empty, which is one container without devices"),
    ],
)
def test_other_spellings_are_read_too(text: str, want: list[list[Allocated]]) -> None:
    assert decode_segments(ALLOCATED, text) == want


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param("GPU-a,NVIDIA,1000", id="three fields"),
        pytest.param("garbage", id="no comma, which HAMi skips in silence (A19)"),
        pytest.param("GPU-a,NVIDIA,,30", id="no memory"),
        pytest.param("GPU-a,NVIDIA,1000,", id="no cores"),
        pytest.param("GPU-a,NVIDIA,-1,30", id="negative memory, which HAMi subtracts (A35)"),
        pytest.param("GPU-a,NVIDIA,1,-30", id="negative cores"),
        pytest.param("GPU-a,NVIDIA,2147483648,0", id="memory beyond 32 bits"),
        pytest.param("GPU-a,NVIDIA,0,99999999999", id="cores far beyond 32 bits"),
        pytest.param("GPU-a,NVIDIA,1e3,0", id="scientific memory"),
        pytest.param("GPU-a,NVIDIA, 1,0", id="a blank"),
        pytest.param("GPU-a,NVIDIA,1_0,0", id="an underscore"),
        pytest.param("GPU-a,NVIDIA,٣,0", id="a digit of another script"),
        pytest.param("GPU-a,NVIDIA,1\n,0", id="a newline"),
    ],
)
def test_what_is_no_device_does_not_decode_and_the_annotation_is_named(piece: str) -> None:
    with pytest.raises(InvalidAllocation, match=r"^hami\.io/vgpu-devices-allocated: ") as caught:
        decode_segments(ALLOCATED, f"{TEXT_A};{piece}:;")

    assert isinstance(caught.value, ValueError)


def test_an_error_does_not_repeat_a_long_text() -> None:
    with pytest.raises(InvalidAllocation) as caught:
        decode_segments(ALLOCATED, "x" * 100_000)

    assert len(str(caught.value)) < 300


THREE = pod().init("load").sidecar("proxy").app("server")


@pytest.mark.parametrize(
    ("subject", "asking", "text", "want"),
    [
        pytest.param(THREE, ["load", "proxy"], f"{TEXT_A};{TEXT_B};;", [(A,), (B,), ()], id="init entries first"),
        pytest.param(THREE, ["proxy", "server"], f";{TEXT_A};{TEXT_B};", [(), (A,), (B,)], id="with empty segments"),
        pytest.param(
            THREE, ["proxy", "server"], f"{TEXT_A};{TEXT_B};", [(), (A,), (B,)], id="without empty segments (A13)"
        ),
        pytest.param(THREE, ["server"], f"{TEXT_A}{TEXT_B};", [(), (), (A, B)], id="one segment, two cards"),
        pytest.param(THREE, [], ";;;", [(), (), ()], id="nothing was asked and nothing given"),
        pytest.param(
            pod().app("a").app("b").app("c"),
            ["b"],
            f",,0,0:;{TEXT_A};,,0,0:;",
            [(), (A,), ()],
            id="placeholders stand for no device",
        ),
        pytest.param(
            pod().app("a"), ["a"], ",NVIDIA,0,0:;", [(Allocated("", "NVIDIA", 0, 0),)], id="a card without UUID"
        ),
    ],
)
def test_devices_are_laid_at_containers_in_order(
    subject: PodBuilder, asking: list[str], text: str, want: list[tuple[Allocated, ...]]
) -> None:
    assert devices_by_container(ALLOCATED, text, subject.build(), asking) == want


@pytest.mark.parametrize(
    ("asking", "text"),
    [
        pytest.param(["proxy", "server"], f";{TEXT_A};;", id="an empty segment"),
        pytest.param(["proxy", "server"], f";{TEXT_A};,,0,0:;", id="a placeholder"),
        pytest.param(["proxy", "server"], f"{TEXT_A};;", id="an empty segment where empty ones are left out"),
        pytest.param(["server"], f"{TEXT_A};;;", id="the device at another position"),
    ],
)
def test_a_container_that_asks_and_is_given_no_device_does_not_decode(asking: list[str], text: str) -> None:
    with pytest.raises(InvalidAllocation, match="gives container server no device"):
        devices_by_container(ALLOCATED, text, THREE.build(), asking)


@pytest.mark.parametrize(
    ("asking", "text"),
    [
        pytest.param(["proxy", "server"], f"{TEXT_A};", id="too few"),
        pytest.param(["proxy", "server"], f"{TEXT_A};;;{TEXT_B};", id="too many"),
        pytest.param([], f"{TEXT_A};", id="one more than was asked"),
    ],
)
def test_a_number_of_segments_that_fits_neither_layout_does_not_decode(asking: list[str], text: str) -> None:
    with pytest.raises(InvalidAllocation, match=r"segments for 3 containers, of which \d ask for the family"):
        devices_by_container(ALLOCATED, text, THREE.build(), asking)


MIG = "hami.io/vgpu-mig-allocations"


def mig(**fields: object) -> str:
    """Return the text of one MIG instance, with these fields laid over those it needs; None takes one away."""
    entry = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-a", "profile": "1g.5gb"}
    return json.dumps([entry | {"placement": {"start": 6, "size": 1}} | fields])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("null", (), id="null, as Go writes an empty list"),
        pytest.param(
            mig(migUUID="", gpuInstanceID=None, more=1),
            (MigAllocation(container=0, device=0, gpu_uuid="GPU-a", profile="1g.5gb", placement=(6, 1)),),
            id="empty, null and unknown fields are as good as absent",
        ),
        pytest.param(
            '[{"GPUUUID": "GPU-a", "Profile": "1g.5gb", "placement": {"SIZE": 1}}]',
            (MigAllocation(container=0, device=0, gpu_uuid="GPU-a", profile="1g.5gb", placement=(0, 1)),),
            id="keys in another case, and absent figures are 0",
        ),
    ],
)
def test_mig_instances_are_read_as_go_reads_them(text: str, want: tuple[MigAllocation, ...]) -> None:
    assert decode_mig_allocations(MIG, text) == want


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{}", id="an object"),
        pytest.param("[1]", id="a list of something else"),
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param("[null]", id="a null for an instance"),
        pytest.param(mig(gpuUUID=7), id="a number for a UUID"),
        pytest.param(mig(profile=None), id="no profile"),
        pytest.param(mig(placement=None), id="no placement"),
        pytest.param(mig(placement=[6, 1]), id="a list for a placement"),
        pytest.param(mig(placement={"start": -1, "size": 1}), id="a placement before the card"),
        pytest.param(mig(deviceIndex=True), id="a truth value for a figure"),
        pytest.param(mig(deviceIndex=1.0), id="a fraction for a figure"),
        pytest.param(mig(containerIndex=2**31), id="a figure beyond 32 bits"),
        pytest.param(mig(gpuInstanceID=1, computeInstanceID=0), id="instances without their UUID"),
        pytest.param(mig(migUUID="MIG-1", gpuInstanceID=-1, computeInstanceID=0), id="a negative instance"),
    ],
)
def test_what_is_no_list_of_mig_instances_does_not_decode(text: str) -> None:
    with pytest.raises(InvalidAllocation, match=r"^hami\.io/vgpu-mig-allocations: ") as caught:
        decode_mig_allocations(MIG, text)

    assert len(str(caught.value)) < 400

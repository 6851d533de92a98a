"""The texts that HAMi writes: allocation annotations of pods, registrations of nodes, and the names of families."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vectors.files import Json, backends, cases, device_keys, is_ours, load
from webhook.allocation import Allocated, decode_mig_allocations, decode_segments, encode_segments
from webhook.api.node import Node
from webhook.devices.base import Card, CardKind, DeviceBackend
from webhook.devices.registration import CommaCard, decode_comma_cards, encode_comma_cards
from webhook.errors import DecodeError, InvalidAllocation

# Weak spots whose answer the design leaves to us; tests/unit/test_allocation.py has it.
PINNED = {"A19", "A35"}

# Those that a test here takes; of no family, and so always in force, are the last two.
KINDS = {"names", "encode_pod", "decode_pod", "node_devices", "encode_node_comma", "decode_mig_allocations"}
OF_NO_FAMILY = {"encode_node_comma", "decode_mig_allocations"}

MIG_ANNOTATION = "hami.io/vgpu-mig-allocations"
COMMA_ANNOTATION = "hami.io/node-dcu-register"

FAMILIES = {backend.key: backend for backend in backends({})}


def of_kind(kind: str) -> list[Any]:
    """Return the cases of one function that concern a family in force and say what we answer."""
    return cases("codec.json", lambda case: case["kind"] == kind and is_in_force(case) and is_ours(case))


def is_in_force(case: Json) -> bool:
    """Return whether a case concerns no family but those in force."""
    if "key" in case:
        return case["key"] in FAMILIES
    if case["kind"] in OF_NO_FAMILY:
        return True
    allocated = {name for name in case["annotations"] if name.endswith("-allocated")}
    return allocated <= {backend.allocated_annotation for backend in FAMILIES.values()}


def decoded(annotations: dict[str, str]) -> Json | None:
    """Return the devices of each container by device key; None when one annotation does not decode."""
    try:
        return {
            backend.key: [
                [[device.uuid, device.type, device.memory, device.cores] for device in segment]
                for segment in decode_segments(backend.allocated_annotation, annotations[backend.allocated_annotation])
            ]
            for backend in FAMILIES.values()
            if backend.allocated_annotation in annotations
        }
    except InvalidAllocation:
        return None


@pytest.mark.parametrize(("document", "case"), of_kind("decode_pod"))
def test_an_allocation_decodes_as_hami_decodes_it(document: Json, case: Json) -> None:
    assert decoded(case["annotations"]) == case["want"].get("devices")


@pytest.mark.parametrize(("document", "case"), of_kind("encode_pod"))
def test_an_allocation_is_written_as_hami_writes_it(document: Json, case: Json) -> None:
    segments = [
        [Allocated(uuid=uuid, type=family, memory=memory, cores=cores) for uuid, family, memory, cores in container]
        for container in case["containers"]
    ]
    annotation = FAMILIES[case["key"]].allocated_annotation

    assert {annotation: encode_segments(segments)} == case["want"]["annotations"]


@pytest.mark.parametrize(("document", "case"), of_kind("names"))
def test_a_family_has_hamis_names(document: Json, case: Json) -> None:
    backend: DeviceBackend = FAMILIES[case["key"]]
    want = case["want"]

    assert backend.allocated_annotation == want["allocated"]
    assert set(backend.owned_annotations) >= {want["allocated"], want["to_allocate"]} - {None}
    assert backend.names.count == want["count_name"]
    assert backend.names.memory == want["memory_name"]
    assert backend.names.cores == want["core_name"]
    assert backend.names.memory_factor == max(want["factor"], 1)


@pytest.mark.parametrize(("document", "case"), of_kind("node_devices"))
def test_a_node_registers_the_cards_that_hami_reads(document: Json, case: Json) -> None:
    node = msgspec.convert(
        {
            "metadata": {"name": "n1", "annotations": case.get("annotations", {})},
            "status": {"capacity": case.get("capacity", {})},
        },
        Node,
    )
    try:
        cards = FAMILIES[case["key"]].cards(node)
    except DecodeError:
        cards = ()

    kinds = [(card.uuid, card.kind.model, card.kind.mode, card.kind.memory_mib, card.kind.cores) for card in cards]
    assert kinds == [
        (card["id"], card["type"], card["mode"], card["mem"], card["cores"]) for card in case["want"].get("devices", [])
    ]


@pytest.mark.parametrize(("document", "case"), of_kind("encode_node_comma"))
def test_the_comma_form_of_a_node_is_written_as_hami_writes_it_and_read_again(document: Json, case: Json) -> None:
    cards = [
        CommaCard(
            uuid=card["id"],
            index=card["index"],
            slots=card["slots"],
            memory_mib=card["mem"],
            cores=card["cores"],
            model=card["type"],
            numa=card["numa"],
            is_healthy=card["healthy"],
            mode=card["mode"],
        )
        for card in case["devices"]
    ]
    text = encode_comma_cards(cards)

    assert text == case["want"]["text"]
    assert decode_comma_cards(COMMA_ANNOTATION, text) == tuple(
        Card(card.uuid, CardKind(model=card.model, mode=card.mode, memory_mib=card.memory_mib, cores=card.cores))
        for card in cards
    )


@pytest.mark.parametrize(("document", "case"), of_kind("decode_mig_allocations"))
def test_mig_instances_decode_as_hami_decodes_them(document: Json, case: Json) -> None:
    found: list[Json] | None
    try:
        found = [
            {
                "container": instance.container,
                "device": instance.device,
                "gpu": instance.gpu_uuid,
                "profile": instance.profile,
                "placement": list(instance.placement),
                "mig_uuid": instance.mig_uuid,
            }
            for instance in decode_mig_allocations(MIG_ANNOTATION, case["text"])
        ]
    except InvalidAllocation:
        found = None

    assert found == case["want"].get("allocations")


def test_every_kind_of_case_has_a_test_here() -> None:
    assert {case["kind"] for case in load("codec.json")["cases"]} == KINDS


def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own() -> None:
    left_out = [case for case in load("codec.json")["cases"] if is_in_force(case) and not is_ours(case)]

    assert {tag for case in left_out for tag in case["weak_spot"].split(", ")} <= PINNED
    assert device_keys() == FAMILIES.keys()

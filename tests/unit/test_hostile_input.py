"""Input that was made to break something, each with what has to come of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from builders import World, backends, pod

from webhook.api.pod import decode_pod
from webhook.defaulting import Refusal
from webhook.devices.base import Card, CardKind, comma_list
from webhook.devices.registry import load_backends
from webhook.errors import ApiServerError, DecodeError
from webhook.files import decode_documents
from webhook.informers.sweep import Sweep
from webhook.inventory import Inventory
from webhook.pod_request import pod_request
from webhook.reports.denial import denial
from webhook.server.front import budget_s
from webhook.usage import UsageRules, next_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.devices.base import CardConstraint


def test_the_annotations_of_a_pod_are_read_once_however_many_containers_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """An annotation may hold 256 KiB, and read for each container it stopped the server for everybody."""
    [backend] = backends()
    reads = []
    read = type(backend).constraint

    def counted(self: Any, annotations: Mapping[str, str]) -> CardConstraint:
        reads.append(annotations)
        return read(self, annotations)

    monkeypatch.setattr(type(backend), "constraint", counted)
    subject = pod("a")
    for number in range(50):
        subject = subject.app(f"c{number}", gpu=1)
    assert not isinstance(pod_request(subject.build(), [backend], Inventory(), {}), Refusal)
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("A100, T4", ("A100", "T4"), id="an ordinary list"),
        pytest.param("A100,A100", ("A100",), id="an entry twice"),
        pytest.param("", (), id="an empty text"),
        pytest.param("T4,", (), id="an empty entry, which older HAMi takes to match every card"),
        pytest.param("T4,\u017fXM4", (), id="a letter that Go folds to S and Python does not"),
        pytest.param("Blac\u212awell", (), id="a letter that Python folds to k and Go does not"),
        pytest.param("A100\x1f", (), id="a control character that Python takes for a blank"),
    ],
)
def test_a_list_that_hami_may_read_otherwise_narrows_nothing(text: str, want: tuple[str, ...]) -> None:
    assert comma_list(text) == want


AMD = "amd: {resourceCountName: amd.com/gpu, resourceMemoryName: amd.com/gpumem, resourceCoreName: amd.com/gpucores}"


def test_a_card_that_is_registered_after_its_pod_was_seen_is_counted_in_its_own_units() -> None:
    """AMD books compute units: 152 of 304 are 50 percent, and 152 percent of nothing known is a whole card."""
    rules = UsageRules(backends=load_backends(AMD), assumed_card_memory_mib={})
    subject = decode_pod(
        json.dumps(
            {
                "metadata": {
                    "uid": "u",
                    "name": "a",
                    "annotations": {"hami.io/amd-devices-allocated": "AMD-1,AMD,1000,152:;"},
                },
                "spec": {
                    "containers": [
                        {"name": "c", "resources": {"limits": {"amd.com/gpu": "1", "amd.com/gpumem": "1000"}}}
                    ]
                },
            }
        ).encode()
    )
    before = next_record(None, subject, rules, Inventory())
    assert before is not None
    assert before.charge["amd.com/gpucores"] == 100
    assert before.estimated is subject, "kept, so that it can be counted anew"
    registered = Inventory().with_node({}, {"AMD": (Card("AMD-1", CardKind(model="MI300X", cores=304)),)})
    after = next_record(before, before.estimated, rules, registered)
    assert after is not None
    assert after.charge["amd.com/gpucores"] == 50


def test_a_card_that_two_nodes_register_for_a_while_stays_when_one_of_them_goes() -> None:
    card = Card("GPU-s", CardKind(model="T4", memory_mib=16384))
    first = {"NVIDIA": (card,)}
    both = Inventory().with_node({}, first).with_node({}, first)
    assert both.with_node(first, {}).kind_of("NVIDIA", "GPU-s") == card.kind
    assert both.with_node(first, {}).with_node(first, {}).kind_of("NVIDIA", "GPU-s") is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'{"metadata":5,"x":1e999}', id="a number beyond all bounds"),
        pytest.param(b'{"metadata":5,"x":"\xff"}', id="a text that is no UTF-8"),
        pytest.param(b'{"metadata":5,"x":%s}' % (b"9" * 5000), id="an integer of 5000 digits"),
        pytest.param(b"null", id="nothing"),
    ],
)
def test_a_pod_that_cannot_be_read_is_a_decode_error_whatever_is_wrong(text: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_pod(text)


@pytest.mark.parametrize("query", [b"timeout=%ff", b"timeout=\xff", b"%", b"timeout", b"=3s"])
def test_a_query_that_is_none_leaves_the_default(query: bytes) -> None:
    assert budget_s(query) == budget_s(b"")


@pytest.mark.parametrize("value", ["0x_", "0b_", "!!int x", "!!float x", "!!timestamp x", "!!bool z", "9" * 5000])
def test_a_manifest_with_a_value_that_is_none_is_an_error_with_its_origin(value: str) -> None:
    with pytest.raises(DecodeError, match=r"^cluster\.yaml"):
        decode_documents(f"kind: Pod\nmetadata: {{name: {value}}}\n", "cluster.yaml")


class BrokenLookup:
    """An API server whose answers surprise the client."""

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        raise ValueError(f"{namespace}/{name} after {timeout_s}")


def test_a_sweep_that_fails_in_a_new_way_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.quota(mem=8000)
    assert world.admits(pod("a").app("c", mem=8000))
    world.now += 60
    sweep = Sweep(world.ledger, BrokenLookup())
    with pytest.raises(ValueError, match="team-a/a"):
        sweep.run_once()
    waits = iter([False, True])
    sweep._stopping.wait = lambda _s: next(waits)  # type: ignore[method-assign, assignment]
    sweep._run()
    assert "the sweep failed and goes on" in caplog.text


def test_an_answer_does_not_grow_with_the_pod() -> None:
    world = World()
    world.quota(mem=8000, cores=100)
    subject = pod("a")
    for number in range(100):
        subject = subject.app(f"c{number}", mem="16Gi")
    lines = denial(world.create(subject)).splitlines()
    assert (len(lines), lines[-1]) == (21, "... and 80 more")


def test_a_failed_look_up_is_not_the_same_as_a_pod_that_is_gone() -> None:
    class Down:
        def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
            raise ApiServerError(0, f"{namespace}/{name}: refused after {timeout_s}")

    world = World()
    world.quota(mem=8000)
    assert world.admits(pod("a").app("c", mem=8000))
    world.now += 60
    assert Sweep(world.ledger, Down()).run_once() == 0
    assert world.used() == 8000

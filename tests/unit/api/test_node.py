"""Nodes and namespaces, from the wire."""

from __future__ import annotations

import pytest

from webhook.api.node import decode_namespace, decode_node
from webhook.errors import DecodeError


def test_one_odd_part_of_a_node_that_nobody_reads_does_no_harm() -> None:
    """A node with an image without names breaks typed clients."""
    node = decode_node(
        b'{"metadata": {"name": "node-1", "annotations": {"hami.io/node-nvidia-register": "[]"}},'
        b' "status": {"images": [{"names": null, "sizeBytes": 1}], "capacity": {"nvidia.com/gpu": "8"}}}'
    )

    assert node.metadata.name == "node-1"
    assert node.annotations == {"hami.io/node-nvidia-register": "[]"}
    assert node.status.capacity == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize("raw", [b"{}", b'{"metadata": {"annotations": null}, "status": {}}'])
def test_a_bare_node_has_no_annotations(raw: bytes) -> None:
    assert decode_node(raw).annotations == {}


def test_a_namespace_has_labels() -> None:
    assert decode_namespace(b'{"metadata": {"name": "a", "labels": {"x": "y"}}}').labels == {"x": "y"}
    assert decode_namespace(b'{"metadata": {"labels": null}}').labels == {}


@pytest.mark.parametrize("raw", [b"[]", b"", b'{"metadata": {"annotations": {"x": 1}, "labels": {"x": 1}}}'])
def test_what_is_none_is_an_error(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="node: "):
        decode_node(raw)
    with pytest.raises(DecodeError, match="namespace: "):
        decode_namespace(raw)

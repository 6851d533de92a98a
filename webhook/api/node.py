"""The parts of a Node and of a Namespace that the rules read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from webhook.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Wire(msgspec.Struct, frozen=True, rename="camel"):
    """A projection of a Kubernetes object: unknown fields are skipped."""


class ObjectMetadata(_Wire, frozen=True):
    """The metadata of a cluster-scoped object."""

    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class NodeStatus(_Wire, frozen=True):
    """The status of a node; some families register their cards as capacity alone."""

    capacity: dict[str, Any] | None = None


_NO_STATUS = NodeStatus()


class Node(_Wire, frozen=True):
    """A node, as far as its cards are concerned."""

    metadata: ObjectMetadata = msgspec.field(default_factory=ObjectMetadata)
    status: NodeStatus = _NO_STATUS

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations, empty when absent."""
        return self.metadata.annotations or {}


class Namespace(_Wire, frozen=True):
    """A namespace, as far as its labels are concerned."""

    metadata: ObjectMetadata = msgspec.field(default_factory=ObjectMetadata)

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels, empty when absent."""
        return self.metadata.labels or {}


_NODE_DECODER = msgspec.json.Decoder(Node)
_NAMESPACE_DECODER = msgspec.json.Decoder(Namespace)


def decode_node(raw: bytes | msgspec.Raw) -> Node:
    """Return the node in a JSON text.

    Raises:
        DecodeError: The text is not a Node; the error carries the path of the offending field.
    """
    try:
        return _NODE_DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError("node", str(error)) from error


def decode_namespace(raw: bytes | msgspec.Raw) -> Namespace:
    """Return the namespace in a JSON text.

    Raises:
        DecodeError: The text is not a Namespace; the error carries the path of the offending field.
    """
    try:
        return _NAMESPACE_DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError("namespace", str(error)) from error

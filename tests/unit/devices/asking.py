"""What tests of a family start from: the family as a configuration has it, and what a container asks of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from builders import World, pod

from webhook.api.node import Node, decode_node
from webhook.api.pod import Container, Pod
from webhook.devices.base import Defaults, DeviceBackend, DeviceRequest, Ineffective, Unusable
from webhook.devices.registry import load_backends

Asked = tuple[int, int, int | None, int]
"""Cards, and for each card memory in the accounting unit, percentage and cores."""


def families(config: Mapping[str, Any]) -> dict[str, DeviceBackend]:
    """Return the families that a configuration puts in force, by their keys."""
    return {backend.key: backend for backend in load_backends(yaml.safe_dump(dict(config)))}


def container(
    limits: Mapping[str, Any], requests: Mapping[str, Any] | None = None, *, name: str = "server"
) -> tuple[Container, Pod]:
    """Return the one container of a pod, and the pod."""
    built = pod().app(name, limits=limits, requests=requests).build()
    return built.spec.containers[0], built


def defaults(
    backend: DeviceBackend, limits: Mapping[str, Any], requests: Mapping[str, Any] | None = None
) -> Defaults | Unusable:
    """Return what HAMi's defaulting changes in a container."""
    return backend.defaults(*container(limits, requests))


def ask(
    backend: DeviceBackend, limits: Mapping[str, Any], requests: Mapping[str, Any] | None = None
) -> Asked | Unusable | Ineffective | None:
    """Return what a container asks for after defaulting."""
    asking, its_pod = container(limits, requests)
    changes = backend.defaults(asking, its_pod)
    if isinstance(changes, Unusable):
        return changes
    request = backend.request(asking.with_defaults(changes.limits, changes.requests), its_pod)
    if not isinstance(request, DeviceRequest):
        return request
    return request.cards, request.memory_mib, request.memory_percent, request.cores_percent


def node(
    annotations: Mapping[str, str] | None = None, capacity: Mapping[str, Any] | None = None, *, name: str = "n1"
) -> Node:
    """Return a node with annotations and a capacity."""
    document = {"metadata": {"name": name, "annotations": annotations}, "status": {"capacity": capacity}}
    return decode_node(json.dumps(document).encode())


def world_of(backend: DeviceBackend, *nodes: Node, hard: Mapping[str, Any]) -> World:
    """Return a cluster with one family, the cards of some nodes, and a quota."""
    world = World([backend])
    for registered in nodes:
        world.ledger.set_node(registered.metadata.name, {backend.key: backend.cards(registered)})
    world.quota(hard=hard)
    return world

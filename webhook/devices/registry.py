"""From HAMi's device configuration to the families that are in force.

A family is one entry of `_FAMILIES`, and a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.api.pod import Container, Pod
from webhook.devices.amd import AmdBackend
from webhook.devices.ascend import ascend_backends
from webhook.devices.awsneuron import AwsNeuronBackend
from webhook.devices.base import NO_DEFAULTS, DeviceBackend
from webhook.devices.biren import BirenBackend
from webhook.devices.cambricon import CambriconBackend
from webhook.devices.config import ConfigBlock, UnknownKey, read_config
from webhook.devices.enflame import enflame_backends
from webhook.devices.hygon import HygonBackend
from webhook.devices.iluvatar import IluvatarBackend
from webhook.devices.kunlun import kunlun_backends
from webhook.devices.metax import metax_backends
from webhook.devices.mthreads import MthreadsBackend
from webhook.devices.nvidia import NvidiaBackend
from webhook.devices.vastai import VastaiBackend
from webhook.errors import DeviceConfigError

# By block of the file, what builds the family's backends from the whole file: one family's block is a list, and one
# family of HAMi is in force without its block.
_FAMILIES: Mapping[str, Callable[[ConfigBlock], tuple[DeviceBackend, ...]]] = {
    "nvidia": NvidiaBackend.from_config,
    "cambricon": CambriconBackend.from_config,
    "hygon": HygonBackend.from_config,
    "mthreads": MthreadsBackend.from_config,
    "iluvatars": IluvatarBackend.from_config,
    "amd": AmdBackend.from_config,
    "vastai": VastaiBackend.from_config,
    "biren": BirenBackend.from_config,
    "metax": metax_backends,
    "enflame": enflame_backends,
    "kunlun": kunlun_backends,
    "awsneuron": AwsNeuronBackend.from_config,
    "vnpus": ascend_backends,
}


class DeviceConfig(NamedTuple):
    """What HAMi's device configuration comes to.

    Attributes:
        backends: The device families in force.
        unknown_keys: Keys that HAMi does not read, in the order of their lines.
    """

    backends: tuple[DeviceBackend, ...]
    unknown_keys: tuple[UnknownKey, ...]


def load_backends(text: str) -> tuple[DeviceBackend, ...]:
    """Return the device families of `load_device_config`, which says what it raises."""
    return load_device_config(text).backends


def load_device_config(text: str) -> DeviceConfig:
    """Return the device families that HAMi's device configuration puts in force, and the keys nobody reads.

    Args:
        text: The content of HAMi's `device-config.yaml`.

    Raises:
        DeviceConfigError: The file must not be started with; the error names line and key.
    """
    config = read_config(text)
    built = {
        block: tuple(backend for backend in build(config) if backend.managed_resources)
        for block, build in _FAMILIES.items()
    }
    # Enflame's names are built in (D29), so that family alone does not show that the file configures anything.
    if not any(built[block] for block in built.keys() & set(config.keys())):
        raise DeviceConfigError("document", f"configures no device family: it needs one of {', '.join(_FAMILIES)}")
    backends = tuple(backend for family in built.values() for backend in family)
    _refuse_shared_names(backends)
    return DeviceConfig(backends, tuple(sorted(config.unknown_keys())))


def _refuse_shared_names(backends: Sequence[DeviceBackend]) -> None:
    """Refuse a family or a resource that stands for two things: its quota would have no one meaning."""
    owners: dict[str, str] = {}
    keys: set[str] = set()
    for backend in backends:
        if backend.key in keys:
            raise DeviceConfigError("document", f"two families are named {backend.key}")
        keys.add(backend.key)
        for resource in backend.managed_resources:
            if resource in owners:
                raise DeviceConfigError(
                    "document",
                    f"{resource} is configured twice, for {owners[resource]} and for {backend.key}",
                )
            owners[resource] = backend.key


def managed_resources(backends: Sequence[DeviceBackend]) -> frozenset[str]:
    """Return every resource name that makes a pod ours to judge."""
    return frozenset(name for backend in backends for name in backend.managed_resources)


@lru_cache(maxsize=16)
def _owners(backends: tuple[DeviceBackend, ...]) -> dict[str, DeviceBackend]:
    return {resource: backend for backend in backends for resource in backend.managed_resources}


def concerned(container: Container, backends: Sequence[DeviceBackend]) -> list[DeviceBackend]:
    """Return the families whose resources a container names, in the order of `backends`.

    A cluster has some twenty-five families in force and a container asks one of them, if any: the others need not look.
    """
    owners = _owners(tuple(backends))
    found = {id(owner): owner for name in (*container.limits, *container.requests) if (owner := owners.get(name))}
    if len(found) < 2:  # noqa: PLR2004 - one has no order
        return list(found.values())
    return [backend for backend in backends if id(backend) in found]


@lru_cache(maxsize=16)
def unasked(backends: tuple[DeviceBackend, ...]) -> tuple[DeviceBackend, ...]:
    """Return the families that change containers which ask nothing of them: those configured to hide their cards."""
    return tuple(backend for backend in backends if backend.defaults(Container(), Pod()) != NO_DEFAULTS)


def asks_for_managed(pod: Pod, managed: frozenset[str]) -> bool:
    """Return whether any container of a pod names a managed resource, in limits or requests."""
    return any(
        not managed.isdisjoint(container.limits) or not managed.isdisjoint(container.requests)
        for container in pod.containers()
    )

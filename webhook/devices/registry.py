"""From HAMi's device configuration to the families that are in force.

A family is one entry of `_FAMILIES`, and a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from webhook.devices.base import DeviceBackend
from webhook.devices.config import ConfigBlock, read_config
from webhook.devices.nvidia import NvidiaBackend
from webhook.errors import DeviceConfigError

if TYPE_CHECKING:
    from webhook.api.pod import Pod


# By block of the file, what builds the family's backends from the whole file: one family's block is a list, and one
# family of HAMi is in force without its block.
_FAMILIES: Mapping[str, Callable[[ConfigBlock], tuple[DeviceBackend, ...]]] = {
    "nvidia": NvidiaBackend.from_config,
}


def load_backends(text: str) -> tuple[DeviceBackend, ...]:
    """Return the device families that HAMi's device configuration puts in force.

    Args:
        text: The content of HAMi's `device-config.yaml`.

    Raises:
        DeviceConfigError: The file must not be started with; the error names line and key.
    """
    config = read_config(text)
    backends = tuple(backend for build in _FAMILIES.values() for backend in build(config) if backend.managed_resources)
    if not backends:
        raise DeviceConfigError("document", f"configures no device family: it needs one of {', '.join(_FAMILIES)}")
    _refuse_shared_names(backends)
    return backends


def _refuse_shared_names(backends: Sequence[DeviceBackend]) -> None:
    """Refuse a resource that stands for two things: its quota would have no one meaning."""
    owners: dict[str, str] = {}
    for backend in backends:
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


def asks_for_managed(pod: Pod, managed: frozenset[str]) -> bool:
    """Return whether any container of a pod names a managed resource, in limits or requests."""
    return any(
        not managed.isdisjoint(container.limits) or not managed.isdisjoint(container.requests)
        for container in pod.containers()
    )

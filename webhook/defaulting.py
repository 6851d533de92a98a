"""A pod as it stands after HAMi's defaulting, and HAMi's own reasons to refuse one.

Pods are judged in this form whether or not a mutating webhook ran: in CI it never has. Defaulting is idempotent, so
nothing changes for a pod that was mutated. Source: HAMi pkg/scheduler/webhook.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webhook.devices.base import DeviceBackend, Unusable
from webhook.devices.registry import concerned

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod
    from webhook.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a pod cannot be used as it is, whatever quotas say; one sentence a problem."""

    problems: tuple[str, ...]


def defaulted(pod: Pod, backends: Sequence[DeviceBackend]) -> Pod | Refusal:
    """Return the pod with every family's defaults in place, or every reason why a family cannot use it."""
    containers: list[Container] = []
    problems: list[str] = []
    for original in pod.containers():
        container = original
        asked = concerned(original, backends)
        problems.extend(_requests_without_limits(original, asked))
        for backend in asked:
            defaults = backend.defaults(original, pod)
            if isinstance(defaults, Unusable):
                problems.append(str(defaults))
            else:
                container = container.with_defaults(defaults.limits, defaults.requests)
        containers.append(container)
    if problems:
        return Refusal(problems=tuple(problems))
    return pod.with_containers(containers)


def _requests_without_limits(container: Container, backends: Sequence[DeviceBackend]) -> list[str]:
    """Return what the API server says of extended resources that are requested and not limited.

    Only offline input can hold such a pod; the API server refuses it before admission.
    """
    return [
        str(
            Unusable(
                container=container.name,
                resource=resource,
                value=str(container.requests[resource]),
                accepted="a limit must be set for an extended resource that is requested",
            )
        )
        for backend in backends
        for resource in backend.managed_resources
        if resource in container.requests and resource not in container.limits
    ]


def hami_refusal(pod: Pod, policy: Policy, *, is_mirror: bool) -> Refusal | None:
    """Return HAMi's reason to refuse a pod that asks for devices, if it has one.

    HAMi's webhook looks only at pods of its own scheduler, so a pod with another scheduler's name is passed over here
    too.
    """
    if not policy.is_hami_scheduled(pod.spec.scheduler_name) or is_mirror:
        return None
    problems = [
        f"container {container.name} is privileged: HAMi cannot isolate it beside containers that ask for devices"
        for container in pod.containers()
        if container.security_context is not None and container.security_context.privileged
    ]
    if pod.spec.node_name:
        problems.append(f"spec.nodeName {pod.spec.node_name!r} is set: HAMi must place a pod that asks for devices")
    return Refusal(problems=tuple(problems)) if problems else None

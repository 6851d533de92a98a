"""HAMi's defaulting of a new pod, as the JSON patch of a mutating webhook.

For clusters in which HAMi's own webhook does not run; where it does, nothing is left to patch. What a family changes is
said by its backend; here it becomes operations on the pod as it was written. The only module that imports jsonpatch.
Refused is what HAMi's own webhook refuses. An amount that HAMi takes and cannot use is left as it is, and refused when
the pod is judged. Source: HAMi pkg/scheduler/webhook.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from jsonpatch import JsonPointer

from webhook.api.pod import convert_pod
from webhook.defaulting import Refusal, hami_refusal
from webhook.devices.base import Defaults, Unusable
from webhook.devices.registry import concerned, unasked
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from webhook.api.pod import Container, Pod
    from webhook.devices.base import DeviceBackend
    from webhook.policy import Policy

Path = tuple[str | int, ...]


class Operation(TypedDict):
    """An operation of RFC 6902; `add` and `replace` are all that defaulting takes."""

    op: str
    path: str
    value: object


def mutation(
    document: Mapping[str, Any], backends: Sequence[DeviceBackend], policy: Policy, *, is_from_kubelet: bool = False
) -> list[Operation] | Refusal:
    """Return the operations that give a pod HAMi's defaults, or every reason of HAMi's to refuse it.

    The operations stand in the order of the containers (init ones first), and those on the pod itself last. Applied to
    a pod that already has them they would change nothing, so there are none: webhooks are called again after others.

    Args:
        document: The pod as written.
        backends: The families in force.
        policy: Says which schedulers' pods HAMi takes.
        is_from_kubelet: Whether a kubelet asks. The static pods it shows already run, so they are left alone.

    Raises:
        DecodeError: The document is not a pod.
    """
    pod = convert_pod(document)
    if not pod.spec.containers:
        return Refusal(problems=("the pod has no containers",))
    if (is_from_kubelet and pod.is_mirror) or not policy.is_hami_scheduled(pod.spec.scheduler_name):
        return []
    defaults, problems = _defaults(pod, backends)
    if problems:
        return Refusal(problems=tuple(problems))
    is_found = any(each.is_found for container in defaults for each in container)
    if is_found and (refusal := hami_refusal(pod, policy, is_mirror=False)):
        return refusal
    operations: list[Operation] = []
    for (path, written), asked in zip(_containers(document), defaults, strict=True):
        operations += _on_container(path, written, asked)
    operations += _on_pod(document, pod, [each for container in defaults for each in container])
    if is_found and policy.scheduler_name:
        operations += _merged(("spec",), document["spec"], {"schedulerName": policy.scheduler_name})
    return operations


def _defaults(pod: Pod, backends: Sequence[DeviceBackend]) -> tuple[list[list[Defaults]], list[str]]:
    """Return what the families change in each container, and what they cannot use."""
    found: list[list[Defaults]] = []
    problems: list[str] = []
    for container in pod.containers():
        changes = []
        for backend in _looking(container, backends):
            defaults = backend.defaults(container, pod)
            if isinstance(defaults, Unusable):
                problems.append(str(defaults))
            else:
                changes.append(defaults)
        found.append(changes)
    return found, problems


def _looking(container: Container, backends: Sequence[DeviceBackend]) -> Sequence[DeviceBackend]:
    """Return the families that may change a container, in the order of `backends`."""
    asked = concerned(container, backends)
    always = unasked(tuple(backends))
    if not always:
        return asked
    looking = {id(backend) for backend in (*asked, *always)}
    return [backend for backend in backends if id(backend) in looking]


def _containers(document: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the containers as written, with their paths, in the order of `Pod.containers`."""
    for key in ("initContainers", "containers"):
        for number, container in enumerate(document["spec"].get(key) or ()):
            yield ("spec", key, number), container


def _on_container(path: Path, written: Mapping[str, Any], defaults: Sequence[Defaults]) -> Iterator[Operation]:
    """Yield the operations on one container."""
    limits = {name: amount for each in defaults for name, amount in each.limits.items()}
    requests = {name: amount for each in defaults for name, amount in each.requests.items()}
    resources = {key: amounts for key, amounts in (("limits", limits), ("requests", requests)) if amounts}
    if resources:
        yield from _merged(path, written, {"resources": resources})
    env = _variables(path, written)
    known = {variable.get("name") for variable in env}
    # Two families may add one variable, as all chips of Ascend do: it is there once (D11).
    added = dict(variable for each in defaults for variable in each.env if variable[0] not in known)
    variables = [{"name": name, "value": value} for name, value in added.items()]
    if written.get("env") is not None:
        for variable in variables:
            yield _operation("add", (*path, "env", "-"), variable)
    elif variables:
        yield from _merged(path, written, {"env": variables})


def _variables(path: Path, written: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the variables that a container has; `convert_pod` does not read them."""
    env = written.get("env") or []
    if not isinstance(env, list) or not all(isinstance(variable, dict) for variable in env):
        raise DecodeError(_pointer((*path, "env")), "expected an array of objects")
    return env


def _on_pod(document: Mapping[str, Any], pod: Pod, defaults: Sequence[Defaults]) -> Iterator[Operation]:
    """Yield the operations on the pod itself, but for its scheduler."""
    annotations = {name: value for each in defaults for name, value in each.annotations.items()}
    if annotations:
        yield from _merged((), document, {"metadata": {"annotations": annotations}})
    runtime_class_name = next((each.runtime_class_name for each in defaults if each.runtime_class_name), "")
    if runtime_class_name and pod.spec.runtime_class_name is None:
        yield from _merged(("spec",), document["spec"], {"runtimeClassName": runtime_class_name})


def _merged(path: Path, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Operation]:
    """Yield the operations that lay `wanted` over an object at a path; an object that is missing comes whole."""
    for key, value in wanted.items():
        present = written.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            yield from _merged((*path, key), present, value)
        elif present != value:
            yield _operation("replace" if key in written else "add", (*path, key), value)


def _operation(op: str, path: Path, value: object) -> Operation:
    return Operation(op=op, path=_pointer(path), value=value)


def _pointer(path: Path) -> str:
    """Return a path as a JSON pointer, which escapes the slashes that names of resources and annotations hold."""
    return str(JsonPointer.from_parts(path).path)

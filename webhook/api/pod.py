"""The parts of a Pod that the rules read, decoded from an AdmissionReview, a list, a watch or a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from webhook.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class _Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A projection of a Kubernetes object: unknown fields are skipped, `null` is as good as absent."""


class Resources(_Wire, frozen=True):
    """`resources` of a container; amounts as written, quantities are parsed where they are read."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


_NO_RESOURCES = Resources()


class SecurityContext(_Wire, frozen=True):
    """The one field of a container's security context that HAMi reads."""

    privileged: bool | None = None


class Container(_Wire, frozen=True):
    """One container, of either list."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None
    security_context: SecurityContext | None = None

    @property
    def limits(self) -> Mapping[str, Any]:
        """Return the limits, empty when absent."""
        return (self.resources or _NO_RESOURCES).limits or {}

    @property
    def requests(self) -> Mapping[str, Any]:
        """Return the requests, empty when absent."""
        return (self.resources or _NO_RESOURCES).requests or {}

    def look(self, name: str) -> Any:
        """Return the amount of a resource as written: the limit if there is one, else the request, else None.

        A name that is not configured (the empty string) is never found. Source: HAMi pkg/device.
        """
        if not name:
            return None
        limits = self.limits
        return limits[name] if name in limits else self.requests.get(name)

    def with_defaults(self, limits: Mapping[str, Any], requests: Mapping[str, Any]) -> Container:
        """Return this container with limits and requests laid over its own."""
        if not limits and not requests:
            return self
        resources = self.resources or _NO_RESOURCES
        merged = Resources(
            limits={**(resources.limits or {}), **limits}, requests={**(resources.requests or {}), **requests}
        )
        return msgspec.structs.replace(self, resources=merged)


class PodAffinityTerm(_Wire, frozen=True):
    """A term of pod (anti-)affinity; only whether it reaches other namespaces matters here."""

    namespaces: list[str] | None = None
    namespace_selector: dict[str, Any] | None = None


class WeightedPodAffinityTerm(_Wire, frozen=True):
    """A preferred term."""

    pod_affinity_term: PodAffinityTerm | None = None


class PodAffinity(_Wire, frozen=True):
    """Pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] | None = None

    def terms(self) -> Iterator[PodAffinityTerm]:
        """Yield every term, required and preferred."""
        yield from self.required_during_scheduling_ignored_during_execution or ()
        for weighted in self.preferred_during_scheduling_ignored_during_execution or ():
            if weighted.pod_affinity_term is not None:
                yield weighted.pod_affinity_term


class Affinity(_Wire, frozen=True):
    """Affinity of a pod; node affinity is not read."""

    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodSpec(_Wire, frozen=True):
    """The specification of a pod."""

    containers: list[Container] = msgspec.field(default_factory=list)
    init_containers: list[Container] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None
    affinity: Affinity | None = None
    resources: Resources | None = None


class ContainerStateTerminated(_Wire, frozen=True):
    """How a container ended."""

    exit_code: int = 0


class ContainerState(_Wire, frozen=True):
    """The current state of a container; running and waiting are not told apart."""

    terminated: ContainerStateTerminated | None = None


class ContainerStatus(_Wire, frozen=True):
    """The status of one init container. `lastState` is left out on purpose: it is never read."""

    name: str = ""
    state: ContainerState | None = None


class PodStatus(_Wire, frozen=True):
    """The status of a pod."""

    phase: str | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodMetadata(_Wire, frozen=True):
    """The metadata of a pod."""

    name: str = ""
    generate_name: str | None = None
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


_NO_STATUS = PodStatus()

_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


class Pod(_Wire, frozen=True):
    """A pod, as far as quota is concerned."""

    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = _NO_STATUS

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations, empty when absent."""
        return self.metadata.annotations or {}

    @property
    def init_containers(self) -> list[Container]:
        """Return `spec.initContainers`, empty when absent."""
        return self.spec.init_containers or []

    def containers(self) -> Iterator[Container]:
        """Yield every container, those of `spec.initContainers` first, in declaration order."""
        yield from self.init_containers
        yield from self.spec.containers

    @property
    def display_name(self) -> str:
        """Return the name, or `prefix*` for a pod that is still to be named."""
        return self.metadata.name or f"{self.metadata.generate_name or ''}*"

    @property
    def is_mirror(self) -> bool:
        """Return whether the pod says that it stands for a static pod, which only a kubelet knows."""
        return _MIRROR_ANNOTATION in self.annotations

    @property
    def is_terminal(self) -> bool:
        """Return whether the pod has ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    def with_containers(self, containers: list[Container]) -> Pod:
        """Return this pod with its containers (init ones first, as `containers()` yields them) replaced."""
        split = len(self.init_containers)
        spec = msgspec.structs.replace(
            self.spec, init_containers=containers[:split] or None, containers=containers[split:]
        )
        return msgspec.structs.replace(self, spec=spec)


_DECODER = msgspec.json.Decoder(Pod)
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])


def _without_nulls(value: Any) -> Any:
    """Return a document without its nulls: to Kubernetes a null is as good as an absent field, whatever its type."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def decode_pod(raw: bytes | msgspec.Raw) -> Pod:
    """Return the pod in a JSON text.

    Raises:
        DecodeError: The text is not a pod; the error carries the path of the offending field.
    """
    try:
        return _DECODER.decode(raw)
    except msgspec.ValidationError:
        # Nulls are rare, and looking for them would cost every pod: so only once the plain reading has failed.
        return convert_pod(decode_document(raw))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DecodeError("object", str(error)) from error


def decode_document(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """Return an object as written, every field of it, for who changes it.

    Raises:
        DecodeError: The text is not an object.
    """
    try:
        return _DOCUMENT.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError("object", str(error)) from error


def convert_pod(document: Mapping[str, Any]) -> Pod:
    """Return the pod in a document that was already parsed (a manifest).

    Raises:
        DecodeError: The document is not a pod; the error carries the path of the offending field.
    """
    try:
        return msgspec.convert(_without_nulls(document), Pod)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError("object", str(error)) from error

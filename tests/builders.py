"""Builders of what tests start from, so that a row shows only what matters to it.

Amounts are written as in the field cases: `mem`, `pct`, `cores` and `gpu` are limits of the NVIDIA family; a container
that names any of the first three has one card unless it says otherwise (`gpu=None` leaves the count out).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
import yaml

from webhook.admission import Candidate, Decision, Rules, candidate, decide
from webhook.api.admission_review import AdmissionRequest, decode_review
from webhook.api.node import Node, decode_node
from webhook.api.pod import Container, Pod, Resources, decode_pod
from webhook.api.resource_quota import ResourceQuota, decode_resource_quota
from webhook.devices.base import DeviceBackend
from webhook.devices.registry import load_backends
from webhook.ledger import QuotaLedger
from webhook.policy import Policy
from webhook.quotas import Quota, read_quota
from webhook.reports import denial
from webhook.usage import PodRecord, UsageRules, next_record

COUNT = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
ALLOCATED = "hami.io/vgpu-devices-allocated"
NODE = "hami.io/vgpu-node"
REGISTER = "hami.io/node-nvidia-register"

NAMES = {"gpu": COUNT, "mem": MEMORY, "pct": PERCENT, "cores": CORES}

Json = dict[str, Any]


def device_config(**overrides: Any) -> str:
    """Return a device configuration with the chart's `nvidia` block, but for `overrides`; None drops a key."""
    block: Json = {
        "resourceCountName": COUNT,
        "resourceMemoryName": MEMORY,
        "resourceMemoryPercentageName": PERCENT,
        "resourceCoreName": CORES,
        "resourcePriorityName": "nvidia.com/priority",
        "defaultMemory": 0,
        "defaultCores": 0,
        "defaultGPUNum": 1,
        "memoryFactor": 1,
    } | overrides
    return yaml.safe_dump({"nvidia": {key: value for key, value in block.items() if value is not None}})


@cache
def backends(**overrides: Any) -> tuple[DeviceBackend, ...]:
    """Return the NVIDIA family that `device_config(**overrides)` configures.

    Enflame's names are built in and in force beside it; where all that is in force matters, `load_backends` says it.
    """
    return tuple(backend for backend in load_backends(device_config(**overrides)) if backend.key == "NVIDIA")


class PodBuilder:
    """A pod under construction; every step returns a new one."""

    def __init__(self, document: Json) -> None:
        self._document = document

    # Containers, in declaration order.

    def init(self, name: str, *, restart_policy: str | None = None, **asks: Any) -> PodBuilder:
        """Add an ordinary init container."""
        return self._container("initContainers", name, restart_policy, asks)

    def sidecar(self, name: str, **asks: Any) -> PodBuilder:
        """Add a native sidecar."""
        return self._container("initContainers", name, "Always", asks)

    def app(self, name: str, **asks: Any) -> PodBuilder:
        """Add an app container."""
        return self._container("containers", name, None, asks)

    def _container(self, where: str, name: str, restart_policy: str | None, asks: Json) -> PodBuilder:
        container: Json = {"name": name, "image": "i"}
        limits = dict(asks.pop("limits", None) or {})
        if any(asks.get(amount) is not None for amount in ("mem", "pct", "cores")):
            asks = {"gpu": 1} | asks
        requests = asks.pop("requests", None)
        if asks.pop("privileged", False):
            container["securityContext"] = {"privileged": True}
        limits |= {NAMES[amount]: str(value) for amount, value in asks.items() if value is not None}
        resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value}
        if resources:
            container["resources"] = resources
        if restart_policy is not None:
            container["restartPolicy"] = restart_policy

        def add(document: Json) -> None:
            document["spec"].setdefault(where, []).append(container)

        return self._with(add)

    # Everything else.

    def spec(self, **fields: Any) -> PodBuilder:
        """Set fields of the spec, by their names on the wire."""
        return self._with(lambda document: document["spec"].update(fields))

    def metadata(self, **fields: Any) -> PodBuilder:
        """Set fields of the metadata, by their names on the wire; None drops one."""

        def change(document: Json) -> None:
            merged = document["metadata"] | fields
            document["metadata"] = {key: value for key, value in merged.items() if value is not None}

        return self._with(change)

    def annotated(self, annotations: Mapping[str, str | None]) -> PodBuilder:
        """Set annotations; None drops one."""

        def change(document: Json) -> None:
            merged = document["metadata"].get("annotations", {}) | annotations
            document["metadata"]["annotations"] = {key: value for key, value in merged.items() if value is not None}

        return self._with(change)

    def allocated(self, text: str) -> PodBuilder:
        """Carry the allocation `A[text]`, as HAMi's scheduler leaves it."""
        return self.annotated({ALLOCATED: text, NODE: "node-1"})

    def phase(self, phase: str) -> PodBuilder:
        """Set the phase."""
        return self._with(lambda document: document.setdefault("status", {}).update(phase=phase))

    def statuses(self, **states: int | str | Json | None) -> PodBuilder:
        """Set init container statuses: an exit code, `running` or `waiting`, a status as written, None for no state."""

        def change(document: Json) -> None:
            written = []
            for name, state in states.items():
                status: Json = {"name": name}
                if isinstance(state, int):
                    status["state"] = {"terminated": {"exitCode": state}}
                elif isinstance(state, str):
                    status["state"] = {state: {}}
                elif state is not None:
                    status |= state
                written.append(status)
            document.setdefault("status", {})["initContainerStatuses"] = written

        return self._with(change)

    def deleting(self, at: str = "2026-01-01T00:00:30Z") -> PodBuilder:
        """Set the deletion timestamp."""
        return self.metadata(deletionTimestamp=at)

    @property
    def document(self) -> Json:
        """The pod as it stands on the wire, to keep."""
        return copy.deepcopy(self._document)

    def build(self) -> Pod:
        """Return the pod decoded from its JSON."""
        return decode_pod(json.dumps(self._document).encode())

    def _with(self, change: Callable[[Json], None]) -> PodBuilder:
        document = self.document
        change(document)
        return PodBuilder(document)


def pod(name: str = "a", *, namespace: str = "team-a") -> PodBuilder:
    """Return a pod without containers, whose UID follows from its name."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return PodBuilder({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})


def quota_object(
    name: str = "gpu-cap",
    *,
    namespace: str = "team-a",
    hard: Mapping[str, Any] | None = None,
    scopes: Sequence[str] = (),
    selector: Sequence[Mapping[str, Any]] = (),
    **amounts: int | str,
) -> ResourceQuota:
    """Return a ResourceQuota on `limits.<name>` of each amount, and on whatever `hard` says."""
    limits = {f"limits.{NAMES[amount]}": str(value) for amount, value in amounts.items()}
    spec: Json = {"hard": limits | dict(hard or {})}
    if scopes:
        spec["scopes"] = list(scopes)
    if selector:
        spec["scopeSelector"] = {"matchExpressions": list(selector)}
    document = {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}, "spec": spec}
    return decode_resource_quota(json.dumps(document).encode())


def node(name: str = "node-1", *sizes_mib: int, model: str = "NVIDIA A100", mode: str = "hami-core") -> Node:
    """Return a node that registers a healthy card of each size; the UUIDs are `<node>-gpu-<index>`."""
    cards = [
        {
            "id": f"{name}-gpu-{index}",
            "count": 10,
            "devmem": size,
            "devcore": 100,
            "type": model,
            "mode": mode,
            "health": True,
        }
        for index, size in enumerate(sizes_mib)
    ]
    return node_with({REGISTER: json.dumps(cards)}, name)


def node_with(annotations: Mapping[str, str], name: str = "node-1") -> Node:
    """Return a node with the given annotations."""
    return decode_node(json.dumps({"metadata": {"name": name, "annotations": dict(annotations)}}).encode())


def review(
    subject: PodBuilder | Mapping[str, Any] | None,
    *,
    operation: str = "CREATE",
    namespace: str = "team-a",
    user: str = "system:serviceaccount:kube-system:replicaset-controller",
    groups: Sequence[str] = ("system:authenticated",),
    dry_run: bool = False,
    **fields: Any,
) -> bytes:
    """Return the body of a POST that asks for a review of `subject`; `fields` go into the request as they are."""
    document = subject.document if isinstance(subject, PodBuilder) else subject
    metadata = (document or {}).get("metadata")
    request = {
        "uid": "review-1",
        "operation": operation,
        "namespace": namespace,
        "name": metadata.get("name", "") if isinstance(metadata, dict) else "",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "dryRun": dry_run,
        "userInfo": {"username": user, "groups": list(groups)},
        "object": document,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | fields}
    return json.dumps(body).encode()


class World:
    """A cluster small enough to read: quotas, cards and pods are told to the ledger, creates are decided on it.

    Args:
        families: The families in force; the chart's NVIDIA block when none are given.
        policy: The policy's fields that differ from its defaults.
    """

    def __init__(self, families: Sequence[DeviceBackend] | None = None, **policy: Any) -> None:
        self.now = 1000.0
        self.rules = Rules(backends() if families is None else families, Policy(**policy))
        self.ledger = QuotaLedger(
            clock=lambda: self.now,
            lookup_after_s=self.rules.policy.lookup_after_s,
            mode=self.rules.policy.mode,
        )
        self.usage = UsageRules(
            backends=self.rules.backends,
            assumed_card_memory_mib=self.rules.policy.assumed_card_memory_mib,
            count_pending=not self.rules.policy.hami_compat,
        )

    # What the API server says.

    def quota(self, name: str = "gpu-cap", *, namespace: str = "team-a", **spec: Any) -> Quota:
        """Set a quota, as `quota_object` describes it."""
        quota = read_quota(quota_object(name, namespace=namespace, **spec), self.rules.keys)
        self.ledger.set_quota(namespace, quota)
        return quota

    def no_quota(self, name: str = "gpu-cap", *, namespace: str = "team-a") -> None:
        """Delete a quota."""
        self.ledger.drop_quota(namespace, name)

    def node(self, name: str, *sizes_mib: int, **kind: str) -> None:
        """Register a node's cards, none for a node that is gone."""
        registered = node(name, *sizes_mib, **kind)
        cards = {backend.key: backend.cards(registered) for backend in self.rules.backends}
        self.ledger.set_node(name, {family: found for family, found in cards.items() if found})

    def see(self, subject: PodBuilder) -> PodRecord | None:
        """Show a pod to the ledger, as an ADDED or MODIFIED event does, and return its record."""
        seen = subject.build()

        def change(previous: PodRecord | None, inventory: Any) -> PodRecord | None:
            return next_record(previous, seen, self.usage, inventory)

        return self.ledger.record_pod(seen.metadata.namespace, seen.metadata.uid, change)

    def gone(self, subject: PodBuilder) -> None:
        """Delete a pod, as a DELETED event does."""
        metadata = subject.document["metadata"]
        self.ledger.release_pod(metadata["namespace"], metadata["uid"])

    # What the webhook answers.

    def subject(self, subject: PodBuilder | Mapping[str, Any] | None, **request: Any) -> Candidate | Decision:
        """Return what `candidate` makes of a review."""
        return candidate(self.request(subject, **request), self.rules)

    def request(self, subject: PodBuilder | Mapping[str, Any] | None, **request: Any) -> AdmissionRequest:
        """Return a decoded request, as `review` describes it."""
        return decode_review(review(subject, **request))

    def create(self, subject: PodBuilder | Mapping[str, Any] | None, **request: Any) -> Decision:
        """Decide on a review, as `review` describes it, and reserve what is admitted."""
        found = self.subject(subject, **request)
        if isinstance(found, Decision):
            return found
        return self.ledger.update(found.namespace, found.uid, found.name, partial(self._decide, found))

    def _decide(self, found: Candidate, snapshot: Any) -> Decision:
        return decide(found, snapshot, self.rules)

    def admits(self, subject: PodBuilder, **request: Any) -> bool:
        """Decide as `create` does, and return whether the pod is allowed."""
        return self.create(subject, **request).is_allowed

    # What is held.

    def used(self, amount: str = "mem", *, quota: str = "gpu-cap", namespace: str = "team-a") -> int:
        """Return what is held against a quota, in accounting units."""
        return self.ledger.totals(namespace)[quota].get(NAMES[amount], 0)


def with_limits(container: Container, limits: Mapping[str, str]) -> Container:
    """Return a container with limits laid over its own, as HAMi's defaulting does."""
    resources = container.resources or Resources()
    merged = msgspec.structs.replace(resources, limits={**(resources.limits or {}), **limits})
    return msgspec.structs.replace(container, resources=merged)


def text(decision: Decision) -> str:
    """Return what the user reads of a refusal."""
    return denial.denial(decision)

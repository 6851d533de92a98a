"""From watch events to the ledger: one sink a resource type. Event, then `usage`, then `ledger`; nothing is decided.

Sinks are called by one thread each, one call at a time (see `reflector.Sink`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from webhook.api.node import Namespace, Node
from webhook.api.pod import Pod, PodMetadata, decode_pod
from webhook.api.resource_quota import ResourceQuota
from webhook.devices.registry import asks_for_managed
from webhook.errors import DecodeError
from webhook.policy import MODE_LABEL, Mode
from webhook.quotas import Quota, read_quota
from webhook.usage import PodRecord, UsageRules, next_record

if TYPE_CHECKING:
    import msgspec

    from webhook.admission import Rules
    from webhook.informers.reflector import ObjectRef
    from webhook.inventory import Inventory
    from webhook.ledger import QuotaLedger

_log = logging.getLogger(__name__)

_MODES = tuple(map(str, Mode))


class PodSink:
    """Keeps a record of every pod that asks for devices, or is said to hold some."""

    def __init__(self, ledger: QuotaLedger, rules: Rules) -> None:
        self._ledger = ledger
        self._managed = rules.managed
        self._allocated = frozenset(backend.allocated_annotation for backend in rules.backends)
        self._rules = UsageRules(
            backends=rules.backends,
            assumed_card_memory_mib=rules.policy.assumed_card_memory_mib,
            count_pending=not rules.policy.hami_compat,
        )
        self._known: dict[str, str] = {}
        self.problems = 0

    def decode(self, raw: bytes | msgspec.Raw) -> Pod:
        """Return a pod, and of one without devices just which it is: a whole list of them is held before `replaced`.

        Raises:
            DecodeError: The text is not a pod.
        """
        pod = decode_pod(raw)
        if self._is_ours(pod):
            return pod
        metadata = pod.metadata
        return Pod(
            metadata=PodMetadata(
                name=metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
            )
        )

    def replaced(self, items: Sequence[Pod], resource_version: str, odd: Sequence[ObjectRef]) -> None:  # noqa: ARG002
        """Record what is there and release what is not; a pod that cannot be read keeps its record."""
        there = {pod.metadata.uid for pod in items}.union(ref.uid for ref in odd)
        for uid in self._known.keys() - there:
            self._release(uid)
        for pod in items:
            self.upserted(pod)

    def upserted(self, item: Pod) -> None:
        """Record a pod as it stands now."""
        uid, namespace = item.metadata.uid, item.metadata.namespace
        if not self._is_ours(item):
            if uid in self._known:
                self._release(uid)
            return
        before: PodRecord | None = None

        def change(previous: PodRecord | None, inventory: Inventory) -> PodRecord | None:
            nonlocal before
            before = previous
            return next_record(previous, item, self._rules, inventory)

        record = self._ledger.record_pod(namespace, uid, change)
        if record is None:
            self._known.pop(uid, None)
            return
        self._known[uid] = namespace
        if record.problem and (before is None or before.problem != record.problem):
            self.problems += 1
            _log.warning("pod %s/%s: %s", namespace, item.metadata.name, record.problem)

    def deleted(self, ref: ObjectRef) -> None:
        """Release a pod that is gone."""
        self._known.pop(ref.uid, None)
        self._ledger.release_pod(ref.namespace, ref.uid)

    def undecodable(self, ref: ObjectRef) -> None:
        """Keep the record of a pod that cannot be read; the reflector has logged it."""

    def progressed(self, resource_version: str) -> None:
        """Need no watermark: admissions are kept in this process."""

    def resize(self, before: Inventory) -> None:
        """Work out anew what pending pods are charged whose figure depends on the registered cards."""
        sizes_changed = before.counts.keys() != self._ledger.inventory.counts.keys()
        for namespace, record in self._ledger.estimated():
            if sizes_changed or record.last_decoded is not None or self._names_cards(record):
                self._ledger.record_pod(namespace, record.uid, self._resized)

    def _resized(self, previous: PodRecord | None, inventory: Inventory) -> PodRecord | None:
        if previous is None or previous.estimated is None:
            return previous
        return next_record(previous, previous.estimated, self._rules, inventory)

    def _names_cards(self, record: PodRecord) -> bool:
        annotations = record.estimated.annotations if record.estimated else {}
        return any(backend.constraint(annotations).names_cards for backend in self._rules.backends)

    def _is_ours(self, pod: Pod) -> bool:
        annotations = pod.metadata.annotations
        return (annotations is not None and not self._allocated.isdisjoint(annotations)) or asks_for_managed(
            pod, self._managed
        )

    def _release(self, uid: str) -> None:
        self._ledger.release_pod(self._known.pop(uid), uid)


class QuotaSink:
    """Keeps the quotas, and says once for each object what looks wrong in it."""

    def __init__(self, ledger: QuotaLedger, rules: Rules) -> None:
        self._ledger = ledger
        self._keys = rules.keys
        self._unenforced = {backend.names.count for backend in rules.backends} - rules.keys.keys()
        self._known: dict[tuple[str, str], Quota] = {}
        self._said: dict[tuple[str, str], list[str]] = {}

    @property
    def unreadable(self) -> int:
        """How many keys of ours cannot be read, over all quotas."""
        return sum(len(quota.unreadable) for quota in list(self._known.values()))

    def replaced(self, items: Sequence[ResourceQuota], resource_version: str, odd: Sequence[ObjectRef]) -> None:  # noqa: ARG002
        """Set what is there and drop what is not; a quota that cannot be read keeps its limits."""
        there = {(item.metadata.namespace, item.metadata.name) for item in items}
        there.update((ref.namespace, ref.name) for ref in odd)
        for namespace, name in self._known.keys() - there:
            self._drop(namespace, name)
        for item in items:
            self.upserted(item)

    def upserted(self, item: ResourceQuota) -> None:
        """Set a quota in one step; a change of its status alone changes nothing."""
        namespace, name = item.metadata.namespace, item.metadata.name
        quota = read_quota(item, self._keys, self._unenforced)
        before = self._known.get((namespace, name))
        if quota == before:
            return
        self._known[namespace, name] = quota
        if quota.limits:
            self._ledger.set_quota(namespace, quota)
        elif before is not None and before.limits:
            self._ledger.drop_quota(namespace, name)
        remarks = [*quota.suspicions, *self._doubled(namespace, quota)]
        for remark in remarks:
            if remark not in self._said.get((namespace, name), ()):
                _log.warning("resourcequota %s/%s: %s", namespace, name, remark)
        self._said[namespace, name] = remarks

    def deleted(self, ref: ObjectRef) -> None:
        """Drop a quota that is gone."""
        self._drop(ref.namespace, ref.name)

    def undecodable(self, ref: ObjectRef) -> None:
        """Keep the limits of a quota that cannot be read; the reflector has logged it."""

    def progressed(self, resource_version: str) -> None:
        """Need no watermark."""

    def _drop(self, namespace: str, name: str) -> None:
        self._said.pop((namespace, name), None)
        quota = self._known.pop((namespace, name), None)
        if quota is not None and quota.limits:
            self._ledger.drop_quota(namespace, name)

    def _doubled(self, namespace: str, quota: Quota) -> list[str]:
        """Return what to say of keys that another quota of the namespace limits too."""
        return [
            f"limits {resource} as {name} does: both hold here, and HAMi's scheduler keeps only one of them"
            for name, other in sorted(self._ledger.quotas(namespace).items())
            if name != quota.name
            for resource in sorted(other.limits.keys() & quota.limits.keys())
        ]


class NodeSink:
    """Keeps the registered cards, and has pending requests sized anew when they change."""

    def __init__(self, ledger: QuotaLedger, rules: Rules, pods: PodSink) -> None:
        self._ledger = ledger
        self._backends = rules.backends
        self._pods = pods
        self._complaints: dict[str, str] = {}

    def replaced(self, items: Sequence[Node], resource_version: str, odd: Sequence[ObjectRef]) -> None:  # noqa: ARG002
        """Set what is there and drop what is not; a node that cannot be read keeps its cards."""
        before = self._ledger.inventory
        there = {item.metadata.name for item in items}.union(ref.name for ref in odd)
        for name in {*self._ledger.nodes(), *self._complaints} - there:
            self._drop(name)
        for item in items:
            self._set(item)
        self._resize(before)

    def upserted(self, item: Node) -> None:
        """Set the cards of a node."""
        before = self._ledger.inventory
        self._set(item)
        self._resize(before)

    def deleted(self, ref: ObjectRef) -> None:
        """Drop the cards of a node that is gone; the sizes stay known."""
        before = self._ledger.inventory
        self._drop(ref.name)
        self._resize(before)

    def undecodable(self, ref: ObjectRef) -> None:
        """Keep the cards of a node that cannot be read; the reflector has logged it."""

    def progressed(self, resource_version: str) -> None:
        """Need no watermark."""

    def _drop(self, name: str) -> None:
        self._complaints.pop(name, None)
        self._ledger.set_node(name, {})

    def _resize(self, before: Inventory) -> None:
        if self._ledger.inventory is not before:
            self._pods.resize(before)

    def _set(self, node: Node) -> None:
        cards = {}
        problem = ""
        for backend in self._backends:
            try:
                registered = backend.cards(node)
            except DecodeError as error:
                problem = str(error)
                continue
            if registered:
                cards[backend.key] = registered
        if problem and self._complaints.get(node.metadata.name) != problem:
            _log.warning("node %s: its cards are not known: %s", node.metadata.name, problem)
        if problem:
            self._complaints[node.metadata.name] = problem
        else:
            self._complaints.pop(node.metadata.name, None)
        self._ledger.set_node(node.metadata.name, cards)


class NamespaceSink:
    """Keeps each namespace's mode."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._ledger = ledger
        self._known: set[str] = set()
        self._odd: dict[str, str] = {}

    def replaced(self, items: Sequence[Namespace], resource_version: str, odd: Sequence[ObjectRef]) -> None:  # noqa: ARG002
        """Set what is there and drop what is not; a namespace that cannot be read keeps its mode."""
        there = {item.metadata.name for item in items}.union(ref.name for ref in odd)
        for name in self._known - there:
            self._drop(name)
        for item in items:
            self.upserted(item)

    def upserted(self, item: Namespace) -> None:
        """Set the mode of a namespace."""
        name, label = item.metadata.name, item.labels.get(MODE_LABEL)
        if label is not None and label not in _MODES and self._odd.get(name) != label:
            _log.warning(
                "namespace %s: %s=%r is no mode, so the default holds: use one of %s",
                name,
                MODE_LABEL,
                label,
                ", ".join(_MODES),
            )
            self._odd[name] = label
        self._known.add(name)
        self._ledger.set_mode_label(name, label)

    def deleted(self, ref: ObjectRef) -> None:
        """Forget a namespace that is gone."""
        self._drop(ref.name)

    def undecodable(self, ref: ObjectRef) -> None:
        """Keep the mode of a namespace that cannot be read; the reflector has logged it."""

    def progressed(self, resource_version: str) -> None:
        """Need no watermark."""

    def _drop(self, name: str) -> None:
        self._known.discard(name)
        self._odd.pop(name, None)
        self._ledger.drop_namespace(name)

"""Whatever pods do and however watches tell it, the ledger holds what a slower reading of the same documents holds.

A cluster of true objects sends watch events, late, twice, or folded into a list; the real reflectors and sinks apply
them. Beside them stands `Model`, plain arithmetic over the JSON documents, which shares no code with what it checks. It
follows the documented rules for the three things that are remembered beyond the objects: that the shrink gate was open,
the last figure that decoded, and the kinds of card once registered. A restart forgets all three.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from builders import ALLOCATED, CORES, COUNT, MEMORY, PERCENT, REGISTER, World, backends
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from property.strategies import pod_specs, quota_specs
from webhook.api.node import decode_namespace, decode_node
from webhook.api.pod import decode_pod
from webhook.api.resource_quota import decode_resource_quota
from webhook.informers.endings import Trouble
from webhook.informers.handlers import NamespaceSink, NodeSink, PodSink, QuotaSink
from webhook.informers.reflector import Reflector
from webhook.review import forget_if_gone

Json = dict[str, Any]
Amounts = dict[str, int]

KINDS = ("pods", "quotas", "nodes", "namespaces")
NAMESPACES = ("team-a", "team-b")
USE_TYPE, USE_UUID = "nvidia.com/use-gputype", "nvidia.com/use-gpuuuid"
RESOURCES = (COUNT, MEMORY, CORES)


# The cluster.


class Cluster:
    """The true objects, and the watch events that were not delivered yet.

    It is the API server of the reflectors and of the look-ups: `get` lists, `pod_uid` finds one pod.
    """

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, dict[tuple[str, str], Json]] = {kind: {} for kind in KINDS}
        self.queues: dict[str, list[tuple[str, Json]]] = {kind: [] for kind in KINDS}
        self.delivered: dict[str, list[tuple[str, Json]]] = {kind: [] for kind in KINDS}

    def put(self, kind: str, document: Json) -> None:
        """Store an object and tell it."""
        self.version += 1
        document = copy.deepcopy(document)
        document["metadata"]["resourceVersion"] = str(self.version)
        key = key_of(document)
        self.queues[kind].append(("MODIFIED" if key in self.objects[kind] else "ADDED", document))
        self.objects[kind][key] = document

    def delete(self, kind: str, key: tuple[str, str]) -> None:
        """Remove an object and tell it."""
        self.version += 1
        document = copy.deepcopy(self.objects[kind].pop(key))
        document["metadata"]["resourceVersion"] = str(self.version)
        self.queues[kind].append(("DELETED", document))

    def listed(self, kind: str) -> list[Json]:
        """Return the true objects; watches that start from here tell nothing of the time before."""
        self.queues[kind].clear()
        self.delivered[kind].clear()
        return list(self.objects[kind].values())

    def get(self, path: str, params: Json, timeout_s: float) -> bytes:
        """Answer a list."""
        items = [wire(item) for item in self.objects[path].values()]
        return json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": items}).encode()

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        """Answer a look-up."""
        found = self.objects["pods"].get((namespace, name))
        return found["metadata"]["uid"] if found else None

    @property
    def is_quiet(self) -> bool:
        """Whether everything was told."""
        return not any(self.queues.values())


def key_of(document: Json) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def wire(document: Json) -> Json:
    """Return an object as it is sent; an odd one has a field of a type that nobody can read."""
    if not document.get("odd"):
        return document
    metadata = document["metadata"]
    broken = {"metadata": {name: metadata[name] for name in metadata if name not in ("annotations", "labels")}}
    broken["metadata"]["annotations"] = "odd"
    return broken | {"spec": "odd"}


# The slower reading, in plain arithmetic from documents.


def containers(document: Json) -> list[tuple[str, Json]]:
    spec = document["spec"]
    first = [("sidecar" if c.get("restartPolicy") == "Always" else "init", c) for c in spec.get("initContainers", [])]
    return first + [("app", c) for c in spec["containers"]]


def number(text: str) -> int:
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


def ask(container: Json) -> tuple[int, int, int, int] | str:
    """Return cards, memory of one in own units, its percentage and its cores; or `nothing`, or `broken`."""
    given = {name: number(text) for name, text in container["resources"]["limits"].items() if name != "cpu"}
    if not given:
        return "nothing"
    cards = given.get(COUNT, 1)
    memory, percent = given.get(MEMORY), given.get(PERCENT)
    takes_all = percent == 100 if percent is not None else memory is None
    cores = given.get(CORES, 100 if takes_all else 0)
    if (percent or 0) > 100 or cores > 100:
        return "broken"
    if cards == 0:
        return "nothing" if memory is None and percent is None and cores in (0, 100) else "broken"
    return cards, memory or 0, percent or 100, cores


def is_asking(container: Json) -> bool:
    return not isinstance(ask(container), str)


def walk(steps: list[tuple[str, dict[Any, int]]]) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the peak and the steady state, key by key."""
    peak, steady = {}, {}
    for key in {key for _, amounts in steps for key in amounts}:
        running = highest = 0
        for kind, amounts in steps:
            if kind == "init":
                highest = max(highest, running + amounts.get(key, 0))
            else:
                running += amounts.get(key, 0)
        peak[key], steady[key] = max(highest, running), running
    return peak, steady


def recorded(document: Json) -> tuple[Amounts, Amounts] | str:
    """Return peak and steady state of the devices in the annotation; or `absent`, or `garbage`."""
    text = document["metadata"].get("annotations", {}).get(ALLOCATED)
    if text is None:
        return "absent"
    segments = []
    for segment in text.removesuffix(";").split(";"):
        devices = [piece.split(",") for piece in segment.split(":") if piece]
        for device in devices:
            if len(device) < 4 or not all(re.fullmatch("[0-9]{1,9}", figure) for figure in device[2:4]):
                return "garbage"
        segments.append([device for device in devices if device != ["", "", "0", "0"]])
    everyone = containers(document)
    asking = [container["name"] for _, container in everyone if is_asking(container)]
    if len(segments) == len(asking) < len(everyone):
        laid = dict(zip(asking, segments, strict=True))
        segments = [laid.get(container["name"], []) for _, container in everyone]
    if len(segments) != len(everyone):
        return "garbage"
    steps = []
    for (kind, container), devices in zip(everyone, segments, strict=True):
        if is_asking(container) and not devices:
            return "garbage"
        amounts: dict[Any, int] = defaultdict(int)
        for uuid, _, memory, cores in (device[:4] for device in devices):
            amounts[uuid, MEMORY] += int(memory)
            amounts[uuid, CORES] += int(cores)
            amounts[uuid, COUNT] += 1
        steps.append((kind, amounts))
    return tuple(
        {resource: sum(amount for (_, name), amount in by_card.items() if name == resource) for resource in RESOURCES}
        for by_card in walk(steps)
    )


def are_inits_done(document: Json) -> bool:
    said = {item["name"]: item for item in document.get("status", {}).get("initContainerStatuses", [])}
    ends = [
        said.get(container["name"], {}).get("state", {}).get("terminated", {}).get("exitCode") == 0
        for kind, container in containers(document)
        if kind == "init"
    ]
    return bool(document["spec"].get("initContainers")) and all(ends)


def in_scope(quota: Json, spec: Json) -> bool:
    priority = spec.get("priorityClassName", "")
    everyone = [*spec.get("initContainers", []), *spec["containers"]]
    is_best_effort = not any("cpu" in container["resources"]["limits"] for container in everyone)
    holds = {
        "Terminating": "activeDeadlineSeconds" in spec,
        "NotTerminating": "activeDeadlineSeconds" not in spec,
        "BestEffort": is_best_effort,
        "NotBestEffort": not is_best_effort,
        "PriorityClass": bool(priority),
    }
    answers = [holds[scope] for scope in quota.get("scopes", [])]
    for item in quota.get("scopeSelector", {}).get("matchExpressions", []):
        values = item.get("values", [])
        by_operator = {
            "In": priority in values,
            "NotIn": priority not in values,
            "Exists": priority != "",
            "DoesNotExist": priority == "",
        }
        answers.append(by_operator[item["operator"]])
    return all(answers)


@dataclass
class Memory:
    """What is known of a pod: its last document, whether its gate was open, and its last figure."""

    document: Json
    is_open: bool
    figure: tuple[Amounts, Amounts] | None


def figure_of(document: Json, before: Memory | None) -> tuple[Amounts, Amounts] | None:
    """Return what the annotation says, else what the last one said that could be read."""
    found = recorded(document)
    return found if isinstance(found, tuple) else before and before.figure


@dataclass
class Promise:
    """An admitted pod that was not shown yet."""

    document: Json
    charge: Amounts


@dataclass
class Model:
    """What one process was shown."""

    factor: int
    pods: dict[str, Memory] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    quotas: dict[tuple[str, str], Json] = field(default_factory=dict)
    nodes: dict[str, Json] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    kinds_once_known: set[tuple[str, int]] = field(default_factory=set)

    # What is shown.

    def event(self, kind: str, change: str, document: Json) -> None:
        if change == "DELETED":
            self._gone(kind, document)
        elif not document.get("odd"):
            self._shown(kind, document)

    def listed(self, kind: str, documents: list[Json]) -> None:
        known = {
            "pods": self.pods,
            "quotas": self.quotas,
            "nodes": self.nodes,
            "namespaces": self.modes,
        }[kind]
        there = {self._key(kind, document) for document in documents}
        for key in list(known):
            if key not in there:
                del known[key]
        for document in documents:
            if not document.get("odd"):
                self._shown(kind, document)

    def _key(self, kind: str, document: Json) -> Any:
        metadata = document["metadata"]
        return {"pods": metadata.get("uid"), "quotas": key_of(document)}.get(kind, metadata["name"])

    def _gone(self, kind: str, document: Json) -> None:
        key = self._key(kind, document)
        if kind == "pods":
            self.pods.pop(key, None)
            self.promises.pop(key, None)
        elif kind == "quotas":
            self.quotas.pop(key, None)
        elif kind == "nodes":
            self.nodes.pop(key, None)
        else:
            self.modes.pop(key, None)

    def _shown(self, kind: str, document: Json) -> None:
        key = self._key(kind, document)
        if kind == "pods":
            self.promises.pop(key, None)
            self._remember(key, document)
        elif kind == "quotas":
            self.quotas[key] = document
        elif kind == "nodes":
            self.nodes[key] = document
            self.kinds_once_known.update((model, size) for _, model, size in cards(document))
        else:
            self.modes[key] = document["metadata"].get("labels", {}).get("hami-quota/mode", "")

    def _remember(self, uid: str, document: Json) -> None:
        before = self.pods.pop(uid, None)
        names_us = any(set(c["resources"]["limits"]) - {"cpu"} for _, c in containers(document))
        found = recorded(document)
        if document["status"]["phase"] in ("Succeeded", "Failed") or (found == "absent" and not names_us):
            return
        figure = figure_of(document, before)
        asks = {ask(c) if isinstance(ask(c), str) else "something" for _, c in containers(document)}
        if figure or found == "garbage" or asks != {"nothing"}:
            is_open = (before is not None and before.is_open) or are_inits_done(document)
            self.pods[uid] = Memory(document, is_open, figure)

    # What follows from it.

    def size(self, document: Json) -> int | None:
        """Return the largest card that the pod could get."""
        annotations = document["metadata"].get("annotations", {})
        model, uuid = annotations.get(USE_TYPE, ""), annotations.get(USE_UUID)
        registered = [card for node in self.nodes.values() for card in cards(node)]
        now = [size for card, kind, size in registered if model in kind and uuid in (None, card)]
        once = [size for kind, size in self.kinds_once_known if model in kind]
        return max(now or once, default=None)

    def requested(self, document: Json) -> tuple[Amounts, Amounts]:
        """Return peak and steady state of what the containers that can be used ask for."""
        steps = []
        for kind, container in containers(document):
            asked = ask(container)
            amounts: Amounts = {}
            if not isinstance(asked, str):
                count, memory, percent, cores = asked
                one = memory * self.factor or (self.size(document) or 0) * percent // 100
                amounts = {COUNT: count, MEMORY: one * count, CORES: cores * count}
            steps.append((kind, amounts))
        return walk(steps)

    def charge(self, uid: str) -> Amounts:
        memory = self.pods[uid]
        peak, steady = memory.figure or self.requested(memory.document)
        return nonzero(steady if memory.is_open else peak)

    def limits(self, quota: Json) -> Amounts:
        hard = quota["spec"]["hard"]
        return {
            resource: number(hard[f"limits.{resource}"]) * (self.factor if resource == MEMORY else 1)
            for resource in RESOURCES
            if f"limits.{resource}" in hard and "." not in hard[f"limits.{resource}"]
        }

    def quotas_of(self, namespace: str) -> dict[str, Json]:
        """Return the quotas that limit anything of ours."""
        return {name: quota for (where, name), quota in self.quotas.items() if where == namespace if self.limits(quota)}

    def seats(self, namespace: str, quota: Json, without: str = "", *, deleting: bool = False) -> dict[str, Amounts]:
        """Return what each name holds against a quota: of several pods of one name the largest amounts."""
        claims = [(uid, promise.document, promise.charge, False) for uid, promise in self.promises.items()]
        for uid, memory in self.pods.items():
            is_deleting = "deletionTimestamp" in memory.document["metadata"]
            claims.append((uid, memory.document, self.charge(uid), is_deleting))
        seats: dict[str, Amounts] = {}
        for uid, document, charge, is_deleting in claims:
            where, name = key_of(document)
            is_meant = where == namespace and uid != without and (is_deleting or not deleting)
            if is_meant and in_scope(quota["spec"], document["spec"]):
                seat = seats.setdefault(name, dict.fromkeys(self.limits(quota), 0))
                for resource in seat:
                    seat[resource] = max(seat[resource], charge.get(resource, 0))
        return seats

    def totals(self, namespace: str, *, deleting: bool = False) -> dict[str, Amounts]:
        return {
            name: nonzero(total(self.seats(namespace, quota, deleting=deleting).values()))
            for name, quota in self.quotas_of(namespace).items()
        }

    def judge(self, document: Json, *, is_dry_run: bool) -> bool:
        """Return whether a new pod is allowed, and take note of what is set aside for it."""
        namespace, name = key_of(document)
        uid = document["metadata"]["uid"]
        mode = self.modes.get(namespace)
        is_enforced = mode not in ("off", "warn", "audit")
        asked = [ask(container) for _, container in containers(document)]
        if mode == "off" or all(item == "nothing" for item in asked):
            return True
        if "broken" in asked:
            return not is_enforced
        charge = nonzero(self.requested(document)[0])
        is_sized = self.size(document) is not None or all(item == "nothing" or item[1] for item in asked)
        applying = [q for q in self.quotas_of(namespace).values() if in_scope(q["spec"], document["spec"])]
        fits = True
        for quota in applying:
            seats = self.seats(namespace, quota, without=uid)
            own_seat = seats.setdefault(name, {})
            for resource, limit in self.limits(quota).items():
                if resource == MEMORY and not is_sized:
                    fits = False
                if charge.get(resource):
                    own_seat[resource] = max(own_seat.get(resource, 0), charge[resource])
                    fits = fits and sum(seat.get(resource, 0) for seat in seats.values()) <= limit
        is_allowed = fits or not is_enforced
        if is_allowed and applying and not is_dry_run and uid not in self.pods:
            self.promises[uid] = Promise(copy.deepcopy(document), charge)
        return is_allowed


def cards(node: Json) -> list[tuple[str, str, int]]:
    """Return the UUID, the model and the memory of each registered card."""
    try:
        found = json.loads(node["metadata"]["annotations"][REGISTER])
    except ValueError:
        return []
    return [(card["id"], card["type"].lower(), card["devmem"]) for card in found]


def nonzero(amounts: Amounts) -> Amounts:
    return {resource: amount for resource, amount in amounts.items() if amount}


def total(many: Any) -> Amounts:
    result: Amounts = defaultdict(int)
    for amounts in many:
        for resource, amount in amounts.items():
            result[resource] += amount
    return result


# The product, wired as it is in a cluster.


class Process:
    """One process of ours: a ledger, its sinks, and a reflector for each; everything listed once."""

    def __init__(self, cluster: Cluster, factor: int, order: tuple[str, ...] = KINDS) -> None:
        self.world = World(backends(memoryFactor=factor))
        self.ledger = self.world.ledger
        self.model = Model(factor)
        self.odd_events = dict.fromkeys(KINDS, 0)
        self._cluster = cluster
        rules = self.world.rules
        pods = PodSink(self.ledger, rules)
        self.reflectors: dict[str, Reflector[Any]] = {
            kind: Reflector(
                name=kind,
                api_server=cluster,
                path=kind,
                decode=decode,
                version_of=lambda item: item.metadata.resource_version,
                sink=sink,
            )
            for kind, decode, sink in (
                ("pods", decode_pod, pods),
                ("quotas", decode_resource_quota, QuotaSink(self.ledger, rules)),
                ("nodes", decode_node, NodeSink(self.ledger, rules, pods)),
                ("namespaces", decode_namespace, NamespaceSink(self.ledger)),
            )
        }
        for kind in order:
            self.load(kind)

    def load(self, kind: str) -> None:
        documents = self._cluster.listed(kind)
        self.odd_events[kind] += sum(bool(document.get("odd")) for document in documents)
        self.reflectors[kind].load()
        self.model.listed(kind, documents)

    def event(self, kind: str, change: str, document: Json) -> None:
        self.odd_events[kind] += bool(document.get("odd")) and change != "DELETED"
        line = json.dumps({"type": change, "object": wire(document)}).encode()
        assert self.reflectors[kind].follow([line]).trouble is None
        self.model.event(kind, change, document)


class ConvergenceMachine(RuleBasedStateMachine):
    """Pods, quotas, nodes and namespaces change at any time, and what is told of it comes at any other."""

    @initialize(
        factor=st.sampled_from((1, 10)), quota=quota_specs(), specs=st.lists(pod_specs(), min_size=2, max_size=2)
    )
    def start(self, factor: int, quota: Json, specs: list[Json]) -> None:
        logging.disable(logging.CRITICAL)
        self.factor = factor
        self.cluster = Cluster()
        self.uids = 0
        self.put_quota("team-a", "q0", quota)
        self.put_node("n0", ((0, 40_000),))
        self.put_node("n1", ((1, 80_000),))
        self.process = Process(self.cluster, factor)
        for name, spec in zip(("a", "b"), specs, strict=True):
            self.create(namespace="team-a", name=name, spec=spec, sizing={}, review="away")

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)

    # Pods.

    @rule(
        namespace=st.sampled_from((*NAMESPACES, NAMESPACES[0])),
        name=st.sampled_from(("a", "b", "c")),
        spec=pod_specs(),
        sizing=st.sampled_from(
            ({}, {}, {}, {USE_TYPE: "a100"}, {USE_TYPE: "h100"}, {USE_UUID: "n0-0"}, {USE_UUID: "n1-1"})
        ),
        review=st.sampled_from(("yes", "yes", "dry run", "away")),
        is_lost=st.booleans() | st.just(value=False),
        is_swept=st.booleans(),
    )
    def create(
        self,
        *,
        namespace: str,
        name: str,
        spec: Json,
        sizing: Json,
        review: str,
        is_lost: bool = False,
        is_swept: bool = False,
    ) -> None:
        """A pod is reviewed, unless the webhook is away, and stored if that and everybody else allows it."""
        self.uids += 1
        metadata = {"namespace": namespace, "name": name, "uid": f"u{self.uids}", "annotations": dict(sizing)}
        document = {"metadata": metadata, "spec": copy.deepcopy(spec), "status": {"phase": "Pending"}}
        is_allowed = review == "away" or self.judge(document, is_dry_run=review == "dry run")
        is_taken = (namespace, name) in self.cluster.objects["pods"]
        if is_allowed and review != "dry run" and not is_lost and not is_taken:
            self.cluster.put("pods", document)
        elif is_swept:
            self.sweep()

    def judge(self, document: Json, *, is_dry_run: bool = False) -> bool:
        decision = self.process.world.create(document, namespace=document["metadata"]["namespace"], dry_run=is_dry_run)
        want = self.process.model.judge(document, is_dry_run=is_dry_run)
        assert decision.is_allowed is want, f"{decision}"
        return want

    def chosen(self, pick: int, kind: str = "pods") -> Json:
        objects = self.cluster.objects[kind]
        return copy.deepcopy(objects[sorted(objects)[pick % len(objects)]])

    def has_pods(self) -> bool:
        return bool(self.cluster.objects["pods"])

    def change(self, document: Json, *, is_told: bool) -> None:
        """Store a pod that changed; often it is told at once, so that states follow one another in the ledger too."""
        self.cluster.put("pods", document)
        if is_told:
            self.deliver("pods", len(self.cluster.queues["pods"]))

    picks = st.integers(0, 2)
    told = st.booleans() | st.just(value=True)

    @precondition(has_pods)
    @rule(pick=picks)
    def review_again(self, pick: int) -> None:
        """The API server asks once more about a pod that it stored, with the pod as it was then."""
        document = self.chosen(pick)
        document["metadata"]["annotations"].pop(ALLOCATED, None)
        self.judge(document)

    @precondition(has_pods)
    @rule(
        pick=picks,
        layout=st.sampled_from(("full", "full", "sparse")),
        devices=st.lists(
            st.lists(
                st.tuples(
                    st.sampled_from(("n0-0", "n1-1")), st.sampled_from((700, 4000, 0)), st.sampled_from((0, 10, 50))
                ),
                min_size=1,
                max_size=2,
            ),
            min_size=5,
            max_size=5,
        ),
        generous=st.booleans(),
        is_told=told,
    )
    def allocate(self, *, pick: int, layout: str, devices: list[list[Any]], generous: bool, is_told: bool) -> None:
        """HAMi's scheduler records devices, in either layout; now and then it gives some to who asked none."""
        document = self.chosen(pick)
        text = ""
        for (_, container), given in zip(containers(document), devices, strict=False):
            gets = is_asking(container) or (generous and layout == "full")
            if gets:
                text += "".join(f"{uuid},NVIDIA,{memory},{cores}:" for uuid, memory, cores in given)
            if gets or layout == "full":
                text += ";"
        document["metadata"]["annotations"][ALLOCATED] = text
        self.change(document, is_told=is_told)

    @precondition(has_pods)
    @rule(
        pick=picks,
        is_told=told,
        text=st.sampled_from(
            (None, "", "garbage", ";;", "n0-0,NVIDIA,-5,0:;", "n0-0,NVIDIA,7:;", "n0-0,NVIDIA,700,5:;", ",,0,0:;;;;;;")
        ),
    )
    def spoil_allocation(self, *, pick: int, text: str | None, is_told: bool) -> None:
        """Somebody rewrites the annotation, or drops it."""
        document = self.chosen(pick)
        document["metadata"]["annotations"].pop(ALLOCATED, None)
        if text is not None:
            document["metadata"]["annotations"][ALLOCATED] = text
        self.change(document, is_told=is_told)

    @precondition(has_pods)
    @rule(
        pick=picks,
        is_told=told,
        init_states=st.lists(st.sampled_from((0, 0, 0, 1, "running", "missing", "last")), min_size=3, max_size=3)
        | st.just([0, 0, 0]),
        sidecar_states=st.lists(st.sampled_from(("running", "waiting", 0, 1, "missing")), min_size=3, max_size=3),
    )
    def init_containers_progress(
        self, *, pick: int, init_states: list[Any], sidecar_states: list[Any], is_told: bool
    ) -> None:
        """Init containers run, end and fail, and are at times not told of; sidecars crash and come back."""
        document = self.chosen(pick)
        written = []
        for position, (kind, container) in enumerate(containers(document)):
            if kind == "app":
                break
            state = (init_states if kind == "init" else sidecar_states)[position]
            status: Json = {"name": container["name"]}
            if isinstance(state, int):
                status["state"] = {"terminated": {"exitCode": state}}
            elif state == "last":
                status |= {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 0}}}
            else:
                status["state"] = {state: {}}
            if state != "missing":
                written.append(status)
        document["status"]["initContainerStatuses"] = written
        self.change(document, is_told=is_told)

    @precondition(has_pods)
    @rule(
        pick=picks,
        change=st.sampled_from(("running", "succeeded", "failed", "deleting", "deleting", "deadline", "odd", "odd")),
    )
    def pod_changes(self, pick: int, change: str) -> None:
        """A pod ends, is being deleted, moves to another scope, or becomes one that cannot be read, or can again."""
        document = self.chosen(pick)
        if change == "deleting":
            document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        elif change == "deadline":
            document["spec"]["activeDeadlineSeconds"] = 30
        elif change == "odd":
            document["odd"] = not document.get("odd")
        elif document["status"]["phase"] not in ("Succeeded", "Failed"):
            document["status"]["phase"] = change.title()
        self.cluster.put("pods", document)

    @precondition(has_pods)
    @rule(pick=picks, is_made_anew=st.booleans() | st.just(value=True))
    def delete_pod(self, pick: int, *, is_made_anew: bool) -> None:
        """A pod is gone; a controller may make another of its name, while the webhook is away."""
        document = self.chosen(pick)
        self.cluster.delete("pods", key_of(document))
        if is_made_anew:
            self.uids += 1
            metadata = {**document["metadata"], "uid": f"u{self.uids}", "annotations": {}}
            metadata.pop("deletionTimestamp", None)
            self.cluster.put("pods", {"metadata": metadata, "spec": document["spec"], "status": {"phase": "Pending"}})

    # Quotas, nodes, namespaces.

    @rule(
        namespace=st.sampled_from((*NAMESPACES, NAMESPACES[0])), name=st.sampled_from(("q0", "q1")), spec=quota_specs()
    )
    def put_quota(self, namespace: str, name: str, spec: Json) -> None:
        """A quota is made or changed."""
        self.cluster.put("quotas", {"metadata": {"namespace": namespace, "name": name}, "spec": spec})

    @rule(
        name=st.sampled_from(("n0", "n1")),
        registered=st.lists(
            st.tuples(st.sampled_from((0, 1)), st.sampled_from((40_000, 80_000))), max_size=2, unique_by=lambda c: c[0]
        )
        | st.none(),
    )
    def put_node(self, name: str, registered: Any) -> None:
        """A node registers cards, none, or something that cannot be read."""
        cards = [
            {"id": f"{name}-{index}", "count": 10, "devmem": size, "devcore": 100, "health": True, "mode": "hami-core"}
            | {"type": "NVIDIA H100" if index else "NVIDIA A100"}
            for index, size in registered or ()
        ]
        text = "garbage" if registered is None else json.dumps(cards)
        self.cluster.put("nodes", {"metadata": {"name": name, "annotations": {REGISTER: text}}})

    @rule(
        name=st.sampled_from(NAMESPACES), label=st.sampled_from((None, "enforce", "warn", "audit", "off", "misspelt"))
    )
    def put_namespace(self, name: str, label: str | None) -> None:
        """A namespace is made, or its label changes."""
        labels = {"hami-quota/mode": label} if label else {}
        self.cluster.put("namespaces", {"metadata": {"name": name, "labels": labels}})

    @rule(kind=st.sampled_from(("quotas", "nodes", "namespaces")), pick=picks, change=st.sampled_from(("gone", "odd")))
    def lose(self, kind: str, pick: int, change: str) -> None:
        """An object is deleted, or becomes one that cannot be read, or can again."""
        if self.cluster.objects[kind]:
            document = self.chosen(pick, kind)
            if change == "gone":
                self.cluster.delete(kind, key_of(document))
            elif kind != "namespaces":
                document["odd"] = not document.get("odd")
                self.cluster.put(kind, document)

    # What is told of it.

    def has_news(self) -> bool:
        return not self.cluster.is_quiet

    @precondition(has_news)
    @rule(kind=st.sampled_from(KINDS), count=st.sampled_from((1, 1, 3)))
    def deliver(self, kind: str, count: int) -> None:
        """The next events arrive."""
        for _ in range(count):
            if self.cluster.queues[kind]:
                change, document = self.cluster.queues[kind].pop(0)
                self.cluster.delivered[kind].append((change, document))
                self.process.event(kind, change, document)

    @precondition(has_news)
    @rule(order=st.permutations(KINDS))
    def deliver_all(self, order: list[str]) -> None:
        """Everything arrives, and all is quiet."""
        for kind in order:
            self.deliver(kind, len(self.cluster.queues[kind]))

    @rule(kind=st.sampled_from(KINDS), count=st.integers(1, 4))
    def resume(self, kind: str, count: int) -> None:
        """A watch resumes from a while ago: the last events come again, in their order, before the next ones."""
        delivered = self.cluster.delivered[kind]
        again = delivered[-count:]
        del delivered[-count:]
        self.cluster.queues[kind][:0] = again

    @rule(kind=st.sampled_from(KINDS), pick=picks, is_one_gone=st.booleans())
    def relist(self, kind: str, pick: int, *, is_one_gone: bool) -> None:
        """A watch breaks: what it had yet to tell, perhaps that something is gone, is folded into a list."""
        if is_one_gone and self.cluster.objects[kind]:
            self.cluster.delete(kind, key_of(self.chosen(pick, kind)))
        self.process.load(kind)

    @rule(order=st.permutations(KINDS))
    def restart(self, order: list[str]) -> None:
        """The process starts anew, and the lists arrive in any order."""
        self.process = Process(self.cluster, self.factor, tuple(order))

    @rule()
    def sweep(self) -> None:
        """Every admission that was not seen is looked up."""
        process = self.process
        for namespace, item in process.ledger.unseen(0):
            is_gone = forget_if_gone(process.ledger, self.cluster, namespace, item, 1.0)
            assert is_gone is (self.cluster.pod_uid(namespace, item.name, 1.0) != item.uid)
            if is_gone:
                del process.model.promises[item.uid]

    # The laws.

    @invariant()
    def what_is_held_is_what_was_shown(self) -> None:
        """Pod by pod, and quota by quota."""
        process = self.process
        model, ledger = process.model, process.ledger
        shown: dict[str, dict[str, Amounts]] = defaultdict(dict)
        for uid, memory in model.pods.items():
            shown[memory.document["metadata"]["namespace"]][uid] = model.charge(uid)
        for namespace in NAMESPACES:
            records, reservations = ledger.records(namespace), ledger.reservations(namespace)
            assert {uid: nonzero(dict(record.charge)) for uid, record in records.items()} == shown[namespace]
            assert {uid: nonzero(dict(item.charge)) for uid, item in reservations.items()} == {
                uid: promise.charge
                for uid, promise in model.promises.items()
                if promise.document["metadata"]["namespace"] == namespace
            }
            assert {name: dict(quota.limits) for name, quota in ledger.quotas(namespace).items()} == {
                name: model.limits(quota) for name, quota in model.quotas_of(namespace).items()
            }
            mode = model.modes.get(namespace)
            assert ledger.view(namespace).mode == (mode if mode in ("warn", "audit", "off") else "enforce")
            totals = ledger.totals(namespace)
            assert all(amount >= 0 for amounts in totals.values() for amount in amounts.values())
            assert {name: nonzero(amounts) for name, amounts in totals.items()} == model.totals(namespace)
            assert {use.quota.name: nonzero(dict(use.terminating)) for use in ledger.snapshot(namespace).uses} == (
                model.totals(namespace, deleting=True)
            )

    @invariant()
    def only_odd_objects_were_complained_of(self) -> None:
        """No event made a sink fail."""
        for kind, reflector in self.process.reflectors.items():
            assert reflector.statistics().errors[Trouble.ODD_OBJECT] == self.process.odd_events[kind]

    @invariant()
    def when_all_is_told_the_truth_is_held(self) -> None:
        """Nothing but what is remembered, and what cannot be read, tells the ledger from one filled just now."""
        if not self.cluster.is_quiet:
            return
        process = self.process
        truth = {kind: self.cluster.objects[kind] for kind in KINDS}
        told = copy.copy(process.model)
        told.nodes = self._true("nodes", told.nodes, lambda document: document["metadata"]["name"])
        told.quotas = self._true("quotas", told.quotas, key_of)
        told.pods = {
            uid: memory
            if true.get("odd")
            else Memory(true, memory.is_open or are_inits_done(true), figure_of(true, memory))
            for true in truth["pods"].values()
            if (uid := true["metadata"]["uid"]) and (memory := told.pods.get(uid))
        }
        for namespace in NAMESPACES:
            totals = process.ledger.totals(namespace)
            assert {name: nonzero(amounts) for name, amounts in totals.items()} == told.totals(namespace)
        fresh = Model(self.factor)
        for kind in KINDS:
            fresh.listed(kind, list(truth[kind].values()))
        is_sized_alike = fresh.kinds_once_known == told.kinds_once_known and fresh.nodes == told.nodes
        for true in truth["pods"].values():
            uid = true["metadata"]["uid"]
            held = process.ledger.records(true["metadata"]["namespace"]).get(uid)
            now, before = fresh.pods.get(uid), told.pods.get(uid)
            if true.get("odd") or (now and before and now != before):
                continue
            assert (held is None) == (now is None)
            if held is not None and (is_sized_alike or now.figure):
                assert nonzero(dict(held.charge)) == fresh.charge(uid)

    def _true(self, kind: str, shown: Any, key: Any) -> Any:
        """Return the true objects by key; of those that cannot be read, what was last shown."""
        found = {}
        for document in self.cluster.objects[kind].values():
            if not document.get("odd"):
                found[key(document)] = document
            elif key(document) in shown:
                found[key(document)] = shown[key(document)]
        return found


ConvergenceMachine.TestCase.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None, print_blob=True
)
TestConvergence = ConvergenceMachine.TestCase

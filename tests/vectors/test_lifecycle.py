"""The namespace's use over the lives of its pods, event by event, where pending pods count nothing.

Events go the way they go in the webhook: from an object's JSON through the sink of the pods into the ledger.
"""

from __future__ import annotations

import json

import pytest
from builders import World, quota_object

from vectors.files import Json, backends, cases, device_keys, is_ours, load, scheduled_pod
from vectors.test_shrink_gate import state
from webhook.allocation import Allocated, encode_segments
from webhook.api.pod import decode_pod
from webhook.informers.handlers import PodSink
from webhook.informers.reflector import ObjectRef
from webhook.quotas import read_quota

# Weak spots whose answer the design leaves to us: the last two tests have it.
PINNED = {"A19", "A35"}


def is_in_force(case: Json) -> bool:
    """Return whether every pod of a case asks for nothing but families in force."""
    entries = [entry for pod in case["pods"].values() for entry in pod["init"] + pod["apps"]]
    return all(device_keys().issuperset(entry.get("devices", {})) for entry in entries)


def pinned(tag: str) -> list[Json]:
    """Return a parameter for each case in force of one weak spot."""
    return cases("lifecycle.json", lambda case: is_in_force(case) and tag in case.get("weak_spot", "").split(", "))


def asking(case: Json) -> Json:
    """Return a case of NVIDIA cards whose containers ask for as much as they hold, without the signs."""

    def container(written: Json) -> Json:
        ((_, memory, cores),) = written["devices"]["NVIDIA"]
        asked = {"gpu": 1, "gpumem": abs(memory), "gpucores": abs(cores)}
        return written | {"limits": {f"nvidia.com/{name}": str(amount) for name, amount in asked.items()}}

    pods = {
        name: {where: [container(written) for written in entry[where]] for where in ("init", "apps")}
        for name, entry in case["pods"].items()
    }
    return case | {"pods": pods}


def shown(case: Json, step: Json) -> Json:
    """Return the pod that an event shows."""
    families = backends({})
    entry = case["pods"][step["pod"]]
    manifest = scheduled_pod(entry, families)
    manifest["metadata"] |= {"name": step["pod"], "uid": f"uid-{step['pod']}", "resourceVersion": "1"}
    status: Json = {"phase": step["phase"]} if "phase" in step else {}
    status["initContainerStatuses"] = [
        {"name": name, "state": state(text)} for name, text in step.get("init_states", {}).items()
    ]
    manifest["status"] = status
    if step.get("terminating"):
        manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    if "node" in step and not step.get("annotations_removed"):
        held = case["pods"][step.get("devices_of", step["pod"])]
        manifest["metadata"]["annotations"] = {"hami.io/vgpu-node": step["node"]} | {
            backend.allocated_annotation: encode_segments(
                [
                    [
                        Allocated(uuid, backend.key, memory, cores)
                        for uuid, memory, cores in devices.get(backend.key, [])
                    ]
                    for devices in (written.get("devices", {}) for written in held["init"] + held["apps"])
                ]
            )
            for backend in families
            if any(backend.key in written.get("devices", {}) for written in held["init"] + held["apps"])
        }
        if "allocation_text" in step:
            manifest["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = step["allocation_text"]
    return manifest


class Replay:
    """A ledger filled by the sink of the pods.

    Args:
        document: Whose configuration is in force.
        policy: The policy's fields that differ from its defaults.
    """

    def __init__(self, document: Json, **policy: bool) -> None:
        self._world = World(backends(document), **policy)
        keys = self._world.rules.keys
        hard = {f"limits.{resource}": "1000000000" for resource in keys}
        self._world.ledger.set_quota("team-a", read_quota(quota_object(hard=hard), keys))
        self._counts = {backend.names.count for backend in self._world.rules.backends}
        self._there: dict[str, bytes] = {}
        self.sink = PodSink(self._world.ledger, self._world.rules)

    def take(self, case: Json, step: Json) -> None:
        """Apply one event; a deletion that the watch missed shows as a list without the pod."""
        pod = json.dumps(shown(case, step)).encode()
        if step["event"] in {"add", "update"}:
            self._there[step["pod"]] = pod
            self.sink.upserted(decode_pod(pod))
            return
        self._there.pop(step["pod"], None)
        if step["event"] == "delete":
            uid = f"uid-{step['pod']}"
            self.sink.deleted(ObjectRef(namespace="team-a", name=step["pod"], uid=uid, resource_version="1"))
        else:
            self.sink.replaced([decode_pod(text) for text in self._there.values()], "1", ())

    def used(self) -> dict[str, int]:
        """Return the namespace's use by resource name, without zeros and without the counts of cards."""
        totals = self._world.ledger.totals("team-a")["gpu-cap"]
        return {name: amount for name, amount in totals.items() if amount and name not in self._counts}

    def counted(self) -> list[str]:
        """Return the pods that a record counts by what was allocated to them."""
        records = self._world.ledger.records("team-a").values()
        return sorted(record.name for record in records if record.last_decoded is not None)


@pytest.mark.parametrize(
    ("document", "case"), cases("lifecycle.json", lambda case: is_in_force(case) and is_ours(case))
)
def test_use_follows_every_event(document: Json, case: Json) -> None:
    replay = Replay(document, hami_compat=True)
    used, counted = [], []
    for step in case["steps"]:
        replay.take(case, step)
        used.append(replay.used())
        counted.append(replay.counted())

    assert used == case.get("want_design_used", [want["used"] for want in case["want"]])
    if "weak_spot" not in case:
        assert counted == [want["counted"] for want in case["want"]]


def test_every_case_left_out_is_of_a_kind_that_has_a_test_of_its_own() -> None:
    left_out = [case for case in load("lifecycle.json")["cases"] if is_in_force(case) and not is_ours(case)]

    assert {tag for case in left_out for tag in case["weak_spot"].split(", ")} <= PINNED


@pytest.mark.parametrize(("document", "case"), pinned("A19"))
def test_an_allocation_that_cannot_be_read_counts_as_the_pods_own_request(document: Json, case: Json) -> None:
    """HAMi drops the pod, or takes garbage for no device: either way its card would be sold twice."""
    replay = Replay(document)
    case = asking(case)
    added, deleted = case["steps"]

    replay.take(case, added)
    assert replay.used() == {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 10}
    assert replay.sink.problems == 1

    replay.take(case, deleted)
    assert replay.used() == {}


@pytest.mark.parametrize(("document", "case"), pinned("A35"))
def test_negative_figures_count_as_the_pods_own_request(document: Json, case: Json) -> None:
    """HAMi takes them off what the namespace uses."""
    replay = Replay(document)
    case = asking(case)
    used = []
    for step in case["steps"]:
        replay.take(case, step)
        used.append(replay.used())

    assert used == [
        {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 10},
        {"nvidia.com/gpumem": 7000, "nvidia.com/gpucores": 20},
        {"nvidia.com/gpumem": 6000, "nvidia.com/gpucores": 20},
    ]

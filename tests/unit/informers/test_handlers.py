from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from builders import ALLOCATED, CORES, MEMORY, REGISTER, PodBuilder, World, node, node_with, pod, quota_object

from webhook.api.node import Namespace, decode_namespace
from webhook.informers.handlers import NamespaceSink, NodeSink, PodSink, QuotaSink
from webhook.informers.reflector import ObjectRef
from webhook.policy import Mode
from webhook.usage import Stage

WARNINGS = logging.WARNING


def ref(name: str, namespace: str = "team-a") -> ObjectRef:
    """Return the reference of an object that the builders name."""
    return ObjectRef(namespace=namespace, name=name, uid=f"uid-{name}", resource_version="7")


class Sinks:
    """The sinks over a ledger of their own, and what the log of one step said."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **policy: Any) -> None:
        caplog.set_level(WARNINGS)
        self.world = World(**policy)
        self.ledger = self.world.ledger
        self.pods = PodSink(self.ledger, self.world.rules)
        self.quotas = QuotaSink(self.ledger, self.world.rules)
        self.nodes = NodeSink(self.ledger, self.world.rules, self.pods)
        self.namespaces = NamespaceSink(self.ledger)
        self._caplog = caplog

    def see(self, *subjects: PodBuilder) -> None:
        for subject in subjects:
            self.pods.upserted(subject.build())

    def list(self, *subjects: PodBuilder, odd: Sequence[ObjectRef] = ()) -> None:
        self.pods.replaced([subject.build() for subject in subjects], "9", odd)

    def held(self, namespace: str = "team-a") -> dict[str, int]:
        """Return the memory that each pod holds, by name."""
        return {record.name: record.charge.get(MEMORY, 0) for record in self.ledger.records(namespace).values()}

    def said(self) -> list[str]:
        """Return the warnings since the last call."""
        messages = [record.getMessage() for record in self._caplog.records if record.levelno >= WARNINGS]
        self._caplog.clear()
        return messages


@pytest.fixture
def sinks(caplog: pytest.LogCaptureFixture) -> Sinks:
    return Sinks(caplog)


# Pods.


def test_a_pod_is_recorded_as_it_changes_and_released_when_it_is_gone(sinks: Sinks):
    work = pod("a").init("load", mem=6000).app("main", mem=4000)
    sinks.see(work)
    assert sinks.held() == {"a": 6000}
    sinks.see(work.statuses(load=0))
    assert sinks.held() == {"a": 4000}
    sinks.pods.deleted(ref("a"))
    assert sinks.held() == {}
    sinks.pods.deleted(ref("a"))  # a late delete
    assert (sinks.held(), sinks.said()) == ({}, [])


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(pod("a").app("main"), id="asks for nothing"),
        pytest.param(pod("a").app("main", limits={"cpu": "1", "example.com/gpu": "1"}), id="asks for other things"),
        pytest.param(pod("a").app("main", gpu=1, mem=100).phase("Succeeded"), id="has ended"),
    ],
)
def test_a_pod_that_holds_nothing_has_no_record(sinks: Sinks, subject: PodBuilder):
    sinks.see(subject)
    sinks.list(subject)
    assert sinks.ledger.records("team-a") == {}


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(pod("a").app("main", requests={MEMORY: "100"}), id="a request without a limit"),
        pytest.param(pod("a").app("main").allocated("GPU-a,NVIDIA,100,0:;"), id="an allocation alone"),
    ],
)
def test_a_pod_that_names_us_anywhere_is_looked_at(sinks: Sinks, subject: PodBuilder):
    """What it then counts is `usage`'s to say."""
    assert sinks.pods._is_ours(subject.build())


@pytest.mark.parametrize(
    ("subject", "want_whole"),
    [
        pytest.param(pod("a").app("main", mem=100), True, id="one that asks"),
        pytest.param(pod("a").app("main").allocated("GPU-a,NVIDIA,100,0:;"), True, id="an allocation alone"),
        pytest.param(pod("a").app("main", limits={"cpu": "1"}).phase("Running"), False, id="one without devices"),
    ],
)
def test_of_a_pod_without_devices_nothing_is_kept_but_which_it_is(
    sinks: Sinks, subject: PodBuilder, *, want_whole: bool
):
    read = subject.build()
    kept = sinks.pods.decode(msgspec.json.encode(read))
    assert kept.metadata == read.metadata
    assert (kept == read) is want_whole
    assert kept.spec.containers == (read.spec.containers if want_whole else [])


def test_a_pod_that_stops_asking_is_released(sinks: Sinks):
    held = pod("a").app("main").allocated("GPU-a,NVIDIA,100,0:;")
    sinks.see(held)
    assert sinks.held() == {"a": 100}
    sinks.see(held.annotated({ALLOCATED: None}))
    assert sinks.held() == {}


def test_a_pod_that_ends_is_released(sinks: Sinks):
    work = pod("a").app("main", mem=100)
    sinks.see(work)
    sinks.see(work.phase("Failed"))
    assert sinks.held() == {}
    sinks.see(work)  # an event out of its order would come with an older state
    assert sinks.held() == {"a": 100}


def test_a_list_replaces_what_is_known_but_for_what_cannot_be_read(sinks: Sinks):
    a, b, c, d = (pod(name).app("main", mem=100) for name in "abcd")
    other = pod("e", namespace="team-b").app("main", mem=100)
    sinks.list(a, b, c, other)
    assert (sinks.held(), sinks.held("team-b")) == ({"a": 100, "b": 100, "c": 100}, {"e": 100})
    # b is there and cannot be read; c and e are gone; d is new.
    sinks.list(a, d, odd=[ref("b")])
    assert (sinks.held(), sinks.held("team-b")) == ({"a": 100, "b": 100, "d": 100}, {})
    sinks.list(a)
    assert sinks.held() == {"a": 100}


def test_a_pod_made_anew_under_its_name_is_another(sinks: Sinks):
    sinks.list(pod("a").app("main", mem=100))
    sinks.list(pod("a").metadata(uid="uid-2").app("main", mem=300))
    assert [(uid, record.charge[MEMORY]) for uid, record in sinks.ledger.records("team-a").items()] == [("uid-2", 300)]


def test_a_pod_that_cannot_be_read_any_more_keeps_its_record(sinks: Sinks):
    sinks.see(pod("a").app("main", mem=100))
    sinks.pods.undecodable(ref("a"))
    assert sinks.held() == {"a": 100}


def test_an_admitted_pod_is_no_reservation_once_it_is_seen(sinks: Sinks):
    sinks.quotas.upserted(quota_object(mem=1000))
    work = pod("a").app("main", mem=600)
    assert sinks.world.admits(work)
    sinks.see(work)
    assert sinks.ledger.reservations("team-a") == {}
    assert sinks.world.used() == 600


def test_what_is_wrong_with_a_pod_is_said_and_counted_once(sinks: Sinks):
    good = pod("a").app("main", mem=100).allocated("GPU-a,NVIDIA,100,0:;")
    broken = good.allocated("GPU-a,NVIDIA,many,0:;")
    sinks.see(good)
    assert (sinks.said(), sinks.pods.problems) == ([], 0)
    sinks.see(broken)
    (said,) = sinks.said()
    assert said.startswith("pod team-a/a: ")
    assert ALLOCATED in said
    sinks.see(broken, broken.phase("Running"))
    sinks.list(broken)
    assert (sinks.said(), sinks.pods.problems) == ([], 1)
    # It heals and breaks again, and then in another way: both are news.
    sinks.see(good, broken)
    sinks.see(good.annotated({ALLOCATED: None}))
    assert (len(sinks.said()), sinks.pods.problems) == (2, 3)
    assert sinks.held() == {"a": 100}


def test_under_hami_compat_a_pending_pod_counts_nothing(caplog: pytest.LogCaptureFixture):
    sinks = Sinks(caplog, hami_compat=True)
    work = pod("a").app("main", mem=100)
    sinks.see(work)
    assert sinks.held() == {"a": 0}
    sinks.see(work.allocated("GPU-a,NVIDIA,100,0:;"))
    assert sinks.held() == {"a": 100}


# Quotas.


def limits(sinks: Sinks, namespace: str = "team-a") -> dict[str, dict[str, int]]:
    return {name: dict(quota.limits) for name, quota in sinks.ledger.quotas(namespace).items()}


def test_a_quota_is_set_changed_and_dropped(sinks: Sinks):
    sinks.quotas.upserted(quota_object(mem=1000, cores=100))
    assert limits(sinks) == {"gpu-cap": {MEMORY: 1000, CORES: 100}}
    sinks.quotas.upserted(quota_object(mem=500))
    assert limits(sinks) == {"gpu-cap": {MEMORY: 500}}
    sinks.quotas.deleted(ref("gpu-cap"))
    sinks.quotas.deleted(ref("gpu-cap"))
    assert (limits(sinks), sinks.said()) == ({}, [])


def test_a_quota_without_keys_of_ours_is_none_to_the_ledger(sinks: Sinks):
    sinks.quotas.upserted(quota_object(hard={"pods": "10", "requests.cpu": "4"}))
    assert (limits(sinks), sinks.ledger.namespaces(), sinks.said()) == ({}, [], [])
    sinks.quotas.upserted(quota_object(hard={"pods": "10"}, mem=1000))
    assert limits(sinks) == {"gpu-cap": {MEMORY: 1000}}
    sinks.quotas.upserted(quota_object(hard={"pods": "10"}))
    assert limits(sinks) == {}
    sinks.quotas.deleted(ref("gpu-cap"))
    assert limits(sinks) == {}


def test_a_list_of_quotas_replaces_what_is_known_but_for_what_cannot_be_read(sinks: Sinks):
    kept, broken, gone = (quota_object(name, mem=1000) for name in ("kept", "broken", "gone"))
    sinks.quotas.replaced([kept, broken, gone, quota_object(namespace="team-b", mem=1)], "1", ())
    sinks.said()
    sinks.quotas.replaced([kept, quota_object("new", cores=100)], "2", [ref("broken")])
    assert limits(sinks) == {"kept": {MEMORY: 1000}, "broken": {MEMORY: 1000}, "new": {CORES: 100}}
    assert limits(sinks, "team-b") == {}
    sinks.quotas.replaced([kept], "3", ())
    assert limits(sinks) == {"kept": {MEMORY: 1000}}


def test_a_quota_that_cannot_be_read_any_more_keeps_its_limits(sinks: Sinks):
    sinks.quotas.upserted(quota_object(mem=1000))
    sinks.quotas.undecodable(ref("gpu-cap"))
    assert limits(sinks) == {"gpu-cap": {MEMORY: 1000}}


def test_an_unchanged_quota_makes_no_decision_run_again(sinks: Sinks):
    """Kubernetes writes a quota's status at every use; the decision of a pod is not disturbed by that."""
    sinks.quotas.upserted(quota_object(mem=1000))

    def decide(snapshot: Any) -> Any:
        sinks.quotas.upserted(quota_object(mem=1000))
        return sinks.world._decide(subject, snapshot)

    subject = sinks.world.subject(pod("a").app("main", mem=100))
    sinks.ledger.update("team-a", "uid-a", "a", decide)
    assert sinks.ledger.statistics().conflicts == 0


@pytest.mark.parametrize(
    ("hard", "want"),
    [
        pytest.param(
            {f"limits.{MEMORY}": "24Gi"}, f"limits.{MEMORY}: 24Gi looks like bytes; the unit is MiB", id="bytes"
        ),
        pytest.param(
            {f"limits.{MEMORY}": "1500m"},
            f"limits.{MEMORY}: '1500m' is not enforced: write a plain integer, MiB",
            id="a fraction",
        ),
        pytest.param(
            {f"requests.{MEMORY}": "1"}, f"requests.{MEMORY}: key not enforced, write limits.{MEMORY}", id="a prefix"
        ),
        pytest.param(
            {"limits.nvidia.com/gpumen": "1"},
            f"limits.nvidia.com/gpumen: key not enforced, did you mean limits.{MEMORY}?",
            id="a letter",
        ),
    ],
)
def test_a_suspicious_quota_is_remarked_on_once(sinks: Sinks, hard: dict[str, str], want: str):
    said = f"resourcequota team-a/gpu-cap: {want}"
    sinks.quotas.upserted(quota_object(hard=hard))
    assert sinks.said() == [said]
    sinks.quotas.upserted(quota_object(hard=hard))
    sinks.quotas.upserted(quota_object(hard=hard | {f"limits.{CORES}": "100"}))
    sinks.quotas.replaced([quota_object(hard=hard)], "2", ())
    assert sinks.said() == []
    # Another object is another matter, and so is this one once it was gone.
    sinks.quotas.upserted(quota_object("other", namespace="team-b", hard=hard))
    sinks.quotas.deleted(ref("gpu-cap"))
    sinks.quotas.upserted(quota_object(hard=hard))
    assert sinks.said() == [said.replace("team-a/gpu-cap", "team-b/other"), said]


def test_keys_that_cannot_be_read_are_counted_as_they_stand(sinks: Sinks):
    sinks.quotas.upserted(quota_object(mem="1500m", cores="-1"))
    sinks.quotas.upserted(quota_object("other", mem="0.5"))
    assert sinks.quotas.unreadable == 3
    sinks.quotas.upserted(quota_object(mem=1000, cores="-1"))
    assert sinks.quotas.unreadable == 2
    sinks.quotas.replaced([], "2", ())
    assert sinks.quotas.unreadable == 0


def test_two_quotas_on_one_key_are_warned_about_once(sinks: Sinks):
    warning = (
        f"resourcequota team-a/second: limits {MEMORY} as first does: both hold here, and HAMi's scheduler keeps only "
        "one of them"
    )
    sinks.quotas.replaced(
        [
            quota_object("first", mem=1000),
            quota_object("second", mem=500),
            quota_object("cores", cores=100),
            quota_object("elsewhere", namespace="team-b", mem=1000),
        ],
        "1",
        (),
    )
    assert sinks.said() == [warning]
    assert limits(sinks) == {"first": {MEMORY: 1000}, "second": {MEMORY: 500}, "cores": {CORES: 100}}
    # A changed figure does not make it news; a second key does, with what was said left unsaid.
    sinks.quotas.upserted(quota_object("second", mem=600))
    assert sinks.said() == []
    sinks.quotas.upserted(quota_object("second", mem=600, cores=50))
    assert sinks.said() == [warning.replace(MEMORY, CORES).replace("as first", "as cores")]


def test_a_limit_on_cards_that_is_switched_off_is_nothing_to_remark_on(caplog: pytest.LogCaptureFixture):
    sinks = Sinks(caplog, count_quota=False)
    sinks.quotas.upserted(quota_object(gpu=4, mem=1000))
    assert (limits(sinks), sinks.said()) == ({"gpu-cap": {MEMORY: 1000}}, [])


# Nodes.


def cards(sinks: Sinks) -> dict[int, int]:
    """Return how many cards of each size are registered."""
    return {of.kind.memory_mib: count for of, count in sinks.ledger.inventory.counts.items()}


def test_cards_follow_their_nodes(sinks: Sinks):
    sinks.nodes.upserted(node("node-1", 40960, 40960))
    sinks.nodes.upserted(node("node-2", 24576))
    assert cards(sinks) == {40960: 2, 24576: 1}
    sinks.nodes.upserted(node("node-1", 40960))
    assert cards(sinks) == {40960: 1, 24576: 1}
    sinks.nodes.deleted(ref("node-2", ""))
    sinks.nodes.deleted(ref("node-2", ""))
    assert (cards(sinks), sinks.ledger.nodes()) == ({40960: 1}, ["node-1"])


def test_a_list_of_nodes_replaces_what_is_known_but_for_what_cannot_be_read(sinks: Sinks):
    sinks.nodes.replaced([node("kept", 1000), node("broken", 2000), node("gone", 3000)], "1", ())
    assert cards(sinks) == {1000: 1, 2000: 1, 3000: 1}
    sinks.nodes.replaced([node("kept", 1000), node("new", 4000), node("bare")], "2", [ref("broken", "")])
    assert cards(sinks) == {1000: 1, 2000: 1, 4000: 1}
    sinks.nodes.replaced([], "3", ())
    assert (cards(sinks), sinks.ledger.nodes()) == ({}, [])


def test_a_node_that_cannot_be_read_any_more_keeps_its_cards(sinks: Sinks):
    sinks.nodes.upserted(node("node-1", 1000))
    sinks.nodes.undecodable(ref("node-1", ""))
    assert cards(sinks) == {1000: 1}


def test_a_registration_that_cannot_be_read_is_said_once_and_its_cards_are_not_known(sinks: Sinks):
    good, broken = node("node-1", 1000), node_with({REGISTER: "[{]"})
    sinks.nodes.upserted(good)
    sinks.nodes.upserted(broken)
    (said,) = sinks.said()
    assert said.startswith(f"node node-1: its cards are not known: {REGISTER}: ")
    assert cards(sinks) == {}
    sinks.nodes.upserted(broken)
    sinks.nodes.replaced([broken], "2", ())
    assert sinks.said() == []
    # Whole and broken again is news; broken in another way too.
    sinks.nodes.upserted(good)
    assert cards(sinks) == {1000: 1}
    sinks.nodes.upserted(broken)
    sinks.nodes.upserted(node_with({REGISTER: '[{"devmem": -1}]'}))
    assert len(sinks.said()) == 2


@pytest.mark.parametrize("way", ["an event", "a list"])
def test_a_broken_node_that_went_and_came_back_is_news(sinks: Sinks, way: str):
    broken = node_with({REGISTER: "[{]"})
    sinks.nodes.upserted(broken)
    if way == "an event":
        sinks.nodes.deleted(ref("node-1", ""))
    else:
        sinks.nodes.replaced([], "2", ())
    sinks.nodes.upserted(broken)
    assert len(sinks.said()) == 2


def test_one_broken_registration_leaves_the_others_alone(sinks: Sinks):
    sinks.nodes.replaced([node_with({REGISTER: "[{]"}, "node-1"), node("node-2", 1000)], "1", ())
    assert cards(sinks) == {1000: 1}
    assert len(sinks.said()) == 1


# Pending pods whose figure depends on the registered cards.


HALF = pod("half").app("main", pct=50)
WHOLE = pod("whole").app("main", gpu=1)
PLAIN = pod("plain").app("main", mem=100)
NAMED = pod("named").app("main", pct=50).annotated({"nvidia.com/use-gpuuuid": "node-1-gpu-0,node-2-gpu-0"})


def test_pending_pods_are_sized_anew_when_cards_appear_and_disappear(sinks: Sinks):
    sinks.see(HALF, WHOLE, PLAIN)
    # No size is known yet.
    assert sinks.held() == {"half": 0, "whole": 0, "plain": 100}
    sinks.nodes.upserted(node("node-1", 24000))
    assert sinks.held() == {"half": 12000, "whole": 24000, "plain": 100}
    sinks.nodes.upserted(node("node-2", 40000))
    assert sinks.held() == {"half": 20000, "whole": 40000, "plain": 100}
    sinks.nodes.deleted(ref("node-2", ""))
    assert sinks.held() == {"half": 12000, "whole": 24000, "plain": 100}
    # Once known, a size is kept while no card is registered: of both, the larger.
    sinks.nodes.replaced([], "5", ())
    assert sinks.held() == {"half": 20000, "whole": 40000, "plain": 100}
    sinks.nodes.replaced([node("node-3", 16000)], "6", ())
    assert sinks.held() == {"half": 8000, "whole": 16000, "plain": 100}


def test_a_pod_that_names_its_cards_is_sized_anew_though_no_size_is_new(sinks: Sinks):
    sinks.nodes.replaced([node("node-0", 40000, 24000), node("node-1", 24000)], "1", ())
    sinks.see(HALF, NAMED)
    assert sinks.held() == {"half": 20000, "named": 12000}
    sinks.nodes.upserted(node("node-2", 40000))  # its card is one of those named
    assert sinks.held() == {"half": 20000, "named": 20000}


def test_an_allocated_pod_keeps_the_figure_that_was_recorded(sinks: Sinks):
    sinks.nodes.upserted(node("node-1", 24000))
    sinks.see(HALF.allocated("node-1-gpu-0,NVIDIA,12000,0:;"))
    sinks.nodes.upserted(node("node-2", 40000))
    assert sinks.held() == {"half": 12000}


def test_a_pod_that_is_gone_is_not_brought_back_by_new_cards(sinks: Sinks):
    sinks.nodes.upserted(node("node-1", 24000))
    sinks.see(HALF)
    sinks.pods.deleted(ref("half"))
    sinks.nodes.upserted(node("node-2", 40000))
    assert sinks.held() == {}


def test_a_pod_sized_anew_keeps_what_is_remembered_of_it(sinks: Sinks):
    """Its gate was once open, and a status that forgets this does not close it again."""
    work = pod("a").init("load", pct=100).app("main", pct=50)
    sinks.nodes.upserted(node("node-1", 24000))
    sinks.see(work.statuses(load=0), work)
    assert sinks.held() == {"a": 12000}
    sinks.nodes.upserted(node("node-2", 40000))
    assert sinks.held() == {"a": 20000}
    (record,) = sinks.ledger.records("team-a").values()
    assert record.stage is Stage.SHRUNK


def test_a_change_of_a_node_that_registers_the_same_cards_sizes_nothing(sinks: Sinks, monkeypatch: pytest.MonkeyPatch):
    """Kubelets write their node every few seconds."""
    sinks.nodes.upserted(node("node-1", 24000))
    monkeypatch.setattr(sinks.pods, "resize", None)
    sinks.nodes.upserted(node("node-1", 24000))
    sinks.nodes.replaced([node("node-1", 24000)], "2", ())
    sinks.nodes.upserted(node("bare"))


# Namespaces.


def namespace(name: str, **labels: str) -> Namespace:
    return decode_namespace(json.dumps({"metadata": {"name": name, "labels": labels}}).encode())


def mode(sinks: Sinks, name: str) -> Mode:
    return sinks.ledger.snapshot(name).mode


@pytest.mark.parametrize(
    ("label", "want"),
    [
        pytest.param("warn", Mode.WARN, id="warn"),
        pytest.param("audit", Mode.AUDIT, id="audit"),
        pytest.param("off", Mode.OFF, id="off"),
        pytest.param("enforce", Mode.ENFORCE, id="enforce"),
        pytest.param("", Mode.ENFORCE, id="empty: the default"),
        pytest.param("Off", Mode.ENFORCE, id="not a mode: the default"),
    ],
)
def test_the_label_of_a_namespace_is_its_mode(sinks: Sinks, label: str, want: Mode):
    sinks.namespaces.upserted(namespace("team-a", **{"hami-quota/mode": label}))
    assert mode(sinks, "team-a") is want


def test_a_mode_ends_with_its_label_and_with_its_namespace(sinks: Sinks):
    labelled = namespace("team-a", **{"hami-quota/mode": "warn"})
    sinks.namespaces.upserted(labelled)
    sinks.namespaces.upserted(namespace("team-a", other="warn"))
    assert mode(sinks, "team-a") is Mode.ENFORCE
    sinks.namespaces.upserted(labelled)
    sinks.namespaces.deleted(ref("team-a", ""))
    sinks.namespaces.deleted(ref("team-a", ""))
    assert mode(sinks, "team-a") is Mode.ENFORCE


def test_a_list_of_namespaces_replaces_what_is_known_but_for_what_cannot_be_read(sinks: Sinks):
    label = {"hami-quota/mode": "warn"}
    names = ("kept", "broken", "gone")
    sinks.namespaces.replaced([namespace(name, **label) for name in names], "1", ())
    sinks.namespaces.undecodable(ref("broken", ""))
    sinks.namespaces.replaced([namespace("kept", **label), namespace("new", **label)], "2", [ref("broken", "")])
    assert [name for name in (*names, "new") if mode(sinks, name) is Mode.WARN] == ["kept", "broken", "new"]


def test_what_pods_hold_outlives_their_namespace(sinks: Sinks):
    sinks.namespaces.upserted(namespace("team-a"))
    sinks.see(pod("a").app("main", mem=100))
    sinks.namespaces.deleted(ref("team-a", ""))
    assert sinks.held() == {"a": 100}
    sinks.pods.deleted(ref("a"))
    assert sinks.ledger.namespaces() == []


def test_versions_without_an_object_are_taken_by_every_sink(sinks: Sinks):
    for sink in (sinks.pods, sinks.quotas, sinks.nodes, sinks.namespaces):
        sink.progressed("12")
    assert (sinks.said(), sinks.ledger.namespaces()) == ([], [])


def test_a_label_that_is_no_mode_is_told_once_and_the_default_holds(sinks: Sinks, caplog: pytest.LogCaptureFixture):
    for _ in range(2):
        sinks.namespaces.upserted(namespace("team-a", **{"hami-quota/mode": "wran"}))
    assert mode(sinks, "team-a") is Mode.ENFORCE
    [said] = caplog.messages
    assert said.startswith("namespace team-a: hami-quota/mode='wran' is no mode, so the default holds: ")
    assert said.endswith("use one of enforce, warn, audit, off")

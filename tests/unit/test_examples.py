"""The cluster and the reviews in `examples/`, judged by the rules; every figure is worked out by hand beside it."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from webhook.admission import Candidate, Decision, Rules, Verdict, candidate, decide
from webhook.api.admission_review import decode_review
from webhook.api.node import decode_namespace, decode_node
from webhook.api.pod import Pod, convert_pod, decode_pod
from webhook.api.resource_quota import decode_resource_quota
from webhook.effective import effective
from webhook.files import manifest_files, read_documents
from webhook.ledger import QuotaLedger
from webhook.policy import MODE_LABEL, Mode, Policy
from webhook.quotas import read_quota
from webhook.reports.denial import denial, warnings
from webhook.state_directory import StateDirectory
from webhook.usage import PodRecord, Stage, UsageRules, next_record

if TYPE_CHECKING:
    from webhook.inventory import Inventory

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLUSTER = EXAMPLES / "cluster"

COUNT, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"

# chat has its sidecar and its server at once; train has finished its init container, so 4000 of once 12000 are left.
CHAT = {COUNT: 1 + 1, MEMORY: 2000 + 8000, CORES: 10 + 50}
TRAIN = {COUNT: 1, MEMORY: 4000}
# notebook asks for a card and says no memory: that is a whole card, the largest there is, with all of its cores.
NOTEBOOK = {COUNT: 1, MEMORY: 40960, CORES: 100}
LIMITS = {COUNT: 8, MEMORY: 24576, CORES: 200}

FITS = {COUNT: 1, MEMORY: 4000, CORES: 20}
# The proxy beside the loader is the busiest moment for memory, beside the server for cores.
REFUSED = {COUNT: 1 + 1, MEMORY: 2000 + 20000, CORES: 10 + 50}


class Cluster:
    """The example cluster in a ledger, and the rules of the example configuration."""

    def __init__(self) -> None:
        self.rules = Rules.from_config((EXAMPLES / "device-config.yaml").read_text(), Policy())
        self.ledger = QuotaLedger(clock=lambda: 0.0, lookup_after_s=10.0, mode=self.rules.policy.mode)
        takers = {"Namespace": self._namespace, "Node": self._node, "ResourceQuota": self._quota, "Pod": self._pod}
        told: dict[str, list[bytes]] = {}
        StateDirectory(CLUSTER, {kind: partial(told.__setitem__, kind) for kind in takers}).load()
        for kind, take in takers.items():
            for text in told[kind]:
                take(text)

    def _namespace(self, text: bytes) -> None:
        namespace = decode_namespace(text)
        self.ledger.set_mode_label(namespace.metadata.name, namespace.labels.get(MODE_LABEL))

    def _node(self, text: bytes) -> None:
        node = decode_node(text)
        cards = {backend.key: backend.cards(node) for backend in self.rules.backends}
        self.ledger.set_node(node.metadata.name, {family: found for family, found in cards.items() if found})

    def _quota(self, text: bytes) -> None:
        quota = decode_resource_quota(text)
        read = read_quota(quota, self.rules.keys)
        assert (read.suspicions, read.unreadable) == ((), ())
        self.ledger.set_quota(quota.metadata.namespace, read)

    def _pod(self, text: bytes) -> None:
        pod = decode_pod(text)
        usage = UsageRules(backends=self.rules.backends, assumed_card_memory_mib={})

        def change(previous: PodRecord | None, inventory: Inventory) -> PodRecord | None:
            return next_record(previous, pod, usage, inventory)

        record = self.ledger.record_pod(pod.metadata.namespace, pod.metadata.uid, change)
        assert record is not None
        assert record.problem == ""

    def record(self, namespace: str, name: str) -> PodRecord:
        (found,) = (record for record in self.ledger.records(namespace).values() if record.name == name)
        return found

    def review(self, name: str) -> Decision:
        request = decode_review((EXAMPLES / "reviews" / name).read_bytes())
        subject = candidate(request, self.rules)
        assert isinstance(subject, Candidate)

        def judge(snapshot: object) -> Decision:
            return decide(subject, snapshot, self.rules)

        return self.ledger.update(subject.namespace, subject.uid, subject.name, judge)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_directory_holds_two_teams_two_nodes_and_three_pods():
    documents = [document for path in manifest_files(CLUSTER) for document in read_documents(path)]
    kinds = Counter(document.content["kind"] for document in documents)
    assert kinds == {"Namespace": 2, "ResourceQuota": 2, "Node": 2, "Pod": 3}
    assert all(document.content["apiVersion"] == "v1" for document in documents)


def test_the_nodes_register_their_cards(cluster: Cluster):
    counts = cluster.ledger.inventory.counts
    assert {(of.kind.model, of.kind.memory_mib): count for of, count in counts.items()} == {
        ("NVIDIA A100-SXM4-40GB", 40960): 4,
        ("NVIDIA A10", 23028): 2,
    }


def test_pods_hold_cards_that_their_nodes_register(cluster: Cluster):
    allocated = "hami.io/vgpu-devices-allocated"
    pods = [
        convert_pod(document.content)
        for path in manifest_files(CLUSTER)
        for document in read_documents(path)
        if document.content["kind"] == "Pod"
    ]
    registered = {uuid for _, uuid in cluster.ledger.inventory.by_uuid}
    for pod in pods:
        for entry in pod.annotations.get(allocated, "").replace(";", ":").split(":"):
            assert not entry or entry.split(",")[0] in registered
    assert [pod.metadata.name for pod in pods if allocated in pod.annotations] == ["chat", "train"]


@pytest.mark.parametrize(
    ("namespace", "name", "want_stage", "want_charge"),
    [
        pytest.param("team-a", "chat", Stage.ALLOCATED, CHAT, id="a sidecar beside its server"),
        pytest.param("team-a", "train", Stage.SHRUNK, TRAIN, id="an init container that has finished"),
        pytest.param("team-b", "notebook", Stage.PENDING, NOTEBOOK, id="a whole card, not placed yet"),
    ],
)
def test_each_pod_holds_its_due(
    cluster: Cluster, namespace: str, name: str, want_stage: Stage, want_charge: dict[str, int]
):
    record = cluster.record(namespace, name)
    assert (record.stage, positive(record.charge)) == (want_stage, want_charge)


def positive(amounts: object) -> dict[str, int]:
    return {resource: amount for resource, amount in dict(amounts).items() if amount}


def test_the_quotas_and_modes_are_those_of_the_files(cluster: Cluster):
    a, b = (cluster.ledger.snapshot(namespace) for namespace in ("team-a", "team-b"))
    assert (a.mode, dict(a.uses[0].quota.limits)) == (Mode.ENFORCE, LIMITS)
    assert (b.mode, dict(b.uses[0].quota.limits)) == (Mode.WARN, {MEMORY: 40960, COUNT: 2})
    assert positive(a.uses[0].used) == {COUNT: 3, MEMORY: 14000, CORES: 60}
    # Use is kept of what a quota limits.
    assert positive(b.uses[0].used) == {COUNT: 1, MEMORY: 40960}


def test_the_review_that_fits_is_allowed_without_a_word(cluster: Cluster):
    decision = cluster.review("fits.json")
    assert decision.verdict is Verdict.FITS
    assert positive(decision.charge) == FITS
    assert warnings(decision) == []
    used = cluster.ledger.totals("team-a")["gpu-cap"]
    assert positive(used) == {COUNT: 4, MEMORY: 18000, CORES: 80}
    assert all(used[resource] <= limit for resource, limit in LIMITS.items())


@pytest.mark.parametrize(
    ("is_first", "want_used", "want_too_many"),
    [
        pytest.param(True, 10000 + 4000, 14000 + 22000 - 24576, id="posted first"),
        pytest.param(False, 10000 + 4000 + 4000, 18000 + 22000 - 24576, id="posted after the one that fits"),
    ],
)
def test_the_review_that_does_not_fit_is_refused_with_the_arithmetic(
    cluster: Cluster, *, is_first: bool, want_used: int, want_too_many: int
):
    if not is_first:
        cluster.review("fits.json")
    decision = cluster.review("refused.json")
    assert (decision.verdict, decision.is_allowed) == (Verdict.EXCEEDED, False)
    assert positive(decision.charge) == REFUSED
    assert denial(decision) == (
        f"exceeded quota: gpu-cap, requested: limits.{MEMORY}=22000, used: limits.{MEMORY}={want_used}, "
        f"limited: limits.{MEMORY}=24576\n"
        f"(namespace team-a, MiB: sidecar proxy 2000 + init load 20000 run together; {want_too_many} too many)"
    )
    assert cluster.ledger.reservations("team-a").keys() == (set() if is_first else {request_uid("fits.json")})


def request_uid(name: str) -> str:
    return str(json.loads((EXAMPLES / "reviews" / name).read_text())["request"]["object"]["metadata"]["uid"])


def test_what_the_refused_pod_needs_is_more_than_what_it_keeps(cluster: Cluster):
    """Its init container is what does not fit: without it, 12000 would have."""
    claims = cluster.review("refused.json").claims
    assert effective(claims)[MEMORY] == 22000
    assert effective([claim for claim in claims if claim.container != "load"])[MEMORY] == 12000


@pytest.mark.parametrize("name", ["fits.json", "refused.json"])
def test_the_reviews_are_what_an_api_server_sends(name: str):
    body = json.loads((EXAMPLES / "reviews" / name).read_text())
    request = body["request"]
    pod: Pod = decode_pod(json.dumps(request["object"]).encode())
    assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (request["operation"], request["namespace"], request["dryRun"]) == ("CREATE", "team-a", False)
    assert (request["oldObject"], request["options"]["kind"]) == (None, "CreateOptions")
    assert pod.metadata.uid != request["uid"]
    for container in pod.containers():
        # For extended resources the API server copies limits to requests, and writes thousands as `k`.
        assert container.requests == container.limits
        assert str(container.limits[MEMORY]).endswith("k")


def test_the_device_configuration_is_the_charts():
    vectors = ROOT / "tests" / "vectors" / "config" / "default.yaml"
    assert (EXAMPLES / "device-config.yaml").read_text() == vectors.read_text()

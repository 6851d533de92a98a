from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from webhook.admission import Candidate, Decision, Rules, candidate, decide
from webhook.api.admission_review import decode_review
from webhook.errors import DecodeError, SettingsError
from webhook.ledger import QuotaLedger
from webhook.policy import Mode, Policy
from webhook.reports.denial import denial
from webhook.server import sources
from webhook.server.sources import Origin, Sinks, Source, StateSource

EXAMPLES = Path(__file__).parents[2] / "examples"

COUNT, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"


class Served:
    """A copy of the example cluster, and what a server makes of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "cluster"
        shutil.copytree(EXAMPLES / "cluster", self.directory)
        self.rules = Rules.from_config((EXAMPLES / "device-config.yaml").read_text(), Policy())
        self.ledger = QuotaLedger(clock=lambda: 0.0, lookup_after_s=10.0, mode=self.rules.policy.mode)
        self.sinks = Sinks.over(self.ledger, self.rules)
        self.source = Origin(state=self.directory).open(self.sinks)

    def used(self, namespace: str) -> dict[str, int]:
        return {resource: amount for resource, amount in self.ledger.totals(namespace)["gpu-cap"].items() if amount}

    def review(self, name: str) -> Decision:
        subject = candidate(decode_review((EXAMPLES / "reviews" / name).read_bytes()), self.rules)
        assert isinstance(subject, Candidate)
        judge = partial(self._judge, subject)
        return self.ledger.update(subject.namespace, subject.uid, subject.name, judge)

    def _judge(self, subject: Candidate, snapshot: object) -> Decision:
        return decide(subject, snapshot, self.rules)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_a_directory_fills_the_ledger_through_the_sinks_of_the_server(served: Served):
    """Worked out by hand from the files.

    team-a: chat is placed with its sidecar and its server, 2000 + 8000 MiB, 10 + 50 % of cores, two slots of one card.
    train has ended its init container of 12000 and keeps its trainer's 4000, no cores, one slot. Together 14000, 60, 3.
    team-b: notebook asks for one whole card and is not placed; the largest card registered has 40960 MiB.
    """
    assert served.source.not_ready() == "waiting for the state directory"
    served.source.load()
    assert served.source.not_ready() == ""
    assert served.used("team-a") == {MEMORY: 14000, CORES: 60, COUNT: 3}
    assert served.used("team-b") == {MEMORY: 40960, COUNT: 1}
    assert (served.ledger.snapshot("team-a").mode, served.ledger.snapshot("team-b").mode) == (Mode.ENFORCE, Mode.WARN)
    assert (served.sinks.pods.problems, served.sinks.quotas.unreadable) == (0, 0)


def test_reviews_are_judged_on_what_the_directory_says(served: Served):
    """Of 24576 MiB, 14000 are used: 4000 fit; then 18000 are, and the loader's 20000 beside its proxy's 2000 do not."""
    served.source.load()
    assert served.review("fits.json").is_allowed
    refused = served.review("refused.json")
    assert not refused.is_allowed
    assert denial(refused).splitlines()[0] == (
        f"exceeded quota: gpu-cap, requested: limits.{MEMORY}=22000, used: limits.{MEMORY}=18000, "
        f"limited: limits.{MEMORY}=24576"
    )


def test_a_directory_is_followed_until_the_source_stops(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "POLL_INTERVAL_S", 0.001)
    is_dropped = threading.Event()
    drop_quota = served.ledger.drop_quota

    def told(namespace: str, name: str) -> None:
        drop_quota(namespace, name)
        is_dropped.set()

    monkeypatch.setattr(served.ledger, "drop_quota", told)
    served.source.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "state-directory")
    try:
        assert (served.source.not_ready(), served.source.not_live()) == ("", "")
        (served.directory / "team-b.yaml").unlink()
        assert is_dropped.wait(10)
        assert served.ledger.quotas("team-b") == {}
    finally:
        served.source.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_directory_has_no_informers_and_no_readers(served: Served):
    assert list(served.source.figures()) == []
    assert "knows no users" in served.source.not_a_reader("token")


def test_a_pod_is_looked_up_in_the_files(served: Served):
    served.source.load()
    assert served.source.pod_uid("team-a", "chat", 1.0) == "6f1b1c54-1b8e-4a54-9d2e-0c6a5c1f0a01"
    assert served.source.pod_uid("team-a", "notebook", 1.0) is None
    (served.directory / "team-a.yaml").unlink()
    assert served.source.pod_uid("team-a", "chat", 1.0) is None


def test_a_broken_file_stops_the_start(served: Served):
    (served.directory / "team-b.yaml").write_text("kind: Pod\nmetadata: [\n")
    with pytest.raises(DecodeError, match=r"team-b\.yaml:\d+: is not YAML"):
        served.source.start()
    assert served.source.not_ready() == "waiting for the state directory"


# Where the objects come from.


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("origin", "want"),
    [
        pytest.param(
            Origin(state=EXAMPLES, kubeconfig="config"), "--state and --kubeconfig exclude each other", id="two origins"
        ),
        pytest.param(
            Origin(state=EXAMPLES, context="c"), "--state and --kubeconfig exclude each other", id="a context beside"
        ),
        pytest.param(
            Origin(kubeconfig="/nowhere/config"), "--kubeconfig /nowhere/config: no such file", id="no such kubeconfig"
        ),
        pytest.param(
            Origin(kubeconfig="/nowhere/a:/nowhere/b"),
            "--kubeconfig /nowhere/a:/nowhere/b: no such file",
            id="none of several",
        ),
        pytest.param(
            Origin(), "this is no pod of a cluster: give --kubeconfig, --context or --state", id="none outside of a pod"
        ),
    ],
)
def test_an_origin_that_cannot_be_opened_is_told_with_its_flag(origin: Origin, want: str):
    def opened(origin: Origin) -> Source:
        rules = Rules.from_config((EXAMPLES / "device-config.yaml").read_text(), Policy())
        ledger = QuotaLedger(clock=lambda: 0.0, lookup_after_s=10.0, mode=rules.policy.mode)
        return origin.open(Sinks.over(ledger, rules))

    for attempt in (Origin.check, opened):
        with pytest.raises(SettingsError) as caught:
            attempt(origin)
        assert str(caught.value) == want


@pytest.mark.usefixtures("outside")
def test_an_origin_that_may_be_there_passes_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "config"
    config.write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    for origin in (
        Origin(state=tmp_path),
        Origin(kubeconfig=str(config)),
        Origin(kubeconfig=f"/nowhere/config:{config}"),
        Origin(kubeconfig="~/config"),
        Origin(context="c"),
    ):
        origin.check()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    Origin().check()


def test_a_directory_is_opened_as_one(served: Served):
    assert isinstance(served.source, StateSource)

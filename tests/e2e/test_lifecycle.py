"""What a pod is charged over its life on a real API server, where the test plays HAMi's scheduler and the kubelet."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from kube_api import eventually
from webhook_process import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control_plane import ControlPlane

Json = dict[str, Any]

MEMORY = "nvidia.com/gpumem"
KEY = f"limits.{MEMORY}"
CORES = "limits.nvidia.com/gpucores"
ALLOCATED = "hami.io/vgpu-devices-allocated"

GI = 1024
CARD = 24 * GI

NODE = "lifecycle-node"

# Container states as the kubelet reports them.
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
BACKING_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}
FAILED = {"terminated": {"exitCode": 1, "reason": "Error"}}


def container(name: str, mem: int, **more: Any) -> Json:
    return {"name": name, "image": "none", "resources": {"limits": {MEMORY: str(mem)}}, **more}


LOAD = container("load", 20 * GI)
PROXY = container("proxy", 2 * GI, restartPolicy="Always")
SERVER = container("server", 10 * GI)


class Team:
    """A namespace whose quota is one card, and the pods in it.

    Events of pods arrive in order. So what `holds` sees comes after everything done before: it moves a pod of its own,
    which holds cores and no memory, and waits until the webhook has seen that too.
    """

    def __init__(self, webhook: Webhook) -> None:
        self.webhook = webhook
        self.name = webhook.namespace()
        self.api = webhook.plane.admin
        self._pods = f"/api/v1/namespaces/{self.name}/pods"
        self._moves = itertools.count(1)
        hard = {KEY: str(CARD), CORES: "1000000"}
        quota = {"metadata": {"name": "gpu-cap"}, "spec": {"hard": hard}}
        self._done(self.api.post(f"/api/v1/namespaces/{self.name}/resourcequotas", quota))
        webhook.wait_for_limit(self.name, CARD)
        self.create("marker", container("marker", 1))

    def holds(self, mem: int) -> None:
        """See that the namespace is charged this much once all that was done is known."""
        cores = next(self._moves)
        self.annotate("marker", f"GPU-m,NVIDIA,0,{cores}:;")
        self.webhook.wait_for_used(self.name, cores, CORES)
        assert self.webhook.used(self.name) == mem

    def create(self, name: str, *apps: Json, inits: tuple[Json, ...] = (), **metadata: Any) -> None:
        """Create a pod that is admitted."""
        self._done(self.ask(name, *apps, inits=inits, **metadata))

    def ask(
        self, name: str, *apps: Json, inits: tuple[Json, ...] = (), query: Json | None = None, **metadata: Any
    ) -> tuple[int, Json]:
        """Ask for a pod, and return status and answer."""
        spec = {"containers": list(apps), "initContainers": list(inits)}
        return self.api.post(self._pods, {"metadata": {"name": name, **metadata}, "spec": spec}, **(query or {}))

    def fits(self, mem: int) -> bool:
        """Return whether a pod of this size would be admitted now."""
        status, answer = self.ask("probe", container("server", mem), query={"dryRun": "All"})
        assert status == 201 or "exceeded quota" in answer["message"], answer
        return status == 201

    def place(self, name: str, *mem: int) -> None:
        """Play HAMi's scheduler: record what each container got of one card, and bind the pod to the node."""
        self.annotate(name, "".join(f"GPU-a,NVIDIA,{amount},0:;" for amount in mem))
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        self._done(self.api.post(f"{self._pods}/{name}/binding", binding))

    def annotate(self, name: str, text: str | None) -> None:
        """Write a pod's allocation, or take it away."""
        annotations = {ALLOCATED: text, "hami.io/vgpu-node": NODE}
        self._done(self.api.patch(f"{self._pods}/{name}", {"metadata": {"annotations": annotations}}))

    def report(self, pod: str, *, phase: str = "Running", last: Json | None = None, **states: Json) -> None:
        """Play the kubelet: report the phase, and the states of init containers."""
        statuses = [
            {
                "name": name,
                "state": state,
                "lastState": last or {},
                "image": "none",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
            }
            for name, state in states.items()
        ]
        status = {"phase": phase, "initContainerStatuses": statuses}
        self._done(self.api.patch(f"{self._pods}/{pod}/status", {"status": status}))

    def delete(self, name: str, **query: str) -> None:
        """Ask for a pod's deletion, which its node carries out; at once with `gracePeriodSeconds="0"`."""
        self._done(self.api.delete(f"{self._pods}/{name}", **query))

    def let_go(self, name: str) -> None:
        """Take the finalizers of a pod away."""
        self._done(self.api.patch(f"{self._pods}/{name}", {"metadata": {"finalizers": None}}))

    def is_terminating(self, name: str) -> bool:
        """Return whether a pod is there and being deleted."""
        return "deletionTimestamp" in self.api.get(f"{self._pods}/{name}")[1]["metadata"]

    @staticmethod
    def _done(answer: tuple[int, Json]) -> None:
        assert answer[0] in {200, 201}, answer[1].get("message", answer)


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    admin = control_plane.admin
    # A node that registers no card. Pods bound to a node that does not exist are collected as garbage.
    assert admin.post("/api/v1/nodes", {"metadata": {"name": NODE}})[0] == 201
    options = ("--trusted-user", "control-plane-admin", "--drain", "0")
    with Webhook(control_plane, tmp_path_factory.mktemp("lifecycle"), "lifecycle", options) as running:
        yield running
    admin.delete(f"/api/v1/nodes/{NODE}")


@pytest.fixture
def team(webhook: Webhook) -> Iterator[Team]:
    team = Team(webhook)
    yield team
    webhook.plane.delete_namespace(team.name)


def test_a_sidecar_and_its_app_leave_no_room_for_a_pod_that_would_oversubscribe_the_card(team: Team):
    team.create("a", container("server", 10 * GI), inits=(container("proxy", 10 * GI, restartPolicy="Always"),))
    team.holds(20480)
    team.place("a", 10 * GI, 10 * GI)
    team.holds(20480)
    team.report("a", proxy=RUNNING)
    team.holds(20480)

    status, answer = team.ask("b", container("server", 12 * GI))

    assert status == 403
    assert (
        f"exceeded quota: gpu-cap, requested: {KEY}=12288, used: {KEY}=20480, limited: {KEY}=24576"
        in (answer["message"])
    )
    assert team.fits(4 * GI)
    assert not team.fits(4 * GI + 1)


@pytest.mark.parametrize(
    ("inits", "recorded", "want_peak"),
    [
        pytest.param((PROXY, LOAD), (2 * GI, 20 * GI, 10 * GI), 22 * GI, id="sidecar declared first"),
        pytest.param((LOAD, PROXY), (20 * GI, 2 * GI, 10 * GI), 20 * GI, id="init container declared first"),
    ],
)
def test_a_pod_with_a_sidecar_shrinks_when_its_init_container_has_ended(
    team: Team, inits: tuple[Json, ...], recorded: tuple[int, ...], want_peak: int
):
    team.create("a", SERVER, inits=inits)
    team.holds(want_peak)
    team.place("a", *recorded)
    team.holds(want_peak)
    team.report("a", phase="Pending", load=RUNNING, proxy=RUNNING)
    team.holds(want_peak)
    assert not team.fits(12 * GI)

    team.report("a", load=DONE, proxy=RUNNING)

    team.holds(12 * GI)
    assert team.fits(12 * GI)
    assert not team.fits(12 * GI + 1)

    # A pod sandbox that is made anew runs the init containers again. What was given back stays so.
    team.report("a", load=RUNNING, proxy=RUNNING)
    team.holds(12 * GI)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_without_sidecars_the_init_container_gives_way_and_the_end_releases_once(team: Team, phase: str):
    team.create("stays", container("server", 3000))
    team.place("stays", 3000)
    team.create("a", SERVER, inits=(LOAD,))
    team.holds(3000 + 20 * GI)
    team.place("a", 20 * GI, 10 * GI)
    team.report("a", phase="Pending", load=RUNNING)
    team.holds(3000 + 20 * GI)
    team.report("a", load=DONE)
    team.holds(3000 + 10 * GI)

    team.report("a", phase=phase, load=DONE)
    team.holds(3000)
    team.annotate("a", "GPU-a,NVIDIA,20480,0:;GPU-a,NVIDIA,9999,0:;")
    team.holds(3000)
    team.delete("a", gracePeriodSeconds="0")
    team.holds(3000)


@pytest.mark.parametrize(
    ("state", "last"),
    [
        pytest.param(DONE, None, id="exit 0"),
        pytest.param(FAILED, None, id="exit 1"),
        pytest.param(BACKING_OFF, DONE, id="CrashLoopBackOff after exit 0"),
        pytest.param(BACKING_OFF, FAILED, id="CrashLoopBackOff after exit 1"),
    ],
)
@pytest.mark.parametrize(
    ("load", "want"),
    [
        pytest.param(RUNNING, 22 * GI, id="while the init container runs"),
        pytest.param(DONE, 12 * GI, id="after the init container"),
    ],
)
def test_a_gap_of_a_sidecar_changes_nothing(team: Team, load: Json, want: int, state: Json, last: Json | None):
    team.create("a", SERVER, inits=(PROXY, LOAD))
    team.place("a", 2 * GI, 20 * GI, 10 * GI)
    team.report("a", proxy=RUNNING, load=load)
    team.holds(want)

    team.report("a", proxy=state, load=load, last=last)
    team.holds(want)
    team.report("a", proxy=RUNNING, load=load, last=state)
    team.holds(want)


def test_a_gap_of_a_sidecar_that_comes_before_the_first_word_of_the_init_container_changes_nothing(team: Team):
    team.create("a", SERVER, inits=(PROXY, LOAD))
    team.place("a", 2 * GI, 20 * GI, 10 * GI)

    team.report("a", phase="Pending", proxy=DONE)
    team.holds(22 * GI)
    team.report("a", phase="Pending", proxy=DONE, load=INITIALIZING)
    team.holds(22 * GI)
    team.report("a", proxy=DONE, load=DONE)
    team.holds(12 * GI)


def test_a_pod_whose_init_containers_are_all_sidecars_never_loses_one(team: Team):
    team.create("a", SERVER, inits=(PROXY,))
    team.place("a", 2 * GI, 10 * GI)
    for state in (RUNNING, DONE, BACKING_OFF, FAILED, RUNNING):
        team.report("a", proxy=state)
        team.holds(12 * GI)


def test_an_init_container_that_fails_holds_the_peak(team: Team):
    team.create("a", SERVER, inits=(PROXY, LOAD))
    team.place("a", 2 * GI, 20 * GI, 10 * GI)
    for state, last in ((FAILED, None), (BACKING_OFF, FAILED), (RUNNING, DONE)):
        team.report("a", phase="Pending", proxy=RUNNING, load=state, last=last)
        team.holds(22 * GI)

    team.report("a", proxy=RUNNING, load=DONE)
    team.holds(12 * GI)


def test_every_init_container_must_have_ended(team: Team):
    team.create("a", SERVER, inits=(LOAD, container("warm", 8 * GI)))
    team.place("a", 20 * GI, 8 * GI, 10 * GI)
    team.report("a", phase="Pending", load=DONE)
    team.holds(20 * GI)
    assert not team.fits(12 * GI)

    team.report("a", load=DONE, warm=DONE)
    team.holds(10 * GI)
    assert team.fits(12 * GI)
    team.delete("a", gracePeriodSeconds="0")
    team.holds(0)


def test_a_pod_that_is_being_deleted_keeps_its_figure_until_it_is_gone(team: Team):
    team.create("a", container("server", 5000), finalizers=["example.com/hold"])
    team.create("b", container("server", 3000))
    for name, mem in (("a", 5000), ("b", 3000)):
        team.place(name, mem)
        team.report(name)
    team.delete("b")
    assert team.is_terminating("b")
    team.holds(8000)
    team.delete("a", gracePeriodSeconds="0")
    assert team.is_terminating("a")
    team.holds(8000)
    status, answer = team.ask("c", container("server", CARD - 7999))
    assert status == 403
    # The refusal says that waiting may help.
    assert "terminating pods hold 8000 of the used" in answer["message"]

    team.delete("b", gracePeriodSeconds="0")
    team.holds(5000)
    team.let_go("a")
    team.holds(0)


def test_an_allocation_that_no_longer_decodes_keeps_the_last_figure(team: Team):
    problems = team.webhook.metric("hami_quota_record_problems_total")
    team.create("a", container("server", 4000))
    team.place("a", 4200)
    team.holds(4200)
    for text in ("GPU-a,NVIDIA,9999", "garbage:;", "GPU-a,NVIDIA,-1,0:;", None):
        team.annotate("a", text)
        team.holds(4200)
    assert team.webhook.metric("hami_quota_record_problems_total") > problems

    team.annotate("a", "GPU-a,NVIDIA,4300,0:;")
    team.holds(4300)


def test_an_allocation_that_never_decoded_counts_as_the_request(team: Team):
    team.create("a", container("server", 4000))
    team.annotate("a", "GPU-a,NVIDIA,4200")
    team.holds(4000)
    team.annotate("a", "GPU-a,NVIDIA,4200,0:;")
    team.holds(4200)


def test_what_happened_while_the_webhook_was_away_is_seen_when_it_is_back(team: Team, namespace: str):
    """Pods are recorded everywhere; where the webhook is called, none would have been created meanwhile."""
    team.create("worked", SERVER, inits=(PROXY, LOAD))
    team.place("worked", 2 * GI, 20 * GI, 10 * GI)
    team.report("worked", phase="Pending", proxy=RUNNING, load=RUNNING)
    team.holds(22 * GI)
    team.create("leaving", container("server", 100))
    team.place("leaving", 200)
    team.create("garbled", container("server", 400))
    team.annotate("garbled", "GPU-a,NVIDIA,300,0:;")
    team.create("over", container("server", 700))
    team.holds(22 * GI + 200 + 300 + 700)

    team.webhook.stop()
    # While a gap of the sidecar shows, which is all that the webhook will ever see of it.
    team.report("worked", proxy=DONE, load=DONE)
    team.delete("leaving")
    team.annotate("garbled", "garbage")
    team.report("over", phase="Failed")
    quota = {"metadata": {"name": "gpu-cap"}, "spec": {"hard": {KEY: "9000"}}}
    assert team.api.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)[0] == 201
    born = {"metadata": {"name": "born"}, "spec": {"containers": [SERVER], "initContainers": [LOAD]}}
    assert team.api.post(f"/api/v1/namespaces/{namespace}/pods", born)[0] == 201
    team.webhook.start()

    # What decoded before the restart is not remembered: the request counts.
    team.holds(12 * GI + 200 + 400)
    assert team.webhook.used(namespace) == 20 * GI
    eventually(lambda: team.fits(CARD - 12 * GI - 600), "room for the rest")
    assert not team.fits(CARD - 12 * GI - 599)

"""Whatever goes wrong between the webhook and the API server: no review is decided on a stale view, and it heals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import pod, review
from control_plane import ControlPlane
from fault_proxy import Fault, FaultProxy
from kube_api import eventually
from webhook_process import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEMORY = "nvidia.com/gpumem"
KEY = f"limits.{MEMORY}"
ALLOCATED = "hami.io/vgpu-devices-allocated"

# The default waits for 90 s, since bookmarks come once a minute. Without any in this time, a healthy webhook lists
# anew all the time, and stays ready.
STALE_AFTER_S = 1.5


class Rig:
    """One namespace of the control plane, and a webhook that sees it through a proxy."""

    def __init__(self, plane: ControlPlane, shared: Path, directory: Path) -> None:
        self.plane = plane
        self.api = plane.admin
        self.namespace = plane.create_namespace()
        self.proxy = FaultProxy(plane.admin, directory)
        options = ("--stale-after", str(STALE_AFTER_S), "--drain", "0")
        self.webhook = Webhook(plane, shared, "faults", options, kubeconfig=self.proxy.kubeconfig())
        self._pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self._quotas = f"/api/v1/namespaces/{self.namespace}/resourcequotas"

    # What changes at the API server, past the proxy.

    def create(self, name: str, mem: int) -> None:
        """Create a pod."""
        container = {"name": "server", "image": "none", "resources": {"limits": {MEMORY: str(mem)}}}
        self._done(self.api.post(self._pods, {"metadata": {"name": name}, "spec": {"containers": [container]}}))

    def delete(self, name: str) -> None:
        """Delete a pod at once."""
        self._done(self.api.delete(f"{self._pods}/{name}", gracePeriodSeconds="0"))

    def allocate(self, name: str, mem: int) -> None:
        """Write what HAMi's scheduler writes."""
        annotations = {ALLOCATED: f"GPU-a,NVIDIA,{mem},0:;"}
        self._done(self.api.patch(f"{self._pods}/{name}", {"metadata": {"annotations": annotations}}))

    def limit(self, mem: int) -> None:
        """Set the namespace's quota."""
        body = {"metadata": {"name": "gpu-cap"}, "spec": {"hard": {KEY: str(mem)}}}
        answer = self.api.patch(f"{self._quotas}/gpu-cap", body)
        self._done(self.api.post(self._quotas, body) if answer[0] == 404 else answer)

    def begin(self) -> None:
        """Create what is there before anything goes wrong."""
        self.limit(10000)
        for name, mem in (("stays", 1000), ("doomed", 2000), ("booked", 3000), ("remade", 700)):
            self.create(name, mem)

    def change(self) -> None:
        """Change everything that can change."""
        self.create("late", 500)
        self.delete("doomed")
        self.allocate("booked", 3500)
        self.delete("remade")
        self.create("remade", 900)
        self.limit(9000)

    def recount(self) -> tuple[int, int]:
        """Return use and limit as the API server's objects say now."""
        used = 0
        for item in self.api.get(self._pods)[1]["items"]:
            text = item["metadata"].get("annotations", {}).get(ALLOCATED)
            asked = item["spec"]["containers"][0]["resources"]["limits"][MEMORY]
            used += int(text.split(",")[2]) if text else _whole(asked)
        return used, sum(_whole(quota["spec"]["hard"][KEY]) for quota in self.api.get(self._quotas)[1]["items"])

    # What the webhook says.

    def figures(self) -> tuple[float, float]:
        """Return use and limit as the webhook has them."""
        return (
            self.webhook.used(self.namespace),
            self.webhook.metric("hami_quota_limit", namespace=self.namespace, key=KEY),
        )

    def converges(self) -> tuple[int, int]:
        """Wait until the webhook knows what the API server has stored, is ready, and decides by it; return that."""
        used, limit = want = self.recount()
        eventually(lambda: self.figures() == want, f"{want} at the webhook", timeout_s=40)
        eventually(self.webhook.is_ready, "readiness")
        assert self.decision(limit - used)["allowed"]
        refused = self.decision(limit - used + 1)
        assert not refused["allowed"]
        assert f"used: {KEY}={used}, limited: {KEY}={limit}" in refused["status"]["message"]
        return want

    def review(self, mem: int = 1) -> tuple[int, dict[str, Any]]:
        """Ask for a review of a pod, as a dry run, which reserves nothing."""
        probe = pod("probe", namespace=self.namespace).app("server", mem=mem)
        return self.webhook.review(review(probe, namespace=self.namespace, dry_run=True))

    def decision(self, mem: int) -> dict[str, Any]:
        """Return the answer to a review; with so short a bound, a busy machine makes the view stale for an instant."""
        return eventually(lambda: self._decided(mem), "decision")["response"]

    def is_undecided_for_long(self) -> None:
        """Wait until the view is stale, and see that nothing is decided on it."""
        before = self.figures()
        eventually(lambda: self.webhook.readiness()[0] == 503, "stale view")
        for _ in range(20):
            status, reason = self.webhook.readiness()
            assert (status, "from the API server for" in reason) == (503, True), reason
            status, answer = self.review()
            assert (status, "from the API server for" in answer["reason"]) == (503, True), answer
        assert self.figures() == before

    def _decided(self, mem: int) -> dict[str, Any] | None:
        status, answer = self.review(mem)
        assert status in {200, 503}
        return answer if status == 200 else None

    @staticmethod
    def _done(answer: tuple[int, dict[str, Any]]) -> None:
        assert answer[0] in {200, 201}, answer[1].get("message", answer)


def _whole(text: str) -> int:
    """Return the number of a quantity in canonical form: whole, and with thousands as `k`."""
    return int(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this module's own, because its API server goes away."""
    with ControlPlane(logs=tmp_path_factory.mktemp("faulty-control-plane")) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the webhooks' certificates, which one after the other uses."""
    return tmp_path_factory.mktemp("faulty-webhooks")


@pytest.fixture
def rig(plane: ControlPlane, shared: Path, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(plane, shared, tmp_path)
    with rig.proxy:
        try:
            yield rig
        finally:
            rig.webhook.stop()
            plane.delete_namespace(rig.namespace)


@pytest.fixture
def synced(rig: Rig) -> Rig:
    """Return a rig whose webhook has seen everything."""
    rig.begin()
    rig.webhook.start()
    assert rig.converges() == (6700, 10000)
    return rig


@pytest.mark.parametrize(
    "fault",
    [Fault.SILENCE, Fault.UNAUTHORIZED, Fault.FORBIDDEN, Fault.THROTTLED, Fault.BROKEN, Fault.REFUSED],
    ids=str,
)
def test_nothing_is_decided_until_the_api_server_is_heard_again(synced: Rig, fault: Fault):
    synced.proxy.inject(fault)
    synced.change()

    synced.is_undecided_for_long()

    synced.proxy.inject(Fault.NONE)
    assert synced.converges() == (5900, 9000)


@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.EXPIRED_EVENT], ids=str)
def test_lists_keep_the_view_right_while_no_watch_holds(synced: Rig, fault: Fault):
    synced.proxy.inject(fault)
    synced.change()

    assert synced.converges() == (5900, 9000)


def test_slow_lists_make_the_view_stale_until_they_are_in(synced: Rig):
    synced.proxy.inject(Fault.SLOW_LISTS)
    synced.change()

    eventually(lambda: synced.review()[0] == 503, "stale view")
    eventually(lambda: synced.figures() == (5900, 9000), "slow lists")

    # A list takes longer than the bound, so they are never all fresh together.
    synced.proxy.inject(Fault.NONE)
    assert synced.converges() == (5900, 9000)


def test_a_watch_that_is_cut_in_a_line_resumes(synced: Rig):
    synced.proxy.inject(Fault.CUT)
    synced.change()

    assert synced.converges() == (5900, 9000)


def test_a_token_that_was_renewed_in_time_is_picked_up(synced: Rig):
    synced.proxy.hand_out("second")
    synced.proxy.require("second")
    synced.change()

    assert synced.converges() == (5900, 9000)


def test_an_api_server_that_was_killed_comes_back(synced: Rig):
    synced.plane.stop_api_server(kill=True)

    synced.is_undecided_for_long()

    synced.plane.start_api_server()
    synced.change()
    assert synced.converges() == (5900, 9000)


def test_nothing_is_decided_before_the_first_lists(rig: Rig):
    rig.begin()
    rig.proxy.inject(Fault.SILENCE)
    rig.webhook.launch()
    eventually(lambda: rig.webhook.readiness()[0] == 503, "answer of a webhook without lists")

    assert rig.webhook.readiness()[1].startswith("waiting for the first list of namespaces, nodes")
    assert rig.review() == (503, {"reason": rig.webhook.readiness()[1].strip()})
    plain = pod("plain", namespace=rig.namespace).app("server")
    assert rig.webhook.review(review(plain, namespace=rig.namespace))[1]["response"]["allowed"]

    rig.proxy.inject(Fault.NONE)
    assert rig.converges() == (6700, 10000)

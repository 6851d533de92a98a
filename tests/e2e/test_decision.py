"""The main job on a real API server: pods over their namespace's GPU quota are refused, sidecars counted rightly."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from kube_api import Api, eventually
from webhook_process import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control_plane import ControlPlane

MEMORY = "nvidia.com/gpumem"
KEY = f"limits.{MEMORY}"


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    # Half a second, where the default waits ten: what never appeared is looked up sooner, and tests need not wait.
    directory = tmp_path_factory.mktemp("webhook")
    with Webhook(control_plane, directory, "decision", ("--lookup-after", "0.5")) as running:
        yield running


@pytest.fixture
def team(webhook: Webhook) -> Iterator[str]:
    name = webhook.namespace()
    yield name
    webhook.plane.delete_namespace(name)


def container(name: str, mem: int | str | None = None, **more: Any) -> dict[str, Any]:
    limits = {} if mem is None else {MEMORY: str(mem)}
    return {"name": name, "image": "none", "resources": {"limits": limits}, **more}


def sidecar(name: str, mem: int) -> dict[str, Any]:
    return container(name, mem, restartPolicy="Always")


def pod(name: str, *apps: dict[str, Any], inits: tuple[dict[str, Any], ...] = (), **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": list(apps), "initContainers": list(inits), **spec}}


def app_pod(name: str, mem: int) -> dict[str, Any]:
    return pod(name, container("main", mem))


def create(api: Api, namespace: str, body: dict[str, Any], **query: str) -> tuple[int, dict[str, Any]]:
    return api.post(f"/api/v1/namespaces/{namespace}/pods", body, **query)


def set_quota(webhook: Webhook, namespace: str, limit: int | str, name: str = "gpu-cap", **spec: Any) -> None:
    """Create or change a quota on GPU memory, and wait until the webhook has seen it."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    body = {"metadata": {"name": name}, "spec": {"hard": {KEY: str(limit)}, **spec}}
    status, answer = webhook.plane.admin.post(path, body)
    if status == 409:
        status, answer = webhook.plane.admin.patch(f"{path}/{name}", body)
    assert status in (200, 201), answer
    webhook.wait_for_limit(namespace, int(limit))


def test_a_pod_that_fits_is_created_and_counted(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 8000)
    assert create(api, team, app_pod("a", 8000))[0] == 201
    webhook.wait_for_used(team, 8000)


def test_a_pod_over_the_quota_is_refused_with_the_exact_message(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 8000)
    assert create(api, team, app_pod("a", 4000))[0] == 201
    status, answer = create(api, team, pod("b", container("server", 4000), inits=(sidecar("proxy", 2000),)))
    assert status == 403
    assert answer["message"] == (
        'admission webhook "quota.hami.io" denied the request: '
        f"exceeded quota: gpu-cap, requested: {KEY}=6000, used: {KEY}=4000, limited: {KEY}=8000\n"
        f"(namespace {team}, MiB: sidecar proxy 2000 + app server 4000 run together; 2000 too many)"
    )
    assert answer["reason"] == "Forbidden"


def test_declaration_order_decides_as_in_the_api_server(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 21000)
    init, side, app = container("load", 20000), sidecar("proxy", 2000), container("server", 10000)
    status, answer = create(api, team, pod("sidecar-first", app, inits=(side, init)))
    assert status == 403
    assert f"requested: {KEY}=22000, used: {KEY}=0, limited: {KEY}=21000" in answer["message"]
    assert create(api, team, pod("init-first", app, inits=(init, side)))[0] == 201
    webhook.wait_for_used(team, 20000)


def test_the_event_of_a_deployment_carries_the_message(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 1000)
    labels = {"app": "big"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container("main", 2000)]}}
    body = {
        "metadata": {"name": "big"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    assert api.post(f"/apis/apps/v1/namespaces/{team}/deployments", body)[0] == 201

    def messages() -> list[str]:
        events = api.get(f"/api/v1/namespaces/{team}/events", fieldSelector="reason=FailedCreate")[1]
        return [event["message"] for event in events["items"]]

    message = eventually(messages, "FailedCreate event")[0]
    assert f"exceeded quota: gpu-cap, requested: {KEY}=2000, used: {KEY}=0, limited: {KEY}=1000" in message
    assert "app main 2000; 1000 too many" in message


def test_the_next_create_obeys_a_changed_quota(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 1000)
    assert create(api, team, app_pod("a", 2000))[0] == 403
    set_quota(webhook, team, 2000)
    assert create(api, team, app_pod("a", 2000))[0] == 201
    webhook.wait_for_used(team, 2000)
    set_quota(webhook, team, 1500)
    assert create(api, team, app_pod("b", 1))[0] == 403
    set_quota(webhook, team, 0)
    assert create(api, team, app_pod("b", 1))[0] == 403
    api.delete(f"/api/v1/namespaces/{team}/resourcequotas/gpu-cap")
    eventually(lambda: create(api, team, app_pod("b", 50000))[0] == 201, "room without a quota")


def test_a_deleted_pod_gives_its_room_back(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 8000)
    assert create(api, team, app_pod("a", 8000))[0] == 201
    assert create(api, team, app_pod("b", 1))[0] == 403
    assert api.delete(f"/api/v1/namespaces/{team}/pods/a", gracePeriodSeconds="0")[0] == 200
    eventually(lambda: create(api, team, app_pod("b", 8000))[0] == 201, "room after the delete")


def test_each_of_two_quotas_holds_for_the_pods_in_its_scope(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 1000, name="short", scopes=["Terminating"])
    path = f"/api/v1/namespaces/{team}/resourcequotas"
    body = {"metadata": {"name": "long"}, "spec": {"hard": {KEY: "5000"}, "scopes": ["NotTerminating"]}}
    assert api.post(path, body)[0] == 201
    webhook.wait_for_limit(team, 6000)
    short = pod("short", container("main", 1001), activeDeadlineSeconds=600)
    status, answer = create(api, team, short)
    assert (status, "exceeded quota: short," in answer["message"]) == (403, True)
    assert create(api, team, app_pod("long", 5000))[0] == 201
    status, answer = create(api, team, app_pod("longer", 1))
    assert (status, "exceeded quota: long," in answer["message"]) == (403, True)
    short["spec"]["containers"][0]["resources"]["limits"][MEMORY] = "1000"
    assert create(api, team, short)[0] == 201


def test_a_server_side_dry_run_is_judged_and_reserves_nothing(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 8000)
    for _ in range(3):
        assert create(api, team, app_pod("a", 6000), dryRun="All")[0] == 201
    assert create(api, team, app_pod("a", 8001), dryRun="All")[0] == 403
    assert create(api, team, app_pod("a", 8000))[0] == 201


def test_twenty_parallel_creates_for_three_seats_make_exactly_three_pods(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 3000)
    barrier = threading.Barrier(20)
    statuses: list[int] = []

    def race(number: int) -> None:
        barrier.wait()
        statuses.append(create(api, team, app_pod(f"racer-{number}", 1000))[0])

    racers = [threading.Thread(target=race, args=(number,)) for number in range(20)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(statuses) == [201] * 3 + [403] * 17
    assert len(api.get(f"/api/v1/namespaces/{team}/pods")[1]["items"]) == 3
    webhook.wait_for_used(team, 3000)


def test_a_pod_without_managed_resources_causes_no_request(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 0)
    before = webhook.metric("hami_quota_reviews_total") + webhook.metric("hami_quota_reviews_undecided_total")
    plain = pod("plain", {"name": "main", "image": "none", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}})
    assert create(api, team, plain)[0] == 201
    after = webhook.metric("hami_quota_reviews_total") + webhook.metric("hami_quota_reviews_undecided_total")
    assert after == before
    assert create(api, team, app_pod("gpu", 1))[0] == 403
    assert webhook.metric("hami_quota_reviews_total") == before + 1


def test_bytes_where_mib_are_meant_are_refused_even_without_a_quota(api: Api, team: str):
    status, answer = create(api, team, pod("bytes", container("main", "16Gi")))
    assert status == 403
    assert (
        "container main: nvidia.com/gpumem '16Gi' cannot be used: plain integer, MiB, e.g. 16384" in answer["message"]
    )


def test_a_percentage_is_sized_by_the_cards_that_nodes_register(webhook: Webhook, api: Api, team: str):
    card = '[{"id":"GPU-e2e","count":10,"devmem":40000,"devcore":100,"type":"NVIDIA E2E","health":true}]'
    node = {"metadata": {"name": f"node-{team}", "annotations": {"hami.io/node-nvidia-register": card}}}
    set_quota(webhook, team, 24000)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "40"}
    share = pod("share", {"name": "main", "image": "none", "resources": {"limits": limits}})
    status, answer = create(api, team, share)
    assert (status, "must specify nvidia.com/gpumem for: main" in answer["message"]) == (403, True)
    assert api.post("/api/v1/nodes", node)[0] == 201
    try:
        eventually(lambda: create(api, team, share)[0] == 201, "room for 40 percent of 40000")
        webhook.wait_for_used(team, 16000)
    finally:
        api.delete(f"/api/v1/nodes/node-{team}")


def test_the_recorded_figure_replaces_the_request(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 8000)
    two = pod("p", container("server", 4000), inits=(container("load", 6000),))
    assert create(api, team, two)[0] == 201
    webhook.wait_for_used(team, 6000)
    # HAMi gave the init container and the app container different cards, so both are held at once.
    annotations = {
        "hami.io/vgpu-node": "node-1",
        "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,6000,0:;GPU-b,NVIDIA,4000,0:;",
    }
    assert api.patch(f"/api/v1/namespaces/{team}/pods/p", {"metadata": {"annotations": annotations}})[0] == 200
    webhook.wait_for_used(team, 10000)
    assert create(api, team, app_pod("next", 1))[0] == 403


def test_a_pod_that_native_quota_refuses_does_not_keep_its_seat(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 8000)
    path = f"/api/v1/namespaces/{team}/resourcequotas"
    assert api.post(path, {"metadata": {"name": "native"}, "spec": {"hard": {"pods": "0"}}})[0] == 201
    eventually(lambda: "used" in api.get(f"{path}/native")[1].get("status", {}), "native quota in force")
    status, answer = create(api, team, app_pod("a", 8000))
    # Ours has let it pass: the refusal is the native quota's, after us.
    assert (status, "exceeded quota: native" in answer["message"]) == (403, True)
    assert webhook.used(team) == 8000
    api.delete(f"{path}/native")
    eventually(lambda: create(api, team, app_pod("b", 8000))[0] == 201, "seat of the pod that was never stored")


def test_bursts_of_parallel_creates_all_get_an_answer(webhook: Webhook, api: Api, team: str):
    set_quota(webhook, team, 10**6)
    statuses: list[int] = []
    barrier = threading.Barrier(32)

    def burst(number: int) -> None:
        for round_number in range(20):
            barrier.wait()
            statuses.append(create(api, team, app_pod(f"burst-{round_number}-{number}", 1), dryRun="All")[0])

    threads = [threading.Thread(target=burst, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [201] * 640


def test_without_the_webhook_gpu_pods_are_refused_and_others_created(
    control_plane: ControlPlane, tmp_path: pytest.TempPathFactory
):
    with Webhook(control_plane, tmp_path, "outage") as running:
        namespace = running.namespace()
        api = control_plane.admin
        set_quota(running, namespace, 9000)
        assert create(api, namespace, app_pod("before", 4000))[0] == 201
        held = pod("held", container("server", 1000), inits=(sidecar("proxy", 500),))
        assert create(api, namespace, held)[0] == 201
        annotations = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,500,0:;GPU-a,NVIDIA,1200,0:;"}
        patched = api.patch(f"/api/v1/namespaces/{namespace}/pods/held", {"metadata": {"annotations": annotations}})
        assert patched[0] == 200
        running.wait_for_used(namespace, 5700)
        running.stop(kill=True)
        # The worker of a killed parent still answers what is under way.
        eventually(lambda: create(api, namespace, app_pod("during", 1), dryRun="All")[0] == 500, "outage")
        status, answer = create(api, namespace, app_pod("during", 1))
        assert (status, "failed calling webhook" in answer["message"]) == (500, True)
        assert create(api, namespace, pod("plain", container("main")))[0] == 201
        running.start()
        running.wait_for_used(namespace, 5700)
        assert create(api, namespace, app_pod("after", 3301))[0] == 403
        assert create(api, namespace, app_pod("after", 3300))[0] == 201
        control_plane.delete_namespace(namespace)

"""Forged usage on a real API server: what only HAMi may write is its alone, and HAMi depends on nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from webhook_process import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control_plane import ControlPlane
    from kube_api import Api, Json

SCHEDULER = "system:serviceaccount:kube-system:hami-scheduler"
ALLOCATED = "hami.io/vgpu-devices-allocated"
SMALL = "GPU-a,NVIDIA,1,0:;"


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    directory = tmp_path_factory.mktemp("guard")
    with Webhook(control_plane, directory, "guard", trusted_users=(SCHEDULER,)) as running:
        yield running


@pytest.fixture
def team(webhook: Webhook) -> Iterator[str]:
    name = webhook.namespace()
    webhook.plane.grant(name, "dev-1")
    # HAMi's scheduler patches pods everywhere; what counts here is who it is.
    webhook.plane.grant(name, SCHEDULER)
    yield name
    webhook.plane.delete_namespace(name)


@pytest.fixture
def tenant(control_plane: ControlPlane) -> Api:
    return control_plane.api("dev-1")


@pytest.fixture
def scheduler(control_plane: ControlPlane) -> Api:
    return control_plane.api(SCHEDULER)


def pod(name: str, **annotations: str) -> Json:
    limits = {"nvidia.com/gpumem": "4000"}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
    }


def annotate(user: Api, namespace: str, name: str, annotations: dict[str, str | None]) -> tuple[int, str]:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    status, body = user.patch(path, {"metadata": {"annotations": annotations}})
    return status, body.get("message", "")


def test_a_tenant_cannot_create_a_pod_that_says_what_it_holds(team: str, tenant: Api):
    forged = pod("a", **{ALLOCATED: SMALL})
    status, body = tenant.post(f"/api/v1/namespaces/{team}/pods", forged)
    assert status == 403
    assert f"annotation {ALLOCATED}: only HAMi's components may set it" in body["message"]
    # Another scheduler's name, or no devices asked for, change nothing about that.
    forged["spec"]["schedulerName"] = "other"
    del forged["spec"]["containers"][0]["resources"]
    assert tenant.post(f"/api/v1/namespaces/{team}/pods", forged)[0] == 403


@pytest.mark.parametrize(
    "annotation",
    [
        pytest.param(ALLOCATED, id="the devices it holds"),
        pytest.param("hami.io/vgpu-devices-to-allocate", id="the devices it is to get"),
        pytest.param("hami.io/vgpu-node", id="the node it is on"),
        pytest.param("hami.io/bind-phase", id="how far it is"),
        pytest.param("hami.io/vgpu-mig-allocations", id="the MIG instances it holds"),
        pytest.param("nvidia.com/use-gputype", id="the cards it is sized by"),
    ],
)
def test_a_tenant_cannot_change_what_decides_a_charge(team: str, tenant: Api, annotation: str):
    assert tenant.post(f"/api/v1/namespaces/{team}/pods", pod("a"))[0] == 201
    status, message = annotate(tenant, team, "a", {annotation: SMALL})
    assert status == 403
    assert f"annotation {annotation}: only HAMi's components may change it, and 'dev-1' is none of them" in message
    assert annotate(tenant, team, "a", {annotation: ""})[0] == 403


def test_hami_writes_what_it_owns_and_a_tenant_may_neither_change_nor_remove_it(
    webhook: Webhook, team: str, tenant: Api, scheduler: Api
):
    assert tenant.post(f"/api/v1/namespaces/{team}/pods", pod("a"))[0] == 201
    recorded = {ALLOCATED: "GPU-a,NVIDIA,4000,30:;", "hami.io/vgpu-node": "node-1"}
    before = webhook.metric("hami_quota_reviews_total")
    assert annotate(scheduler, team, "a", dict(recorded)) == (200, "")
    assert webhook.metric("hami_quota_reviews_total") == before, "HAMi does not depend on the webhook"
    assert annotate(tenant, team, "a", {ALLOCATED: SMALL})[0] == 403
    assert annotate(tenant, team, "a", {ALLOCATED: None})[0] == 403
    # Once the devices are recorded, the cards it would have chosen decide nothing more.
    assert annotate(tenant, team, "a", {"nvidia.com/use-gputype": "A100"})[0] == 200


def test_other_changes_pass_without_a_review(webhook: Webhook, team: str, tenant: Api):
    assert tenant.post(f"/api/v1/namespaces/{team}/pods", pod("a"))[0] == 201
    before = webhook.metric("hami_quota_reviews_total")
    assert annotate(tenant, team, "a", {"example.com/note": "mine"})[0] == 200
    path = f"/api/v1/namespaces/{team}/pods/a"
    assert tenant.patch(path, {"metadata": {"labels": {"a": "b"}}})[0] == 200
    assert webhook.metric("hami_quota_reviews_total") == before

"""The reflector and its client against a real API server: what the fake one only claims to do like it."""

from __future__ import annotations

from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
import pytest
from kube_api import eventually

from webhook.informers import reflector
from webhook.informers.endings import Trouble
from webhook.informers.reflector import ObjectRef, Reflector
from webhook.kube import KubeClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from control_plane import ControlPlane
    from kube_api import Api, Json


class _Object(msgspec.Struct):
    metadata: ObjectRef


class Names:
    """A sink that knows which UID stands under which name."""

    def __init__(self):
        self.uids: dict[str, str] = {}
        self.progress: list[int] = []

    def replaced(self, items: Sequence[ObjectRef], resource_version: str, odd: Sequence[ObjectRef]) -> None:
        """Know these and no others."""
        assert not odd
        self.uids = {item.name: item.uid for item in items}
        self.progress.append(int(resource_version))

    def upserted(self, item: ObjectRef) -> None:
        """Know this one too."""
        self.uids[item.name] = item.uid

    def deleted(self, ref: ObjectRef) -> None:
        """Know it no more."""
        assert self.uids.pop(ref.name) == ref.uid

    def undecodable(self, ref: ObjectRef) -> None:
        """Fail: there is none."""
        raise AssertionError(ref)

    def progressed(self, resource_version: str) -> None:
        """Remember the version."""
        self.progress.append(int(resource_version))


def decode(raw: msgspec.Raw) -> ObjectRef:
    return msgspec.json.decode(raw, type=_Object).metadata


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def pod(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "none"}]}}


def create(api: Api, namespace: str, *names: str) -> dict[str, str]:
    """Create pods; return their UIDs by name."""
    uids = {}
    for name in names:
        status, stored = api.post(pods_of(namespace), pod(name))
        assert status == 201, stored
        uids[name] = stored["metadata"]["uid"]
    return uids


def delete(api: Api, namespace: str, name: str) -> None:
    status, answer = api.delete(f"{pods_of(namespace)}/{name}", gracePeriodSeconds="0")
    assert status == 200, answer


@pytest.fixture
def client(control_plane: ControlPlane) -> Iterator[KubeClient]:
    with KubeClient.from_kubeconfig(str(control_plane.kubeconfig())) as client:
        yield client


def reflector_of(client: KubeClient, namespace: str, names: Names, **options: float) -> Reflector[ObjectRef]:
    return Reflector(
        name="pods",
        api_server=client,
        path=pods_of(namespace),
        decode=decode,
        version_of=attrgetter("resource_version"),
        sink=names,
        **options,
    )


@contextmanager
def reflecting(client: KubeClient, namespace: str, names: Names, **options: float) -> Iterator[Reflector[ObjectRef]]:
    reflected = reflector_of(client, namespace, names, **options)
    reflected.start()
    try:
        yield reflected
    finally:
        assert reflected.stop()


def test_pods_are_listed_in_pages_and_then_watched(
    api: Api, namespace: str, client: KubeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reflector, "PAGE_SIZE", 2)
    want = create(api, namespace, "a", "b", "c", "d", "e")
    names = Names()
    with reflecting(client, namespace, names) as reflected:
        eventually(lambda: reflected.has_synced, "a first list")
        assert names.uids == want

        want |= create(api, namespace, "f")
        eventually(lambda: names.uids == want, "the new pod")
        delete(api, namespace, "b")
        want |= create(api, namespace, "b") | create(api, namespace, "g")
        eventually(lambda: names.uids == want, "the pod made anew")

        assert names.progress == sorted(names.progress)
        statistics = reflected.statistics()
        assert (statistics.lists, statistics.watches) == (1, 1)
        assert not any(statistics.errors.values())


def test_the_api_server_may_restart(control_plane: ControlPlane, api: Api, namespace: str, client: KubeClient):
    want = create(api, namespace, "a", "b")
    names = Names()
    with reflecting(client, namespace, names) as reflected:
        eventually(lambda: reflected.statistics().watches, "a watch")

        control_plane.restart_api_server(kill=True)
        delete(api, namespace, "a")
        del want["a"]

        eventually(lambda: names.uids == want, "the deletion", timeout_s=40)
        assert reflected.statistics().errors[Trouble.UNREACHABLE]


def test_silence_ends_in_a_list_though_nothing_is_wrong(api: Api, namespace: str, client: KubeClient):
    """Bookmarks come once a minute, so in half a second there is none."""
    want = create(api, namespace, "a")
    names = Names()
    with reflecting(client, namespace, names, silence_s=0.5) as reflected:
        eventually(lambda: reflected.statistics().relists, "another list")

        assert names.uids == want
        assert reflected.statistics().errors[Trouble.SILENT]


def test_a_version_that_the_api_server_no_longer_remembers_asks_for_a_list(
    control_plane: ControlPlane, namespace: str, client: KubeClient
):
    """An API server remembers what happened since it started; a fresh one would tell everything from version 1 on."""
    control_plane.restart_api_server(kill=True)
    reflected = reflector_of(client, namespace, Names(), silence_s=5)
    reflected._must_list = False
    reflected._version = "1"

    ended = reflected._step()

    assert (ended.trouble, ended.must_list) == (Trouble.EXPIRED, True)


def test_the_uid_of_a_pod_is_the_stored_one(api: Api, namespace: str, client: KubeClient):
    want = create(api, namespace, "a")

    assert client.pod_uid(namespace, "a", 5) == want["a"]
    assert client.pod_uid(namespace, "b", 5) is None
    assert client.pod_uid("no-such-namespace", "a", 5) is None

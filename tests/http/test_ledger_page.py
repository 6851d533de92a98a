"""/debug/ledger through Flask's test client: who is served, and what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from builders import World, pod

from webhook.app import LedgerPage, Probes, create_app
from webhook.reports.ledger_state import encode_ledger_state, ledger_state
from webhook.server import readers

if TYPE_CHECKING:
    from flask.testing import FlaskClient

TOKEN = {"Authorization": "Bearer good"}


class Nobody:
    """A reviewer that is never asked."""

    def review(self, body: bytes, *, deadline: float, may_wait: bool) -> Any:
        raise AssertionError


@pytest.fixture
def client() -> FlaskClient:
    world = World()
    world.quota(mem=8000)
    world.see(pod("a").app("main", mem=300))

    def content() -> bytes:
        return encode_ledger_state(ledger_state(world.ledger, world.rules, version="1.0", now=world.now))

    def refusal(peer: str, authorization: str) -> str:
        return readers.refusal(peer, authorization, lambda token: "" if token == "good" else "nobody knows you")

    probes = Probes(not_ready=lambda: "", not_live=lambda: "", metrics=lambda: (b"", "text/plain"))
    return create_app(Nobody(), Nobody(), probes, LedgerPage(refusal=refusal, content=content)).test_client()


def ask(client: FlaskClient, peer: str | None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    environ = {} if peer is None else {"REMOTE_ADDR": peer}
    answer = client.get("/debug/ledger", headers=headers, environ_overrides=environ)
    assert answer.content_type == "application/json"
    return answer.status_code, json.loads(answer.data)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_caller_on_the_same_machine_gets_the_ledger(client: FlaskClient, peer: str):
    status, document = ask(client, peer)
    assert status == 200
    assert document["namespaces"][0]["records"][0]["charge"]["nvidia.com/gpumem"] == 300


def test_a_remote_caller_whose_token_may_gets_the_ledger(client: FlaskClient):
    assert ask(client, "10.0.0.1", TOKEN)[0] == 200


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        pytest.param("10.0.0.1", {}, id="no token"),
        pytest.param("10.0.0.1", {"Authorization": "Bearer bad"}, id="a token that may not"),
        pytest.param("10.0.0.1", {"Authorization": "good"}, id="a token without its scheme"),
        pytest.param("10.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, id="a header that says it is local"),
        pytest.param("10.0.0.1", {"Forwarded": "for=127.0.0.1", "X-Real-Ip": "127.0.0.1"}, id="other such headers"),
        pytest.param("10.0.0.1", {"Host": "127.0.0.1", "Remote-Addr": "127.0.0.1"}, id="the name of the variable"),
        pytest.param("", {}, id="a peer that the kernel does not know"),
    ],
)
def test_everyone_else_is_told_why_not(client: FlaskClient, peer: str, headers: dict[str, str]):
    status, answer = ask(client, peer, headers)
    assert status == 403
    assert answer["reason"]


def test_the_ledger_is_only_read(client: FlaskClient):
    assert client.post("/debug/ledger").status_code == 405


def test_an_application_without_a_ledger_page_has_none():
    probes = Probes(not_ready=lambda: "", not_live=lambda: "", metrics=lambda: (b"", "text/plain"))
    assert create_app(Nobody(), Nobody(), probes).test_client().get("/debug/ledger").status_code == 404

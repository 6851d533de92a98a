"""ResourceQuotas, from the wire."""

from __future__ import annotations

import pytest
from builders import quota_object

from webhook.api.resource_quota import decode_resource_quota
from webhook.errors import DecodeError


def test_scopes_and_selector_are_read_together() -> None:
    quota = quota_object(
        mem=1,
        scopes=["NotTerminating"],
        selector=[{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}],
    )

    assert [(entry.scope_name, entry.operator, entry.values) for entry in quota.requirements()] == [
        ("NotTerminating", "Exists", None),
        ("PriorityClass", "In", ["high"]),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"{}", id="an empty object"),
        pytest.param(b'{"spec": {}}', id="an empty spec"),
        pytest.param(b'{"spec": {"hard": null, "scopes": null, "scopeSelector": null}}', id="nulls"),
        pytest.param(b'{"spec": {"scopeSelector": {"matchExpressions": null}}}', id="a selector without expressions"),
    ],
)
def test_a_quota_without_scopes_has_no_requirements(raw: bytes) -> None:
    assert decode_resource_quota(raw).requirements() == []


def test_the_status_is_not_read() -> None:
    one, other = (
        decode_resource_quota(b'{"spec": {"hard": {"pods": "1"}}, "status": {"used": {"pods": "%d"}}}' % used)
        for used in (1, 2)
    )

    assert one == other


@pytest.mark.parametrize("raw", [b"[]", b"", b'{"spec": {"hard": []}}', b'{"spec": {"scopes": "Terminating"}}'])
def test_what_is_no_quota_is_an_error(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="resourcequota: "):
        decode_resource_quota(raw)

"""Whether the init phase of a pod is over, by the statuses of its init containers."""

from __future__ import annotations

from typing import Any

import pytest

from vectors.files import Json, cases, scheduled_pod
from webhook.api.pod import convert_pod
from webhook.usage import is_shrink_gate_open


def state(text: str) -> dict[str, Any]:
    """Return a container state on the wire: `running`, `waiting:Reason`, `terminated:exit code`, or `none`."""
    kind, _, detail = text.partition(":")
    match kind:
        case "none":
            return {}
        case "terminated":
            return {"terminated": {"exitCode": int(detail)}}
        case "waiting":
            return {"waiting": {"reason": detail}}
        case "running":
            return {"running": {}}
    raise AssertionError(text)


def statuses(written: list[Json]) -> list[Json]:
    """Return init container statuses on the wire."""
    return [
        {
            "name": entry["name"],
            "state": state(entry["state"]),
            "restartCount": entry.get("restarts", 0),
            "lastState": state(entry.get("last", "none")),
        }
        for entry in written
    ]


@pytest.mark.parametrize(("document", "case"), cases("shrink_gate.json"))
def test_the_gate_opens_when_every_init_container_has_ended_well(document: Json, case: Json) -> None:
    manifest = scheduled_pod(case, ())
    manifest["status"] = {"initContainerStatuses": statuses(case["statuses"])}

    assert is_shrink_gate_open(convert_pod(manifest)) == case["want"]["open"]

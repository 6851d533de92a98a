"""Where the vectors are read from, and which of them concern the families in force."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from webhook.devices.base import DeviceBackend
from webhook.devices.registry import _FAMILIES, load_backends

Json = dict[str, Any]

ROOT = Path(os.environ.get("HAMI_QUOTA_VECTORS") or Path(__file__).parent)

# HAMi's configuration names the blocks of two families by something else than the vectors name the families.
_PREFIXES = {"vnpus": "ascend", "iluvatars": "iluvatar"}

FAMILIES = tuple(_PREFIXES.get(block, block) for block in _FAMILIES)


def load(name: str) -> Json:
    """Return a file, by its path below the folder."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def names(pattern: str) -> list[str]:
    """Return the files that match a pattern, sorted; at least one must."""
    found = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
    assert found, f"no {pattern} under {ROOT}"
    return found


@cache
def _load_backends(config: str) -> tuple[DeviceBackend, ...]:
    return load_backends((ROOT / "config" / config).read_text(encoding="utf-8"))


def backends(document: Json) -> tuple[DeviceBackend, ...]:
    """Return our families under the configuration that was in force for a file; `default.yaml` where it names none."""
    return _load_backends(document.get("config", "default.yaml"))


def is_in_force(identity: str) -> bool:
    """Return whether a case or a file whose name begins with a family is of one we have."""
    return identity.startswith(FAMILIES)


_TAG = re.compile(r"(?:^|, )(design-\d+|unlisted-\d+|[AD]\d+)")


def tags(case: Json) -> set[str]:
    """Return the weak spots that a case shows, without what it says of them in brackets."""
    return set(_TAG.findall(case.get("weak_spot", "")))


# Weak spots in which HAMi's answer is ours all the same: it is what HAMi books (D22), or the design keeps it (D29).
_KEPT = frozenset({"D22", "D29"})


def is_ours(case: Json) -> bool:
    """Return whether a case says what we answer: it shows no weak spot, or the design's answer stands beside."""
    return tags(case) <= _KEPT or "want_design" in case or "want_design_used" in case


def cases(name: str, keep: Callable[[Json], bool] = lambda _: True) -> list[Any]:
    """Return a parameter for each case of a file that is to be kept: the document it stands in, and the case."""
    document = load(name)
    return [
        pytest.param(document, case, id=f"{Path(name).stem}: {case.get('id', number)}")
        for number, case in enumerate(document["cases"])
        if keep(case)
    ]


def device_keys() -> frozenset[str]:
    """Return HAMi's device keys of the families in force, under the configuration of the scheduler's half."""
    return frozenset(backend.key for backend in backends({}))


def scheduled_pod(entry: Json, families: tuple[DeviceBackend, ...]) -> Json:
    """Return a pod of the scheduler's half: `init` and `apps`, each asking for the cards that it really holds.

    What it asks for matters where an annotation leaves out empty segments, and nowhere else.
    """

    def container(written: Json) -> Json:
        limits = {
            backend.names.count: str(len(devices))
            for backend in families
            if (devices := written.get("devices", {}).get(backend.key))
        }
        policies = {"sidecar": "Always", "init-never": "Never", "init-onfailure": "OnFailure"}
        built: Json = {"name": written["name"], "resources": {"limits": written.get("limits", limits)}}
        if (kind := written.get("kind")) in policies:
            built["restartPolicy"] = policies[kind]
        return built

    spec = {
        "initContainers": [container(written) for written in entry["init"]],
        "containers": [container(written) for written in entry.get("apps", [])],
    }
    return {"metadata": {"name": "p", "uid": "uid-p", "namespace": "team-a"}, "spec": spec}

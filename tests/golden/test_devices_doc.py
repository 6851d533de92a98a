"""docs/devices.md is what the families themselves say; `HAMI_QUOTA_REWRITE=1` writes it anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from webhook.devices.registry import load_backends

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("hami-quota")
COMMITTED = ROOT / "docs" / "devices.md"
DEVICE_CONFIG = "examples/device-config.yaml"
BACKENDS = load_backends((ROOT / DEVICE_CONFIG).read_text(encoding="utf-8"))


def test_the_committed_document_is_what_the_command_prints():
    done = subprocess.run(
        [COMMAND, "lint", "-o", "markdown", "--device-config", DEVICE_CONFIG],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if os.environ.get("HAMI_QUOTA_REWRITE") == "1":
        COMMITTED.write_text(done.stdout, encoding="utf-8")
    assert done.stdout == COMMITTED.read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.key)
def test_every_resource_and_every_key_of_a_family_is_in_it(backend):
    text = COMMITTED.read_text(encoding="utf-8")
    for resource in backend.managed_resources:
        assert f"| `{backend.key}` |" in text
        assert f"| `{resource}` |" in text
    for resource in filter(None, (backend.names.count, backend.names.memory, backend.names.cores)):
        assert f"| `limits.{resource}` |" in text


def test_every_annotation_that_is_not_a_chips_own_is_in_it():
    text = COMMITTED.read_text(encoding="utf-8")
    named = {name.replace(backend.key, "<family>") for backend in BACKENDS for name in backend.sizing_annotations}
    assert {name for name in named if f"`{name}`" not in text} == set()


def test_tables_are_whole():
    """Every row has as many cells as its heading; GitHub drops the others in silence."""
    width = 0
    for line in COMMITTED.read_text(encoding="utf-8").splitlines():
        cells = len(re.findall(r"\|", line))
        assert not width or cells in {0, width}, line
        width = cells

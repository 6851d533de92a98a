"""The families in force as people read them, for configurations that are not HAMi's default."""

from __future__ import annotations

from pathlib import Path

import pytest

from webhook.devices.registry import load_backends
from webhook.reports.devices import families_document, families_table

CONFIGS = sorted((Path(__file__).parents[2] / "vectors" / "config").glob("*.yaml"))


def document(config: str) -> list[str]:
    return families_document(load_backends(config)).splitlines()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_family_is_in_the_table_and_in_the_document(path: Path):
    backends = load_backends(path.read_text(encoding="utf-8"))
    table, text = families_table(backends), families_document(backends)
    for backend in backends:
        assert f"\n{backend.key} " in table
        assert f"| `{backend.key}` |" in text


@pytest.mark.parametrize(
    ("config", "want"),
    [
        pytest.param(
            "nvidia: {resourceCountName: a/n, resourceMemoryName: a/m, memoryFactor: 10}",
            "| `a/n: 2` | count 2, memory 2 times the card's |",
            id="without a name for cores",
        ),
        pytest.param(
            "nvidia: {resourceCountName: a/n, resourceMemoryName: a/m, memoryFactor: 10}",
            "| `a/n: 1`, `a/m: 8000` | count 1, memory 8000 |",
            id="memory in its own unit",
        ),
        pytest.param(
            "nvidia: {resourceCountName: a/n, resourceMemoryName: a/m, memoryFactor: 10, defaultMemory: 1005}",
            "| `a/n: 2` | count 2, memory 201 |",
            id="a default that is no whole number of units",
        ),
        pytest.param(
            "nvidia: {resourceCountName: a/n, resourceMemoryName: a/m, defaultGPUNum: 2}",
            "| `a/m: 8000` | `a/n: 2` | count 2, memory 16000 |",
            id="a default count",
        ),
        pytest.param(
            "vnpus: {configs: [{commonWord: Ascend910C, resourceName: a/n, superPod: true}]}",
            "| `a/n: 1` | `a/n: 2` | count 2 |",
            id="cards in pairs",
        ),
    ],
)
def test_a_charge_is_the_family_s_own_answer(config: str, want: str):
    assert want in document(config)


def test_a_chip_alone_has_its_annotations_in_full():
    lines = document("iluvatars: [{commonWord: MR-V50, resourceCountName: a/n}]")
    assert any("`hami.io/use-MR-V50-uuid`" in line for line in lines)

"""Which keys HAMi reads: any other is told, and one with which HAMi does not start is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from webhook.devices.config import read_config
from webhook.devices.registry import load_device_config
from webhook.errors import DeviceConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "vectors" / "config").glob("*.yaml"))

GOOD = "nvidia:\n  resourceCountName: nvidia.com/gpu\n"


def told(text: str) -> list[str]:
    return [str(unknown) for unknown in load_device_config(text).unknown_keys]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_key_of_hamis_own_files_is_known(path: Path):
    assert told(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            GOOD + "  disableCoreLimit: true\n  deviceSplitCount: 10\n  deviceMemoryScaling: 1.5\n"
            "  deviceCoreScaling: 1\n  preConfiguredDeviceMemory: 0\n  enableNumaTopology: false\n"
            "  libCudaLogLevel: 1\n",
            id="what nodes read",
        ),
        pytest.param(
            "enflame: {resourceNameGCU: a/b, resourceNameDRSGCU: a/c, resourceNameVGCU: a/d, "
            "resourceNameVGCUPercentage: a/e}",
            id="a legacy name beside the one that is used",
        ),
        pytest.param("metax: {resourceCountName: a/b, sgpuTopologyAware: true}", id="what the scheduler reads"),
        pytest.param("nvidia:\n" + GOOD.replace("nvidia:", "amd:"), id="a block without keys"),
        pytest.param(GOOD + "vnpus: {hamiVnpuCore: true}", id="a block without families"),
        pytest.param(
            "vnpus: {configs: [{commonWord: A, chipName: a, aiCore: 1, aiCPU: 1, resourceName: a/b, superPod: false, "
            "templates: [{name: a, memory: 1, aiCore: 1, aiCPU: 1}]}]}",
            id="what a chip's device plugin reads",
        ),
    ],
)
def test_keys_that_admission_does_not_need_are_known(text: str):
    assert told(text) == []


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            GOOD + "  memoryFactr: 2\n",
            ["line 3: nvidia.memoryFactr: HAMi reads no such key; did you mean memoryFactor?"],
            id="a letter is missing",
        ),
        pytest.param(
            GOOD + "  resourcememoryname: a/b\n",
            ["line 3: nvidia.resourcememoryname: HAMi reads no such key; did you mean resourceMemoryName?"],
            id="another case, which HAMi does not read either",
        ),
        pytest.param(
            GOOD + "  deviceSplitCounts: 2\n",
            ["line 3: nvidia.deviceSplitCounts: HAMi reads no such key; did you mean deviceSplitCount?"],
            id="like a key that nodes read",
        ),
        pytest.param(GOOD + "  hello: 2\n", ["line 3: nvidia.hello: HAMi reads no such key"], id="like none"),
        pytest.param(
            GOOD + "  resourceCountNames: a/b\n",
            ["line 3: nvidia.resourceCountNames: HAMi reads no such key"],
            id="like one that is there",
        ),
        pytest.param(
            GOOD + "camricon:\n  resourceCountName: a/b\n",
            ["line 3: camricon: HAMi reads no such key; did you mean cambricon?"],
            id="a block",
        ),
        pytest.param(
            GOOD + "Hygon: 7\n",
            ["line 3: Hygon: HAMi reads no such key; did you mean hygon?"],
            id="a block in another case",
        ),
        pytest.param(
            GOOD + "hygon: {memoryFaktor: 1}\nzeta: 1\namd: {resourceCuntName: a/c}\n",
            [
                "line 3: hygon.memoryFaktor: HAMi reads no such key; did you mean memoryFactor?",
                "line 4: zeta: HAMi reads no such key",
                "line 5: amd.resourceCuntName: HAMi reads no such key; did you mean resourceCountName?",
            ],
            id="several, by line",
        ),
        pytest.param(
            "iluvatars:\n- commonWord: A\n  resourceCountName: a/b\n- commonWord: B\n  resourceCountNam: a/c\n",
            [
                "line 5: iluvatars[1].resourceCountNam: HAMi reads no such key; did you mean resourceCountName?",
            ],
            id="in a list",
        ),
        pytest.param(
            "vnpus:\n  configs:\n  - commonWord: A\n    resourceName: a/b\n    templates:\n    - memori: 1\n",
            ["line 6: vnpus.configs[0].templates[0].memori: HAMi reads no such key; did you mean memory?"],
            id="in a list in a list",
        ),
        pytest.param(
            GOOD + "  migProfileAllowlist:\n  - models: [A30]\n    profiles: [1g.6gb]\n    profile: 1g.6gb\n",
            ["line 6: nvidia.migProfileAllowlist[0].profile: HAMi reads no such key"],
            id="in the allow-list",
        ),
    ],
)
def test_a_key_that_hami_does_not_read_is_told_and_starts(text: str, want: list[str]):
    assert told(text) == want


@pytest.mark.parametrize(
    ("entry", "want"),
    [
        pytest.param("profiles: [1g.5gb]", "models: must list at least one, or HAMi does not start", id="no models"),
        pytest.param("models: [A30]", "profiles: must list at least one, or HAMi does not start", id="no profiles"),
        pytest.param(
            "models: []\n    profiles: [1g.5gb]",
            "models: must list at least one, or HAMi does not start",
            id="empty models",
        ),
        pytest.param(
            "models: [A30]\n    profiles:",
            "profiles: must list at least one, or HAMi does not start",
            id="empty profiles",
        ),
        pytest.param("models: A30\n    profiles: [1g.5gb]", "models: must be a list of texts", id="a text for models"),
        pytest.param("models: [[A30]]\n    profiles: [1g.5gb]", "models: must be a list of texts", id="a list in it"),
        pytest.param("models: [A30]\n    profiles: [1]", "profiles: must be a list of texts", id="a number in it"),
        *(
            pytest.param(
                f"models: [A30]\n    profiles: ['1g.5gb', '{profile}']",
                f"profiles: {profile!r} is no MIG profile: write one such as 1g.5gb",
                id=f"profile {profile!r}",
            )
            for profile in ("1g", "g.5gb", "1.5gb", "1G.5gb", "", "1gx.5gb", "1g5gb", "1.g.5gb")
        ),
    ],
)
def test_an_allow_list_with_which_hami_does_not_start_is_refused(entry: str, want: str):
    with pytest.raises(DeviceConfigError) as caught:
        load_device_config(GOOD + f"  migProfileAllowlist:\n  - {entry}\n")

    line, _, problem = str(caught.value).partition(": ")
    assert line.startswith("line ")
    assert problem == f"nvidia.migProfileAllowlist[0].{want}"


@pytest.mark.parametrize("profile", ["1g.5gb", "7g.79gb", "1g.", "10g.x.y", "1g.10gb+me", "xg.1"])
def test_a_profile_that_hami_takes_is_taken(profile: str):
    assert told(GOOD + f"  migProfileAllowlist:\n  - models: [A30]\n    profiles: ['{profile}']\n") == []


@pytest.mark.parametrize("written", ["", "null", "[]"])
def test_an_empty_allow_list_is_none(written: str):
    assert told(GOOD + f"  migProfileAllowlist: {written}\n") == []


def test_a_key_that_was_only_declared_is_known():
    block = read_config("a: 1\nb: 2\nc: 3\n")
    block.integer("a", largest=9)
    block.knows("b")

    assert [unknown.path for unknown in block.unknown_keys()] == ["c"]

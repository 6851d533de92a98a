"""HAMi's device configuration file: whatever cannot be meant stops the start, with its line and key."""

from __future__ import annotations

import pytest

from webhook.devices.config import read_config
from webhook.devices.registry import load_backends
from webhook.errors import DeviceConfigError

GOOD = """\
# HAMi's device configuration.
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  memoryFactor: 1
"""


def broken(old: str, new: str) -> str:
    """Return the good configuration with one place changed."""
    assert old in GOOD
    return GOOD.replace(old, new)


def test_the_good_one_is_good() -> None:
    backend, *_ = load_backends(GOOD)

    assert backend.names.memory == "nvidia.com/gpumem"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            broken("nvidia.com/gpumem", "7"),
            "line 4: nvidia.resourceMemoryName: must be a text, and is an integer",
            id="a name that is a number",
        ),
        pytest.param(
            broken("nvidia.com/gpumem", "true"),
            "line 4: nvidia.resourceMemoryName: must be a text, and is true or false",
            id="a name that is a boolean",
        ),
        pytest.param(
            broken("nvidia.com/gpumem", "[nvidia.com/gpumem]"),
            "line 4: nvidia.resourceMemoryName: must be a text, and is something else",
            id="a name that is a list",
        ),
        pytest.param(
            broken("nvidia.com/gpumem", "{a: b}"),
            "line 4: nvidia.resourceMemoryName: must be a text, and is something else",
            id="a name that is a mapping",
        ),
        pytest.param(
            broken("nvidia.com/gpumem", "1.5"),
            "line 4: nvidia.resourceMemoryName: must be a text, and is a number",
            id="a name that is a fraction",
        ),
        pytest.param(
            broken("memoryFactor: 1", 'memoryFactor: "1"'),
            "line 5: nvidia.memoryFactor: must be an integer, and is a text",
            id="a factor in quotes",
        ),
        pytest.param(
            broken("memoryFactor: 1", "memoryFactor: 1.0"),
            "line 5: nvidia.memoryFactor: must be an integer, and is a number",
            id="a factor with a fraction",
        ),
        pytest.param(
            broken("memoryFactor: 1", "memoryFactor: yes"),
            "line 5: nvidia.memoryFactor: must be an integer, and is true or false",
            id="a factor that is a boolean",
        ),
        pytest.param(
            broken("memoryFactor: 1", "memoryFactor: [1]"),
            "line 5: nvidia.memoryFactor: must be an integer, and is something else",
            id="a factor that is a list",
        ),
        pytest.param(
            broken("memoryFactor: 1", "memoryFactor: -1"),
            "line 5: nvidia.memoryFactor: -1 must be an integer from 0 to 2147483647",
            id="a negative factor",
        ),
        pytest.param(
            broken("memoryFactor: 1", "memoryFactor: 2147483648"),
            "line 5: nvidia.memoryFactor: 2147483648 must be an integer from 0 to 2147483647",
            id="a factor beyond 32 bits",
        ),
        pytest.param(
            broken("  memoryFactor: 1", "  memoryFactor: 1\n  memoryFactor: 2"),
            "line 6: nvidia.memoryFactor: is given twice",
            id="a key twice",
        ),
        pytest.param(GOOD + "nvidia: {}\n", "line 6: nvidia: is given twice", id="a block twice"),
        pytest.param(
            broken("nvidia.com/gpumem", "nvidia.com/gpu mem"),
            "line 4: nvidia.resourceMemoryName: 'nvidia.com/gpu mem' is no resource name: "
            "write one such as nvidia.com/gpumem",
            id="a name with a blank",
        ),
        pytest.param(
            "nvidia:\n- a\n", "line 2: nvidia: must be a mapping of keys to values", id="a block that is a list"
        ),
        pytest.param(
            "nvidia: 7\n", "line 1: nvidia: must be a mapping of keys to values", id="a block that is a number"
        ),
        pytest.param("- nvidia\n", "line 1: document: must be a mapping of keys to values", id="a list"),
        pytest.param("nvidia\n", "line 1: document: must be a mapping of keys to values", id="a text"),
        pytest.param("", "document: is empty: mount HAMi's device-config.yaml", id="an empty file"),
        pytest.param("# nothing\n", "document: is empty: mount HAMi's device-config.yaml", id="a comment alone"),
        pytest.param("nvidia: {\n", "line 2: is not YAML", id="a mapping that never ends"),
        pytest.param(GOOD + "---\n" + GOOD, "line 6: is not YAML", id="two documents"),
        pytest.param("nvidia: \x00", "document: is not YAML", id="a character YAML does not allow"),
        pytest.param("nvidia: " + "[" * 20_000, "document: is not YAML", id="a list too deep to read"),
        pytest.param(
            broken("nvidia.com/gpumem", "nvidia.com/gpu"),
            "document: nvidia.com/gpu is configured twice, for NVIDIA and for NVIDIA",
            id="one name for two things",
        ),
    ],
)
def test_a_broken_file_names_line_and_key(text: str, want: str) -> None:
    with pytest.raises(DeviceConfigError) as caught:
        load_backends(text)

    assert str(caught.value).startswith(want)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/",
        "/gpumem",
        "nvidia.com/gpu/mem",
        "NVIDIA.com/gpumem",
        "-a.com/gpumem",
        "a.com/-gpumem",
        "a.com/gpumem-",
        "a.com/" + "x" * 64,
        "limits nvidia",
        "nvidia.com/gpumem\u00e9",
    ],
)
def test_a_name_kubernetes_would_not_take_is_an_error(name: str) -> None:
    with pytest.raises(DeviceConfigError, match="is no resource name"):
        load_backends(broken("nvidia.com/gpumem", f'"{name}"'))


@pytest.mark.parametrize("name", ["nvidia.com/gpumem", "gpumem", "iluvatar.ai/MR-V100.vMem", "a.b/" + "x" * 63, "a_b"])
def test_a_name_kubernetes_takes_is_taken(name: str) -> None:
    backend, *_ = load_backends(broken("nvidia.com/gpumem", name))

    assert backend.names.memory == name


@pytest.mark.parametrize("written", ["", "null", "~"])
def test_a_key_without_value_is_as_good_as_missing(written: str) -> None:
    backend, *_ = load_backends(broken("memoryFactor: 1", f"memoryFactor: {written}"))

    assert backend.names.memory_factor == 1


def test_an_empty_text_is_as_good_as_missing() -> None:
    backend, *_ = load_backends(broken("nvidia.com/gpumem", '""'))

    assert backend.names.memory == ""


def test_unknown_keys_are_left_alone_whatever_they_hold() -> None:
    assert load_backends(GOOD + "  deviceSplitCount: [1, {a: b}]\nother: 7\n")


def test_keys_come_in_the_order_written() -> None:
    assert list(read_config("b: 1\na: 2\n").keys()) == ["b", "a"]

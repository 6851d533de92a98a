from __future__ import annotations

import socket
from pathlib import Path

import pytest
from builders import device_config

from webhook.errors import DeviceConfigError, SettingsError
from webhook.policy import Policy
from webhook.settings import check_bindable, check_families, read_address, read_card_sizes, read_percentages, read_rules


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("80,90", (80, 90), id="the default"),
        pytest.param("90, 80 ,90", (80, 90), id="in any order, spaced, repeated"),
        pytest.param("1,100", (1, 100), id="the least and the most"),
        pytest.param("", (), id="none at all"),
        pytest.param(",50,", (50,), id="commas too many"),
    ],
)
def test_percentages_are_read_from_a_comma_list(text: str, want: tuple[int, ...]):
    assert read_percentages("--warn-at", text) == want


@pytest.mark.parametrize(
    ("text", "want_entry"),
    [
        pytest.param("0", "'0'", id="0"),
        pytest.param("80,101", "'101'", id="more than the whole, beside a good one"),
        pytest.param("-5", "'-5'", id="negative"),
        pytest.param("80%", "'80%'", id="with a sign"),
        pytest.param("80.5", "'80.5'", id="a fraction"),
        pytest.param("80 90", "'80 90'", id="without a comma"),
        pytest.param("٨٠", "'٨٠'", id="digits of another script"),
        pytest.param("²", "'²'", id="what Python calls a digit and cannot read"),
    ],
)
def test_a_percentage_that_is_none_is_named_with_its_flag(text: str, want_entry: str):
    with pytest.raises(SettingsError) as caught:
        read_percentages("--warn-at", text)
    assert str(caught.value) == f"--warn-at: {want_entry} must be an integer from 1 to 100; write a list such as 80,90"


@pytest.mark.parametrize(
    ("entries", "want"),
    [
        pytest.param([], {}, id="none"),
        pytest.param(["NVIDIA=40960"], {"NVIDIA": 40960}, id="one family"),
        pytest.param(["NVIDIA=40960", " DCU = 16384 "], {"NVIDIA": 40960, "DCU": 16384}, id="two, one spaced"),
    ],
)
def test_card_sizes_are_read_by_family(entries: list[str], want: dict[str, int]):
    assert read_card_sizes("--assumed-card-memory", entries) == want


@pytest.mark.parametrize(
    ("entries", "want"),
    [
        pytest.param(["NVIDIA"], "'NVIDIA' must be FAMILY=MIB, such as NVIDIA=40960", id="no size"),
        pytest.param(["=40960"], "'=40960' must be FAMILY=MIB, such as NVIDIA=40960", id="no family"),
        pytest.param(["NVIDIA=40Gi"], "'NVIDIA=40Gi' must be FAMILY=MIB, such as NVIDIA=40960", id="a suffix"),
        pytest.param(["NVIDIA=0"], "'NVIDIA=0' must be FAMILY=MIB, such as NVIDIA=40960", id="a card of nothing"),
        pytest.param(["NVIDIA=-1"], "'NVIDIA=-1' must be FAMILY=MIB, such as NVIDIA=40960", id="less than nothing"),
        pytest.param(["A=1=2"], "'A=1=2' must be FAMILY=MIB, such as NVIDIA=40960", id="two sizes"),
        pytest.param(["NVIDIA=1", "NVIDIA=1"], "NVIDIA is given twice", id="a family twice, even alike"),
    ],
)
def test_a_card_size_that_is_none_is_named_with_its_flag(entries: list[str], want: str):
    with pytest.raises(SettingsError) as caught:
        read_card_sizes("--assumed-card-memory", entries)
    assert str(caught.value) == f"--assumed-card-memory: {want}"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("127.0.0.1:8443", ("127.0.0.1", 8443), id="IPv4"),
        pytest.param("[::1]:8443", ("::1", 8443), id="IPv6 in brackets"),
        pytest.param("[::]:65535", ("::", 65535), id="every address, the last port"),
        pytest.param("localhost:0", ("localhost", 0), id="a name, and any free port"),
    ],
)
def test_an_address_is_host_and_port(text: str, want: tuple[str, int]):
    assert read_address("--bind", text) == want


@pytest.mark.parametrize("text", ["", "8443", ":8443", "127.0.0.1", "127.0.0.1:", "h:65536", "h:-1", "h:http", "[]:1"])
def test_an_address_that_is_none_is_named_with_its_flag(text: str):
    with pytest.raises(SettingsError) as caught:
        read_address("--bind", text)
    assert str(caught.value) == f"--bind: {text!r} must be HOST:PORT, such as 127.0.0.1:8443 or [::1]:8443"


def test_rules_come_from_the_device_configuration_and_the_policy(tmp_path: Path):
    path = tmp_path / "device-config.yaml"
    path.write_text(device_config(resourceMemoryName="example.com/vram"))
    policy = Policy(count_quota=False)
    rules = read_rules(path, policy)
    assert rules.policy is policy
    assert rules.keys["example.com/vram"].name == "limits.example.com/vram"
    assert "nvidia.com/gpu" in rules.managed
    assert "nvidia.com/gpu" not in rules.keys  # counts are not limited


def test_a_device_configuration_that_is_not_there_is_named_with_its_flag(tmp_path: Path):
    path = tmp_path / "missing.yaml"
    with pytest.raises(SettingsError, match=rf"^--device-config {path}: .*No such file or directory"):
        read_rules(path, Policy())


def test_a_device_configuration_that_is_no_text_is_named_with_its_flag(tmp_path: Path):
    path = tmp_path / "device-config.yaml"
    path.write_bytes(b"nvidia: \xff\n")
    with pytest.raises(SettingsError, match=rf"^--device-config {path}: .*can't decode byte 0xff"):
        read_rules(path, Policy())


def test_a_device_configuration_that_must_not_be_started_with_says_where(tmp_path: Path):
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia:\n  resourceCountName: nvidia.com/gpu\n  defaultMemory: much\n")
    with pytest.raises(DeviceConfigError, match=r"line 3.*defaultMemory|defaultMemory.*line 3"):
        read_rules(path, Policy())


def test_a_family_that_is_not_in_force_is_refused_by_name():
    check_families("--assumed-card-memory", {"NVIDIA": 40960}, ["NVIDIA", "DCU"])
    with pytest.raises(SettingsError, match=r"--assumed-card-memory: 'NVIDA' is no .* there are DCU, NVIDIA"):
        check_families("--assumed-card-memory", {"NVIDA": 40960}, ["NVIDIA", "DCU"])


def test_an_address_that_cannot_be_served_on_is_refused_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^--bind 127\.0\.0\.1:{port}: Address already in use$"):
            check_bindable("--bind", ("127.0.0.1", port))
    check_bindable("--bind", ("127.0.0.1", port))

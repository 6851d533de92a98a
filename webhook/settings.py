"""From flags and environment to the rules: what people write, checked, with errors that name the flag."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from webhook.admission import Rules
from webhook.devices.registry import DeviceConfig, load_device_config
from webhook.errors import DeviceConfigError, SettingsError
from webhook.policy import Policy

_PERCENT = 100


def read_percentages(flag: str, text: str) -> tuple[int, ...]:
    """Return the percentages in a comma list such as `80,90`, ascending; an empty text is none.

    Raises:
        SettingsError: An entry is no integer from 1 to 100.
    """
    found = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if not (entry.isascii() and entry.isdigit()) or not 1 <= int(entry) <= _PERCENT:
            raise SettingsError(f"{flag}: {entry!r} must be an integer from 1 to 100; write a list such as 80,90")
        found.add(int(entry))
    return tuple(sorted(found))


def read_card_sizes(flag: str, entries: Iterable[str]) -> dict[str, int]:
    """Return card sizes in MiB by device family, from entries such as `NVIDIA=40960`.

    Raises:
        SettingsError: An entry is not FAMILY=MIB, or a family stands twice.
    """
    sizes: dict[str, int] = {}
    for entry in entries:
        family, equals, size = (part.strip() for part in entry.partition("="))
        if not family or not equals or not (size.isascii() and size.isdigit()) or not int(size):
            raise SettingsError(f"{flag}: {entry!r} must be FAMILY=MIB, such as NVIDIA=40960")
        if family in sizes:
            raise SettingsError(f"{flag}: {family} is given twice")
        sizes[family] = int(size)
    return sizes


def check_families(flag: str, named: Iterable[str], in_force: Sequence[str]) -> None:
    """Refuse a device family that no configuration puts in force: what is said of it would go unheard.

    Raises:
        SettingsError: A family is not in force; the error names those that are.
    """
    for family in named:
        if family not in in_force:
            raise SettingsError(
                f"{flag}: {family!r} is no device family in force; there are {', '.join(sorted(in_force))}"
            )


def read_address(flag: str, text: str) -> tuple[str, int]:
    """Return host and port of an address such as `127.0.0.1:8443` or `[::1]:8443`.

    Raises:
        SettingsError: The text is not HOST:PORT.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not colon
        or not host
        or (":" in host and not is_bracketed)
        or not (port.isascii() and port.isdigit())
        or not int(port) < 2**16
    ):
        raise SettingsError(f"{flag}: {text!r} must be HOST:PORT, such as 127.0.0.1:8443 or [::1]:8443")
    return host, int(port)


def check_bindable(flag: str, address: tuple[str, int]) -> None:
    """Refuse an address that cannot be served on, before the server tries it again and again.

    Raises:
        SettingsError: It is not this machine's, or the port is taken.
    """
    host, port = address
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        raise SettingsError(f"{flag} {host}:{port}: {error.strerror or error}") from error


def read_rules(device_config: Path, policy: Policy) -> Rules:
    """Return the rules of a device configuration and a policy; raises what `read_device_config` does."""
    return Rules(read_device_config(device_config).backends, policy)


def read_device_config(device_config: Path) -> DeviceConfig:
    """Return what a device configuration comes to.

    Raises:
        SettingsError: The file cannot be read.
        DeviceConfigError: It must not be started with.
    """
    try:
        text = device_config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--device-config {device_config}: {error}") from error
    try:
        return load_device_config(text)
    except DeviceConfigError as error:
        raise DeviceConfigError(f"{device_config}: {error.field}", error.problem) from error

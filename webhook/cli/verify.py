"""`hami-quota verify`: a running webhook against a recount from scratch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import urllib3

import webhook
from webhook.cli.counting import counting_options, recounted
from webhook.errors import DecodeError, SettingsError
from webhook.reports.ledger_state import LedgerState, decode_ledger_state, ledger_state
from webhook.reports.verify import Difference, differences, lasting, report, summary
from webhook.server.readers import LEDGER_PATH

if TYPE_CHECKING:
    from webhook.admission import Rules
    from webhook.server.sources import Origin

# Events are milliseconds late; what is still different after this long is no event in flight.
_SECOND_LOOK_S = 1.0

_TIMEOUT_S = 30.0
_LONGEST_REASON = 256
_OK = 200


@click.command("verify")
@click.option("--webhook", "url", default="https://127.0.0.1:8443", show_default=True, help="Where it serves.")
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    default=Path("/etc/hami-quota/certs/ca.crt"),
    show_default=True,
    help="The authority of its certificate, PEM.",
)
@click.option("--server-name", help="The name its certificate is for, where the URL has another (a port-forward).")
@click.option("--token", type=click.Path(path_type=Path), help="A file with a bearer token, for a webhook elsewhere.")
@counting_options
def command(  # noqa: PLR0913 - one parameter an option
    *, origin: Origin, rules: Rules, url: str, ca: Path, server_name: str | None, token: Path | None
) -> None:
    """Compare what a running webhook holds with a recount from scratch.

    Reads the webhook's /debug/ledger, which is served to callers on the same machine, and to those whose token may
    `get` that URL. A difference is told if it is there twice, a second apart. Amounts are in accounting units.

    Exit codes: 0 equal, 1 different, 2 could not compare.
    """
    ledger_page = _LedgerPage(url, ca, server_name, token)

    def look() -> tuple[list[Difference], LedgerState]:
        now = time.monotonic()
        counted = ledger_state(recounted(origin, rules), rules, version=webhook.__version__, now=now)
        return differences(ledger_page.read(), counted), counted

    found, counted = look()
    if found:
        time.sleep(_SECOND_LOOK_S)
        again, counted = look()
        found = lasting(found, again)
    if not found:
        click.echo(summary(counted))
        return
    click.echo(report(found))
    click.get_current_context().exit(1)


class _LedgerPage:
    """The /debug/ledger of one webhook."""

    def __init__(self, url: str, ca: Path, server_name: str | None, token: Path | None) -> None:
        if urlsplit(url).scheme != "https":
            raise SettingsError(f"--webhook {url}: must be an https URL, such as https://127.0.0.1:8443")
        self._url = url.rstrip("/") + LEDGER_PATH
        self._headers = {"Authorization": f"Bearer {_read(token)}"} if token else {}
        if not ca.is_file():
            raise SettingsError(f"--ca {ca}: no such file")
        self._http = urllib3.PoolManager(
            ca_certs=str(ca),
            retries=False,
            timeout=_TIMEOUT_S,
            server_hostname=server_name,
            assert_hostname=server_name,
        )

    def read(self) -> LedgerState:
        """Return what the webhook holds now.

        Raises:
            SettingsError: It does not say, or does not know yet.
        """
        try:
            answer = self._http.request("GET", self._url, headers=self._headers)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise SettingsError(f"--webhook {self._url}: {error}") from error
        if answer.status != _OK:
            said = answer.data[:_LONGEST_REASON].decode("utf-8", "backslashreplace")
            raise SettingsError(f"--webhook {self._url}: HTTP {answer.status}: {said}")
        try:
            state = decode_ledger_state(answer.data)
        except DecodeError as error:
            raise SettingsError(f"--webhook {self._url}: {error}") from error
        if state.not_ready:
            raise SettingsError(f"--webhook {self._url}: it is not ready: {state.not_ready}")
        return state


def _read(token: Path) -> str:
    try:
        text = token.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--token {token}: {error}") from error
    if not text or any(character.isspace() for character in text):
        raise SettingsError(f"--token {token}: holds no token")
    return text

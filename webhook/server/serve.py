"""Runs the webhook under gunicorn: one arbiter, and one worker process that holds the ledger."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from webhook.errors import SettingsError
from webhook.server.limits import Limits, Timing

if TYPE_CHECKING:
    from certs import CertificateSource
    from webhook.server.lifecycle import Service

_log = logging.getLogger(__name__)

_ONE_PROCESS = (
    "the ledger lives in one process, and a second one would admit the same room again; "
    "one worker serves thousands of connections, and replicas scale further"
)


def run(  # noqa: PLR0913 - what a server is made of, by name
    new_service: Callable[[], Service],
    *,
    bind: str,
    certificates: CertificateSource,
    workers: int = 1,
    limits: Limits | None = None,
    timing: Timing | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Serve until a signal ends it; then the process exits.

    SIGTERM and SIGHUP drain: see `lifecycle`. SIGINT and SIGQUIT end everything at once. The calling process must have
    no threads, since the worker is forked from it.

    Args:
        new_service: Makes what is served; called in the worker process, again whenever that had to be replaced.
        bind: HOST:PORT, such as `0.0.0.0:8443` or `[::]:8443`; port 0 takes a free one, which the log names.
        certificates: The serving pair.
        workers: How many worker processes are asked for; only 1 is accepted.
        limits: The bounds on connections.
        timing: How the server stops.
        environ: Where gunicorn's own settings could ask for more workers.

    Raises:
        SettingsError: More than one worker is asked for.
    """
    check_one_worker(workers, environ)
    # gunicorn reads WEB_CONCURRENCY while it is imported and fails on what is no number, so it comes after the check.
    from webhook.server.arbiter import Application  # noqa: PLC0415

    Application(
        new_service, bind=bind, certificates=certificates, limits=limits or Limits(), timing=timing or Timing()
    ).run()


def check_one_worker(workers: int, environ: Mapping[str, str]) -> None:
    """Refuse every way to ask for several worker processes.

    Raises:
        SettingsError: What asks for them, and why there cannot be any.
    """
    asked = {"--workers": str(workers)}
    if "WEB_CONCURRENCY" in environ:
        asked["WEB_CONCURRENCY"] = environ["WEB_CONCURRENCY"]
    parser = _GunicornArguments(add_help=False)
    parser.add_argument("-w", "--workers", default="1")
    try:
        known, others = parser.parse_known_args(shlex.split(environ.get("GUNICORN_CMD_ARGS", "")))
    except ValueError as error:
        raise SettingsError(f"GUNICORN_CMD_ARGS: {error}") from error
    asked["GUNICORN_CMD_ARGS: --workers"] = known.workers
    for source, count in asked.items():
        if count.strip() != "1":
            raise SettingsError(f"{source} {count!r}: {_ONE_PROCESS}")
    if others:
        _log.warning("GUNICORN_CMD_ARGS is not used: %s", shlex.join(others))


class _GunicornArguments(argparse.ArgumentParser):
    """Reads what it knows of gunicorn's arguments, and does not end the program over them."""

    def error(self, message: str) -> NoReturn:
        """Report an argument that cannot be read."""
        raise ValueError(message)

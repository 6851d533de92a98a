"""gunicorn's parent process, cut down to what one ledger allows: exactly one worker, and never two at a time."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger

from certs import CertificateSource
from webhook.server.lifecycle import Server, Service
from webhook.server.limits import Limits, Timing
from webhook.server.worker import WebhookWorker

_log = logging.getLogger(__name__)

# Clients that wait to be accepted; the kernel caps it at net.core.somaxconn.
_BACKLOG = 4096

# A worker whose loop has not turned for this long hangs: it is killed and replaced.
_HANG_S = 30

# The worker's heartbeat is a file. In a pod whose root is read-only this is where one can be made, and it is memory.
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - gunicorn makes and unlinks a file of its own there


class Application(BaseApplication):  # type: ignore[misc] # gunicorn publishes no types
    """What gunicorn runs. Settings come from here alone: no file, no command line, no environment.

    Args:
        new_service: Makes what is served, in the worker process.
        bind: HOST:PORT.
        certificates: The serving pair.
        limits: The bounds on connections.
        timing: How the server stops.
    """

    def __init__(
        self,
        new_service: Callable[[], Service],
        *,
        bind: str,
        certificates: CertificateSource,
        limits: Limits,
        timing: Timing,
    ) -> None:
        self._new_service = new_service
        self._bind = bind
        self._certificates = certificates
        self._limits = limits
        self._timing = timing
        super().__init__()

    def load_config(self) -> None:
        """Give gunicorn its settings."""
        settings = {
            "bind": self._bind,
            "backlog": _BACKLOG,
            "workers": 1,
            "worker_class": WebhookWorker,
            "preload_app": False,
            "timeout": _HANG_S,
            "graceful_timeout": math.ceil(self._timing.total_s),
            "logger_class": PlainLogger,
            "control_socket_disable": True,
        }
        if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK):
            settings["worker_tmp_dir"] = str(_SHARED_MEMORY)
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Service:
        """Make what is served; gunicorn calls this in the worker."""
        return self._new_service()

    def new_server(self, service: Service, listening: Sequence[socket.socket], on_beat: Callable[[], bool]) -> Server:
        """Return the server that the worker runs."""
        return Server(
            service=service,
            certificates=self._certificates,
            listening=listening,
            on_beat=on_beat,
            limits=self._limits,
            timing=self._timing,
        )

    def run(self) -> None:
        """Run until a signal ends it; then the process exits."""
        OneWorkerArbiter(self).run()


class OneWorkerArbiter(Arbiter):  # type: ignore[misc] # gunicorn publishes no types
    """An arbiter without the signals that would run two workers, and so two ledgers, side by side."""

    def handle_hup(self) -> None:
        """Stop as on SIGTERM: there is nothing to reload, and a closed terminal should leave no server behind."""
        self.handle_term()

    def handle_ttin(self) -> None:
        """Refuse another worker."""
        _log.warning("ignored: there is one worker process, because the ledger lives in it")

    handle_ttou = handle_usr2 = handle_ttin


class PlainLogger(Logger):  # type: ignore[misc] # gunicorn publishes no types
    """Sends what gunicorn says through the program's own logging; below a warning, `lifecycle` says it better."""

    def setup(self, cfg: Any) -> None:
        """Take gunicorn's loggers over."""
        self.cfg = cfg
        self._access_log_enabled = False
        for log in (self.error_log, self.access_log):
            log.handlers.clear()
            log.propagate = True
            log.setLevel(logging.WARNING)

    def reopen_files(self) -> None:
        """Have no files."""

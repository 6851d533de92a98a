"""The one worker process under gunicorn's arbiter: an event loop that serves, and the signals that end it.

gunicorn's own asgi worker is not used. Its waits have no bound that suits us (a session may stay silent for ever, a
handshake 60 s), it shrinks the listening queue to 100 places, stops accepting at the moment of SIGTERM, waits for idle
connections as if they were busy, and does not hear SIGABRT when its loop hangs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from typing import Any, NoReturn

from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

from webhook.errors import HamiQuotaError
from webhook.server.lifecycle import Server

_log = logging.getLogger(__name__)


class WebhookWorker(Worker):  # type: ignore[misc] # gunicorn publishes no types
    """Runs one `Server`; see `arbiter.Application` for what it serves."""

    def init_process(self) -> None:
        """Prepare the process after the fork, then serve in it until the end."""
        # The arbiter sends SIGABRT to a worker whose heart has stopped: this prints where every thread hangs, and dies.
        faulthandler.enable()
        self.loop = asyncio.new_event_loop()
        self.server: Server | None = None
        self.is_terminated = False
        super().init_process()

    def init_signals(self) -> None:
        """Take signals in the loop; those that mean "at once" do not wait for it."""
        for signum in self.SIGNALS:
            if signum != signal.SIGABRT:
                signal.signal(signum, signal.SIG_DFL)
        # A hang-up or a Ctrl-C reaches every process of a terminal. What a hang-up means, the arbiter says.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGWINCH, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for signum in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, _leave)
        self.loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def load_wsgi(self) -> None:
        """Make and start what is served. An error ends the whole program: the next worker would meet it too."""
        try:
            self.wsgi = self.app.wsgi()
            self.wsgi.start()
        except HamiQuotaError as error:
            # A mistake of whoever started us, and no fault of ours: one line, and no traceback.
            _log.error("%s", error)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    def run(self) -> None:
        """Serve until SIGTERM, or until the arbiter is gone."""
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self.server = server = self.app.new_server(self.wsgi, [one.sock for one in self.sockets], self._beat)
        if self.is_terminated:
            server.stop()
        await server.run()

    def _beat(self) -> bool:
        self.notify()
        return bool(self.ppid == os.getppid())

    def _terminate(self) -> None:
        self.is_terminated = True
        if self.server is not None:
            self.server.stop()


def _leave(_signum: int, _frame: Any) -> NoReturn:
    """Leave at once, as SIGINT and SIGQUIT ask for: threads that wait for the API server are not waited for."""
    os._exit(0)

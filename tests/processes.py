"""Programs that tests start: none outlives its owner, and what it logged can be shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Asks the kernel to kill the program with its parent, then becomes it. This is a program of its own because
# a preexec_fn runs between fork and exec, which is unsafe once the parent has threads. The second line
# covers a parent that died before the first; SIGPIPE is put back to what it was before Python ignored it.
LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): sys.exit("parent is gone")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ProcessError(Exception):
    """A program ended early or did not become ready; the text has the tail of its log."""


class Process:
    """One program: started, signalled and reaped by pid; may be started again after it ended."""

    def __init__(self, command: Sequence[Path | str], log: Path) -> None:
        self.name = Path(command[0]).name
        self._command = [str(part) for part in command]
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it, in a session of its own so that a Ctrl-C meant for us does not reach it first.

        The kernel ends it with the thread that calls this, so call it from one that lasts.
        """
        launch = [sys.executable, "-ISc", LAUNCHER, str(os.getpid()), *self._command]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                launch, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def send(self, signum: signal.Signals) -> None:
        """Send a signal; SIGSTOP and SIGCONT make a program that hangs for a while."""
        if self._child is not None:
            self._child.send_signal(signum)

    def stop(self, *, kill: bool = False) -> None:
        """End it and wait for that; after ten seconds of SIGTERM, or at once with `kill`, by SIGKILL."""
        if self._child is None:
            return
        self._child.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def require_running(self) -> None:
        """Raise ProcessError with the log's tail if it has ended."""
        if not self.running:
            raise ProcessError(f"{self.name} ended early\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what it logged."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

"""Gives back what was reserved for pods that never appeared, while nobody is asking for it.

Native quota and other webhooks run beside and after us, so an admitted pod may never be stored. A review that would be
refused looks such admissions up itself; this sweep frees the others, so that the figures do not stay wrong.
"""

from __future__ import annotations

import logging
import threading

from webhook.errors import ApiServerError
from webhook.ledger import QuotaLedger
from webhook.review import PodLookup, forget_if_gone

_log = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 5.0
SWEEP_AFTER_S = 30.0
_LOOKUP_TIMEOUT_S = 5.0


class Sweep:
    """Looks up reservations older than `SWEEP_AFTER_S`, in a thread of its own."""

    def __init__(self, ledger: QuotaLedger, lookup: PodLookup) -> None:
        self._ledger = ledger
        self._lookup = lookup
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread; it ends with the process if nobody stops it."""
        threading.Thread(target=self._run, name="sweep", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopping.set()

    def run_once(self) -> int:
        """Look every old reservation up and return how many were given back; a failed look-up leaves its own."""
        freed = 0
        for namespace, item in self._ledger.unseen(SWEEP_AFTER_S):
            try:
                freed += forget_if_gone(self._ledger, self._lookup, namespace, item, _LOOKUP_TIMEOUT_S)
            except ApiServerError as error:
                _log.warning("pod %s/%s, admitted and not seen, cannot be looked up: %s", namespace, item.name, error)
        self._ledger.prune()
        return freed

    def _run(self) -> None:
        while not self._stopping.wait(SWEEP_INTERVAL_S):
            try:
                self.run_once()
            except Exception:  # noqa: BLE001 - whatever it is
                # A thread that ended would give nothing back any more.
                _log.exception("the sweep failed and goes on")

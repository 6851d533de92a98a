"""A ledger filled once, from scratch, through the same sinks as the server's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from webhook.ledger import QuotaLedger
from webhook.server.sources import Origin, Sinks

if TYPE_CHECKING:
    from webhook.admission import Rules


def recount(origin: Origin, rules: Rules) -> QuotaLedger:
    """Return what the objects of an origin come to now. There are no reservations: nothing was admitted here.

    Raises:
        SettingsError: There is no access to the origin.
        ApiServerError: A list failed.
        DecodeError: A file is broken.
    """
    ledger = QuotaLedger(clock=time.monotonic, lookup_after_s=rules.policy.lookup_after_s, mode=rules.policy.mode)
    source = origin.open(Sinks.over(ledger, rules))
    try:
        source.load()
    finally:
        source.stop()
    return ledger

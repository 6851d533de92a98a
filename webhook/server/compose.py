"""The composition root: builds everything that runs in the worker process, in one place.

Nothing starts at import. gunicorn forks before it calls the application factory, so every thread belongs to the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import webhook
from webhook.app import LedgerPage, Probes, create_app
from webhook.informers.sweep import Sweep
from webhook.ledger import QuotaLedger
from webhook.metrics import Gauges, Metrics
from webhook.reports.ledger_state import InformerState, encode_ledger_state, ledger_state
from webhook.review import Mutator, Reviewer
from webhook.server import readers
from webhook.server.sources import Origin, Sinks

if TYPE_CHECKING:
    from webhook.admission import Rules
    from webhook.server.wsgi import Application


class Service:
    """Everything that answers reviews, wired together.

    Args:
        rules: The families and choices in force.
        origin: Where the cluster's objects come from.
        certificate_expiry: When the serving certificate ends, in Unix seconds; None without one.
    """

    def __init__(self, rules: Rules, origin: Origin, certificate_expiry: Callable[[], float | None]) -> None:
        self.ledger = QuotaLedger(
            clock=time.monotonic, lookup_after_s=rules.policy.lookup_after_s, mode=rules.policy.mode
        )
        sinks = Sinks.over(self.ledger, rules)
        self.source = origin.open(sinks)
        metrics = Metrics(
            self.ledger,
            rules.keys,
            Gauges(
                informers=self.source.figures,
                problems=lambda: sinks.pods.problems,
                unreadable_keys=lambda: sinks.quotas.unreadable,
                certificate_expiry=certificate_expiry,
            ),
        )
        self.reviewer = Reviewer(
            rules=rules, ledger=self.ledger, lookup=self.source, not_ready=self.source.not_ready, observer=metrics
        )
        self.mutator = Mutator(rules, metrics)
        self._rules = rules
        self._metrics = metrics
        self._sweep = Sweep(self.ledger, self.source)

    def start(self) -> None:
        """Start every thread."""
        self.source.start()
        self._sweep.start()

    def stop(self) -> None:
        """End every thread."""
        self._sweep.stop()
        self.source.stop()

    def app(self, draining: Callable[[], str]) -> Application:
        """Return the Flask application.

        Args:
            draining: Why no new work should come while the server stops; "" before.
        """
        return create_app(
            self.reviewer,
            self.mutator,
            Probes(
                not_ready=lambda: draining() or self.source.not_ready(),
                not_live=self.source.not_live,
                metrics=self._metrics.page,
            ),
            LedgerPage(refusal=self._refusal, content=self._ledger_state),
        )

    def _refusal(self, peer: str, authorization: str) -> str:
        return readers.refusal(peer, authorization, self.source.not_a_reader)

    def _ledger_state(self) -> bytes:
        state = ledger_state(
            self.ledger,
            self._rules,
            version=webhook.__version__,
            now=time.monotonic(),
            not_ready=self.source.not_ready(),
            informers=[
                InformerState(resource=item.resource, resource_version=item.resource_version)
                for item in self.source.figures()
            ],
        )
        return encode_ledger_state(state)

"""Prometheus metrics. Labels are bounded: verdicts, modes and reasons are few, quotas as many as the cluster has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from prometheus_client.registry import Collector

import webhook

if TYPE_CHECKING:
    from webhook.admission import Decision
    from webhook.ledger import QuotaLedger
    from webhook.quotas import QuotaKey

# A review takes well under a millisecond; a live look-up takes as long as the API server does.
_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 0.5, 1.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerFigures:
    """The state of one informer, for the metrics.

    Attributes:
        resource: What it follows, such as `pods`.
        age_s: Seconds since it last heard from the API server; None before the first list.
        lists: Lists applied.
        errors: Faults by kind.
        resource_version: Up to where everything is applied; "" before the first list.
    """

    resource: str
    age_s: float | None
    lists: int
    errors: dict[str, int]
    resource_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Where the figures come from that are read when they are asked for.

    Attributes:
        problems: Pods whose figure is not what their object says, since the start.
        unreadable_keys: Keys of ours in quotas that cannot be read, now.
        certificate_expiry: When the serving certificate ends, in Unix seconds; None without one.
    """

    informers: Callable[[], Iterable[InformerFigures]]
    problems: Callable[[], int]
    unreadable_keys: Callable[[], int]
    certificate_expiry: Callable[[], float | None]


class Metrics:
    """Counts what is answered, and reads the rest from the ledger and the informers at each scrape."""

    def __init__(self, ledger: QuotaLedger, keys: dict[str, QuotaKey], gauges: Gauges) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._reviews = Counter(
            "hami_quota_reviews",
            "Reviews decided, by what the rules say, what was answered, and the mode of the namespace.",
            ["verdict", "answer", "mode"],
            registry=self._registry,
        )
        self._undecided = Counter(
            "hami_quota_reviews_undecided",
            "Reviews answered without a decision, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "hami_quota_review_seconds",
            "Time from the whole request to the answer.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._mutations = Counter(
            "hami_quota_mutations", "Reviews by the mutating webhook, by outcome.", ["outcome"], registry=self._registry
        )
        self._mutation_seconds = Histogram(
            "hami_quota_mutation_seconds",
            "Time from the whole request to the answer of the mutating webhook.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Snapshot(ledger, keys, gauges))

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision."""
        answer = "allowed" if decision.is_allowed else "denied"
        self._reviews.labels(str(decision.verdict), answer, str(decision.mode)).inc()
        self._seconds.observe(seconds)

    def undecided(self, reason: str, seconds: float) -> None:
        """Count a review without a decision."""
        self._undecided.labels(reason).inc()
        self._seconds.observe(seconds)

    def mutated(self, outcome: str, seconds: float) -> None:
        """Count an answer of the mutating webhook."""
        self._mutations.labels(outcome).inc()
        self._mutation_seconds.observe(seconds)

    def page(self) -> tuple[bytes, str]:
        """Return the metrics in Prometheus' text form, with their content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_1_0_0


class _Snapshot(Collector):
    """What is read at each scrape."""

    def __init__(self, ledger: QuotaLedger, keys: dict[str, QuotaKey], gauges: Gauges) -> None:
        self._ledger = ledger
        self._keys = keys
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """Yield every figure."""
        yield InfoMetricFamily("hami_quota_build", "The running version.", {"version": webhook.__version__})
        yield from self._quotas()
        yield from self._sizes()
        yield from self._informers()
        expiry = self._gauges.certificate_expiry()
        if expiry is not None:
            yield GaugeMetricFamily(
                "hami_quota_certificate_expiry_timestamp_seconds", "When the serving certificate ends.", expiry
            )

    def _quotas(self) -> Iterable[Metric]:
        labels = ["namespace", "quota", "key"]
        limit = GaugeMetricFamily("hami_quota_limit", "The limit of a key, in the key's own unit.", labels=labels)
        used = GaugeMetricFamily(
            "hami_quota_used", "What is held against a key, admissions not seen yet included.", labels=labels
        )
        for namespace in self._ledger.namespaces():
            totals = self._ledger.totals(namespace)
            for name, quota in self._ledger.quotas(namespace).items():
                for resource, amount in quota.limits.items():
                    key = self._keys[resource]
                    values = [namespace, name, key.name]
                    limit.add_metric(values, amount // key.factor)
                    used.add_metric(values, key.in_own_unit(totals.get(name, {}).get(resource, 0)))
        return [limit, used]

    def _sizes(self) -> Iterable[Metric]:
        figures = self._ledger.statistics()
        yield GaugeMetricFamily("hami_quota_records", "Pods that hold devices.", figures.records)
        yield GaugeMetricFamily("hami_quota_reservations", "Admitted pods not seen yet.", figures.reservations)
        yield CounterMetricFamily("hami_quota_conflicts", "Decisions run again on a newer view.", figures.conflicts)
        yield CounterMetricFamily(
            "hami_quota_record_problems", "Pods whose figure is not what their object says.", self._gauges.problems()
        )
        yield GaugeMetricFamily(
            "hami_quota_unreadable_keys", "Keys in quotas that cannot be read.", self._gauges.unreadable_keys()
        )

    def _informers(self) -> Iterable[Metric]:
        age = GaugeMetricFamily(
            "hami_quota_informer_age_seconds", "Seconds since the API server was heard.", labels=["resource"]
        )
        lists = CounterMetricFamily("hami_quota_informer_lists", "Lists applied.", labels=["resource"])
        errors = CounterMetricFamily("hami_quota_informer_errors", "Faults met.", labels=["resource", "kind"])
        for figures in self._gauges.informers():
            if figures.age_s is not None:
                age.add_metric([figures.resource], figures.age_s)
            lists.add_metric([figures.resource], figures.lists)
            for kind, count in figures.errors.items():
                errors.add_metric([figures.resource, kind], count)
        return [age, lists, errors]

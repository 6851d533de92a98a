from __future__ import annotations

from typing import Any

import pytest
from builders import World, backends, pod
from prometheus_client.parser import text_string_to_metric_families

import webhook
from webhook.metrics import Gauges, InformerFigures, Metrics


def gauges(**figures: Any) -> Gauges:
    """Return gauges that read nothing, but for `figures`."""
    silent: dict[str, Any] = {
        "informers": tuple,
        "problems": lambda: 0,
        "unreadable_keys": lambda: 0,
        "certificate_expiry": lambda: None,
    }
    return Gauges(**silent | figures)


def page(metrics: Metrics) -> str:
    return metrics.page()[0].decode()


def samples(metrics: Metrics, *names: str) -> list[str]:
    """Return the lines of the page that are samples of some metrics."""
    return [
        line
        for line in page(metrics).splitlines()
        if line.startswith(tuple(f"{name}{end}" for name in names for end in "{ "))
    ]


@pytest.fixture
def world() -> World:
    return World(backends(memoryFactor=10))


@pytest.fixture
def metrics(world: World) -> Metrics:
    return Metrics(world.ledger, world.rules.keys, gauges())


def test_quotas_are_shown_in_their_keys_own_units_rounded_up(world: World, metrics: Metrics):
    """A unit of memory is 10 MiB here.

    Held against gpu-cap: 400 units asked by `asking`, 1001 MiB booked for `booked`, so 5001 MiB; 30 + 10 % of cores.
    """
    world.quota("gpu-cap", mem=1000, cores=200)
    world.quota("gpu-count", gpu=4)
    world.quota("gpu-cap", namespace="team-b", mem=0)
    world.see(pod("asking").app("main", mem=400, cores=30))
    world.see(pod("booked").app("main", gpu=1).allocated("GPU-a,NVIDIA,1001,10:;"))
    assert samples(metrics, "hami_quota_limit", "hami_quota_used") == [
        'hami_quota_limit{key="limits.nvidia.com/gpumem",namespace="team-a",quota="gpu-cap"} 1000.0',
        'hami_quota_limit{key="limits.nvidia.com/gpucores",namespace="team-a",quota="gpu-cap"} 200.0',
        'hami_quota_limit{key="limits.nvidia.com/gpu",namespace="team-a",quota="gpu-count"} 4.0',
        'hami_quota_limit{key="limits.nvidia.com/gpumem",namespace="team-b",quota="gpu-cap"} 0.0',
        'hami_quota_used{key="limits.nvidia.com/gpumem",namespace="team-a",quota="gpu-cap"} 501.0',
        'hami_quota_used{key="limits.nvidia.com/gpucores",namespace="team-a",quota="gpu-cap"} 40.0',
        'hami_quota_used{key="limits.nvidia.com/gpu",namespace="team-a",quota="gpu-count"} 2.0',
        'hami_quota_used{key="limits.nvidia.com/gpumem",namespace="team-b",quota="gpu-cap"} 0.0',
    ]


def test_an_admission_that_is_not_seen_yet_is_used_and_counted_apart(world: World, metrics: Metrics):
    world.quota(mem=1000)
    assert world.admits(pod("a").app("main", mem=300))
    used = 'hami_quota_used{key="limits.nvidia.com/gpumem",namespace="team-a",quota="gpu-cap"} 300.0'
    of = ("hami_quota_used", "hami_quota_records", "hami_quota_reservations")
    assert samples(metrics, *of) == [used, "hami_quota_records 0.0", "hami_quota_reservations 1.0"]
    world.see(pod("a").app("main", mem=300))
    assert samples(metrics, *of) == [used, "hami_quota_records 1.0", "hami_quota_reservations 0.0"]


def test_a_quota_that_is_gone_leaves_no_sample_behind(world: World, metrics: Metrics):
    world.quota(mem=1000)
    world.no_quota()
    assert samples(metrics, "hami_quota_limit", "hami_quota_used") == []


def test_answers_of_the_mutating_webhook_are_counted_apart(metrics: Metrics):
    for outcome in ("patched", "patched", "denied"):
        metrics.mutated(outcome, 0.0002)
    assert samples(metrics, "hami_quota_mutations_total", "hami_quota_mutation_seconds_count") == [
        'hami_quota_mutations_total{outcome="patched"} 2.0',
        'hami_quota_mutations_total{outcome="denied"} 1.0',
        "hami_quota_mutation_seconds_count 3.0",
    ]
    assert samples(metrics, "hami_quota_reviews_total", "hami_quota_review_seconds_count") == [
        "hami_quota_review_seconds_count 0.0"
    ]


def test_reviews_are_counted_by_verdict_answer_and_mode(world: World, metrics: Metrics):
    world.quota(mem=1000)
    metrics.decided(world.create(pod("a").app("main", mem=600)), 0.0002)
    metrics.decided(world.create(pod("b").app("main", mem=600)), 0.002)
    world.ledger.set_mode_label("team-a", "warn")
    for name in ("c", "d"):
        metrics.decided(world.create(pod(name).app("main", mem=600)), 0.002)
    metrics.undecided("unreadable", 2.0)
    assert samples(metrics, "hami_quota_reviews_total", "hami_quota_reviews_undecided_total") == [
        'hami_quota_reviews_total{answer="allowed",mode="enforce",verdict="fits"} 1.0',
        'hami_quota_reviews_total{answer="denied",mode="enforce",verdict="exceeded"} 1.0',
        'hami_quota_reviews_total{answer="allowed",mode="warn",verdict="exceeded"} 2.0',
        'hami_quota_reviews_undecided_total{reason="unreadable"} 1.0',
    ]
    # 0.0002 + 3 x 0.002 + 2.0
    assert samples(metrics, "hami_quota_review_seconds_bucket", "hami_quota_review_seconds_count") == [
        f'hami_quota_review_seconds_bucket{{le="{bound}"}} {count}.0'
        for bound, count in [
            ("0.0001", 0),
            ("0.00025", 1),
            ("0.0005", 1),
            ("0.001", 1),
            ("0.0025", 4),
            ("0.005", 4),
            ("0.01", 4),
            ("0.1", 4),
            ("0.5", 4),
            ("1.0", 4),
            ("2.5", 5),
            ("+Inf", 5),
        ]
    ] + ["hami_quota_review_seconds_count 5.0"]
    (total,) = samples(metrics, "hami_quota_review_seconds_sum")
    assert float(total.split()[1]) == pytest.approx(2.0062)


def test_informers_are_shown_as_they_are_at_the_scrape(world: World):
    figures = [
        InformerFigures(resource="pods", age_s=1.5, lists=2, errors={"expired": 1, "silent": 3}),
        InformerFigures(resource="nodes", age_s=None, lists=0, errors={}),
    ]
    metrics = Metrics(world.ledger, world.rules.keys, gauges(informers=lambda: figures))
    of = ("hami_quota_informer_age_seconds", "hami_quota_informer_lists_total", "hami_quota_informer_errors_total")
    assert samples(metrics, *of) == [
        # None of nodes: it has never heard from the API server.
        'hami_quota_informer_age_seconds{resource="pods"} 1.5',
        'hami_quota_informer_lists_total{resource="pods"} 2.0',
        'hami_quota_informer_lists_total{resource="nodes"} 0.0',
        'hami_quota_informer_errors_total{kind="expired",resource="pods"} 1.0',
        'hami_quota_informer_errors_total{kind="silent",resource="pods"} 3.0',
    ]
    figures[1:] = []
    assert samples(metrics, "hami_quota_informer_lists_total") == [
        'hami_quota_informer_lists_total{resource="pods"} 2.0'
    ]


def test_figures_from_elsewhere_are_read_at_the_scrape(world: World):
    values = {"problems": 3, "unreadable_keys": 2, "certificate_expiry": 1.8e9}
    metrics = Metrics(
        world.ledger, world.rules.keys, gauges(**{name: lambda name=name: values[name] for name in values})
    )
    of = (
        "hami_quota_record_problems_total",
        "hami_quota_unreadable_keys",
        "hami_quota_certificate_expiry_timestamp_seconds",
    )
    assert [float(line.split()[1]) for line in samples(metrics, *of)] == [3, 2, 1.8e9]
    values["unreadable_keys"] = 0
    assert samples(metrics, "hami_quota_unreadable_keys") == ["hami_quota_unreadable_keys 0.0"]


def test_without_a_certificate_nothing_is_said_of_its_end(metrics: Metrics):
    assert "hami_quota_certificate_expiry" not in page(metrics)


def test_conflicts_of_the_ledger_are_counted(world: World, metrics: Metrics):
    world.quota(mem=1000)

    def decide(snapshot: Any) -> Any:
        if not world.ledger.records("team-a"):
            # Between snapshot and commit something else happens.
            world.see(pod("other").app("main", mem=100))
        return world._decide(subject, snapshot)

    subject = world.subject(pod("a").app("main", mem=100))
    world.ledger.update("team-a", "uid-a", "a", decide)
    assert samples(metrics, "hami_quota_conflicts_total") == ["hami_quota_conflicts_total 1.0"]


ODD = 'a"b\\c\nd'


def test_labels_that_hold_anything_are_escaped(world: World, metrics: Metrics):
    """The API server takes no such names; a file of a state directory may."""
    world.quota(ODD, namespace=ODD, mem=1000)
    assert samples(metrics, "hami_quota_limit") == [
        r'hami_quota_limit{key="limits.nvidia.com/gpumem",namespace="a\"b\\c\nd",quota="a\"b\\c\nd"} 1000.0'
    ]
    (read,) = (
        sample.labels
        for family in text_string_to_metric_families(page(metrics))
        for sample in family.samples
        if sample.name == "hami_quota_limit"
    )
    assert read == {"key": "limits.nvidia.com/gpumem", "namespace": ODD, "quota": ODD}


def families(metrics: Metrics) -> list[tuple[str, str, str]]:
    return [(found.name, found.type, found.documentation) for found in text_string_to_metric_families(page(metrics))]


def test_every_metric_has_a_name_of_ours_a_type_and_a_sentence(metrics: Metrics):
    found = families(metrics)
    assert len({name for name, _, _ in found}) == len(found)
    for name, kind, text in found:
        assert name.startswith("hami_quota_")
        assert kind in {"counter", "gauge", "histogram"}
        assert text.endswith(".")


def test_the_page_says_which_version_runs_and_in_which_form_it_is(metrics: Metrics):
    assert samples(metrics, "hami_quota_build_info") == [
        f'hami_quota_build_info{{version="{webhook.__version__}"}} 1.0'
    ]
    assert metrics.page()[1] == "text/plain; version=1.0.0; charset=utf-8"

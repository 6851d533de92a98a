from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import device_config
from click.testing import CliRunner, Result

from webhook.admission import Rules
from webhook.cli.manifests import command
from webhook.install import (
    ServiceReference,
    ValidatingOptions,
    managed_names,
    mutating_configuration,
    to_yaml,
    validating_configuration,
)
from webhook.policy import Policy

ROOT = Path(__file__).parents[2]
CHART_CONFIG = ROOT / "examples" / "device-config.yaml"

NVIDIA = {
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
}


def rules(text: str | None = None) -> Rules:
    return Rules.from_config(text or device_config(), Policy())


def webhook(**options: Any) -> dict[str, Any]:
    """Return the one entry of a configuration."""
    (entry,) = validating_configuration(rules(), ValidatingOptions(**options))["webhooks"]
    return dict(entry)


def condition(of: Rules) -> str:
    (entry,) = validating_configuration(of, ValidatingOptions())["webhooks"]
    (only,) = entry["matchConditions"]
    return str(only["expression"])


def test_pods_that_are_created_are_all_that_is_reviewed():
    """Rules are limited to pods, and nothing can make the API server wait for long."""
    entry = webhook()
    assert entry["rules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }
    ]
    assert entry["failurePolicy"] == "Fail"
    assert entry["timeoutSeconds"] == 3
    assert entry["sideEffects"] == "NoneOnDryRun"
    assert entry["matchPolicy"] == "Equivalent"
    assert entry["admissionReviewVersions"] == ["v1"]


@pytest.mark.parametrize(
    ("options", "want_excluded"),
    [
        pytest.param({}, ["kube-system", "hami-quota-system"], id="by default"),
        pytest.param(
            {"service": ServiceReference(namespace="gpu-quota")},
            ["kube-system", "gpu-quota"],
            id="the namespace that the webhook runs in, whatever its name",
        ),
        pytest.param(
            {"excluded_namespaces": ("monitoring", "kube-system")},
            ["kube-system", "hami-quota-system", "monitoring"],
            id="others beside these, none twice",
        ),
        pytest.param(
            {"url": "https://127.0.0.1:8443/validate"},
            ["kube-system", "hami-quota-system"],
            id="the same when it is called by URL",
        ),
    ],
)
def test_a_stopped_webhook_can_start_again(options: dict[str, Any], want_excluded: list[str]):
    """A webhook that guards its own namespace keeps itself from starting."""
    assert webhook(**options)["namespaceSelector"] == {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": want_excluded}]
    }


def test_it_is_called_by_its_service():
    service = ServiceReference(name="quota", namespace="gpu", port=8443)
    assert webhook(service=service, ca_bundle=b"PEM")["clientConfig"] == {
        "service": {"name": "quota", "namespace": "gpu", "path": "/validate", "port": 8443},
        "caBundle": base64.b64encode(b"PEM").decode(),
    }


def test_it_is_called_by_url_instead():
    url = "https://127.0.0.1:8443/validate"
    assert webhook(url=url)["clientConfig"] == {"url": url}


def test_choices_of_the_operator_are_taken_over():
    options = ValidatingOptions(name="other", timeout_s=10, failure_policy="Ignore")
    configuration = validating_configuration(rules(), options)
    (entry,) = configuration["webhooks"]
    assert configuration["metadata"]["name"] == "other"
    assert (entry["timeoutSeconds"], entry["failurePolicy"]) == (10, "Ignore")


def test_the_condition_names_what_the_rules_know():
    of = rules()
    configuration = validating_configuration(of, ValidatingOptions())
    assert managed_names(configuration) == of.managed | of.owned_annotations
    assert managed_names(configuration) >= NVIDIA | {"hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"}


def test_a_renamed_resource_is_seen_to_be_missing_from_an_older_configuration():
    """A stale condition is a hole: a pod that asks for the new name is not reviewed."""
    applied = validating_configuration(rules(), ValidatingOptions())
    renamed = rules(device_config(resourceMemoryName="example.com/vram"))
    assert renamed.managed - managed_names(applied) == {"example.com/vram"}


@pytest.mark.parametrize(
    ("configuration", "want"),
    [
        pytest.param({}, set(), id="an object without webhooks"),
        pytest.param({"webhooks": None}, set(), id="webhooks that are null"),
        pytest.param({"webhooks": [{"name": "w"}]}, set(), id="a webhook without conditions"),
        pytest.param(
            {"webhooks": [{"matchConditions": [{"name": "c", "expression": r'name in ["a\"b", "\x41"]'}]}]},
            {'a"b', r"\x41"},
            id="escapes that JSON has, and one that only CEL has",
        ),
    ],
)
def test_names_are_found_in_whatever_a_cluster_holds(configuration: dict[str, Any], want: set[str]):
    assert managed_names(configuration) == want


def test_names_with_quotes_and_other_scripts_are_escaped():
    of = rules()
    of.owned_annotations = frozenset({'a"b', "a\\b", "a\nb", "gerät", "😀"})
    text = condition(of)
    # CEL has no surrogates, so what is not ASCII stands as it is.
    for want in (r'"a\"b"', r'"a\\b"', r'"a\nb"', '"gerät"', '"😀"'):
        assert want in text
    assert managed_names(validating_configuration(of, ValidatingOptions())) == of.managed | of.owned_annotations


def test_the_same_rules_give_the_same_text():
    once, again = (to_yaml([validating_configuration(rules(), ValidatingOptions())]) for _ in range(2))
    assert once == again
    assert once.index("kind:") < once.index("metadata:") < once.index("webhooks:")


def test_the_condition_is_a_block_of_readable_lines():
    text = to_yaml([validating_configuration(rules(CHART_CONFIG.read_text()), ValidatingOptions())])
    assert "expression: |\n" in text
    assert max(map(len, text.splitlines())) <= 130


def test_yaml_says_what_the_documents_say():
    documents: list[dict[str, Any]] = [
        validating_configuration(rules(), ValidatingOptions(excluded_namespaces=("1e4", "0x10", "no", "null"))),
        {"kind": "Other", "lines": "a\nb\n", "list": [], "number": 4000},
    ]
    text = to_yaml(documents)
    assert list(yaml.safe_load_all(text)) == documents
    # PyYAML reads a bare 1e4 as a text; kubectl reads a number.
    assert "- '1e4'\n" in text


class TestMutating:
    """The configuration of the mutating webhook."""

    @staticmethod
    def entry(of: Rules | None = None, **options: Any) -> dict[str, Any]:
        configuration = mutating_configuration(of or rules(), ValidatingOptions(**options))
        assert configuration["kind"] == "MutatingWebhookConfiguration"
        (entry,) = configuration["webhooks"]
        return dict(entry)

    def test_a_failure_costs_a_pod_its_defaults_and_nothing_else(self):
        entry = self.entry(failure_policy="Fail")
        assert entry["failurePolicy"] == "Ignore"
        assert entry["timeoutSeconds"] == 3
        assert entry["sideEffects"] == "None"
        assert entry["admissionReviewVersions"] == ["v1"]

    def test_it_is_called_again_after_webhooks_that_add_containers(self):
        assert self.entry()["reinvocationPolicy"] == "IfNeeded"

    def test_it_is_called_for_the_creations_that_are_judged(self):
        entry, judging = self.entry(excluded_namespaces=("batch",)), webhook(excluded_namespaces=("batch",))
        for key in ("rules", "matchPolicy", "namespaceSelector"):
            assert entry[key] == judging[key]
        assert entry["rules"][0]["operations"] == ["CREATE"]

    def test_updates_are_never_mutated(self):
        assert self.entry(trusted_users=("hami",))["rules"][0]["operations"] == ["CREATE"]

    def test_only_pods_that_name_a_resource_are_sent(self):
        of = rules()
        assert managed_names({"webhooks": [self.entry(of)]}) == of.managed

    def test_every_pod_is_sent_where_hami_hides_cards_from_containers_without_any(self):
        assert "matchConditions" not in self.entry(rules(device_config(overwriteEnv=True)))

    @pytest.mark.parametrize(
        ("options", "want"),
        [
            pytest.param(
                {},
                {"service": {"name": "hami-quota", "namespace": "hami-quota-system", "path": "/mutate", "port": 443}},
                id="a Service",
            ),
            pytest.param(
                {"url": "https://quota/hami/validate"}, {"url": "https://quota/hami/mutate"}, id="the URL beside"
            ),
        ],
    )
    def test_where_it_is_called(self, options: dict[str, Any], want: dict[str, Any]):
        assert self.entry(**options)["clientConfig"] == want


class TestCommand:
    """`hami-quota manifests webhook`."""

    @staticmethod
    def printed(*arguments: str) -> Result:
        return CliRunner().invoke(command, ["webhook", "--device-config", str(CHART_CONFIG), *arguments])

    def test_the_mutating_configuration_is_printed_when_asked_for(self):
        plain, both = (list(yaml.safe_load_all(self.printed(*flags).stdout)) for flags in ((), ("--mutating",)))
        assert [document["kind"] for document in plain] == ["ValidatingWebhookConfiguration"]
        assert both == [*plain, mutating_configuration(rules(CHART_CONFIG.read_text()), ValidatingOptions())]

    def test_a_url_that_leads_nowhere_else_is_refused(self):
        result = self.printed("--mutating", "--url", "https://quota/")
        assert result.exit_code != 0
        assert "must end in /validate" in result.output + str(result.exception)

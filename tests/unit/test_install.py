from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import device_config

from webhook.admission import Rules
from webhook.install import ServiceReference, ValidatingOptions, managed_names, to_yaml, validating_configuration
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
    """R63: rules are limited to pods, and nothing can make the API server wait for long."""
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
    """R63: a webhook that guards its own namespace keeps itself from starting."""
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

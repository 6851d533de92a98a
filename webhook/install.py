"""What has to be applied to a cluster, generated from the device configuration: values in, manifests out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from webhook.devices.registry import unasked

if TYPE_CHECKING:
    from webhook.admission import Rules

WEBHOOK_NAME = "quota.hami.io"
MUTATING_WEBHOOK_NAME = "defaults.hami.io"

VALIDATE_PATH = "/validate"
_MUTATE_PATH = "/mutate"

# Of the lists of names in a condition.
_LINE_LENGTH = 100

_LIKE_A_NUMBER = re.compile(r"[-+.]*[0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """The Service behind which the webhook runs."""

    name: str = "hami-quota"
    namespace: str = "hami-quota-system"
    port: int = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatingOptions:
    """How the API server calls the webhook; some of it goes for the mutating one, too.

    Attributes:
        name: Of the configuration object.
        service: Where it is called; its namespace is excluded from review.
        url: Called in place of the Service when given; ends in `/validate`, and in `/mutate` for the mutating webhook.
        ca_bundle: The authority of the serving certificate, PEM; empty for one that an injector adds.
        excluded_namespaces: Namespaces that are never judged, besides kube-system and the webhook's own.
        timeout_s: How long the API server waits.
        failure_policy: `Fail` or `Ignore`: what happens to a pod that matches when no decision comes back.
        trusted_users: HAMi's scheduler and device plugins. Updates are guarded only where they are known, and theirs
            never reach the webhook, so that HAMi does not depend on it.
    """

    name: str = "hami-quota"
    service: ServiceReference = ServiceReference()
    url: str = ""
    ca_bundle: bytes = b""
    excluded_namespaces: tuple[str, ...] = ()
    timeout_s: int = 3
    failure_policy: str = "Fail"
    trusted_users: tuple[str, ...] = ()


def validating_configuration(rules: Rules, options: ValidatingOptions) -> dict[str, Any]:
    """Return the ValidatingWebhookConfiguration.

    Only creations of pods that name a managed resource, or carry an annotation that HAMi owns, match, and updates by
    others than HAMi that change such an annotation; so an outage of the webhook touches no other pod. Its own namespace
    and kube-system are left out, so that it can always start.
    """
    created = f"""\
{_names_one_of(rules.managed)}
|| (has(object.metadata.annotations) && object.metadata.annotations.exists(name, name in [
{_names(rules.owned_annotations)}
  ]))
"""
    called = _called(options, WEBHOOK_NAME, VALIDATE_PATH)
    if options.trusted_users:
        called["rules"][0]["operations"].append("UPDATE")
        created = f"request.operation == 'UPDATE' ? (\n{_forges(rules, options.trusted_users)}) : (\n{created})\n"
    return _configuration(
        "ValidatingWebhookConfiguration",
        options,
        {
            **called,
            "matchConditions": _match_conditions(created),
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": options.timeout_s,
            "failurePolicy": options.failure_policy,
            "admissionReviewVersions": ["v1"],
        },
    )


def mutating_configuration(rules: Rules, options: ValidatingOptions) -> dict[str, Any]:
    """Return the MutatingWebhookConfiguration, for clusters in which HAMi's own webhook does not run.

    The same creations match, but for annotations, which defaulting does not look at; where the device configuration has
    it change containers without cards (`overwriteEnv`), every pod does. A pod is created without its defaults while the
    webhook is away: it is judged with them all the same. Called again when a later webhook changed the pod, since that
    may have added a container.
    """
    entry = _called(options, MUTATING_WEBHOOK_NAME, _MUTATE_PATH)
    if not unasked(rules.backends):
        entry["matchConditions"] = _match_conditions(f"{_names_one_of(rules.managed)}\n")
    return _configuration(
        "MutatingWebhookConfiguration",
        options,
        {
            **entry,
            "sideEffects": "None",
            "timeoutSeconds": options.timeout_s,
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v1"],
        },
    )


def _configuration(kind: str, options: ValidatingOptions, webhook: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": options.name, "labels": {"app.kubernetes.io/name": "hami-quota"}},
        "webhooks": [webhook],
    }


def _called(options: ValidatingOptions, name: str, path: str) -> dict[str, Any]:
    """Return what the entries of both configurations share: where we are called, and for which objects."""
    excluded = dict.fromkeys(("kube-system", options.service.namespace, *options.excluded_namespaces))
    return {
        "name": name,
        "clientConfig": _client_config(options, path),
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "matchPolicy": "Equivalent",
        "namespaceSelector": {
            "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(excluded)}]
        },
    }


def _match_conditions(expression: str) -> list[dict[str, str]]:
    return [{"name": "concerns-hami-devices", "expression": expression}]


def _client_config(options: ValidatingOptions, path: str) -> dict[str, Any]:
    config: dict[str, Any]
    if options.url:
        config = {"url": options.url if path == VALIDATE_PATH else options.url.removesuffix(VALIDATE_PATH) + path}
    else:
        service = options.service
        config = {
            "service": {
                "name": service.name,
                "namespace": service.namespace,
                "path": path,
                "port": service.port,
            }
        }
    if options.ca_bundle:
        config["caBundle"] = base64.b64encode(options.ca_bundle).decode("ascii")
    return config


def _names_one_of(resources: Iterable[str]) -> str:
    """Return the CEL condition that a pod names a resource; every field that it reads may be absent.

    `in` a list of constants is one look-up to the API server, however long the list: 1,000 containers of 30 resources
    stay within its cost limit for conditions, past which it would refuse the pod. Asking each name of every container
    instead was refused there. `has` is understood by every version that has conditions; `?.` is not.
    """
    return f"""\
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
  has(c.resources) && [
    has(c.resources.limits) ? c.resources.limits : {{}},
    has(c.resources.requests) ? c.resources.requests : {{}}
  ].exists(amounts, amounts.exists(name, name in [
{_names(resources)}
  ])))"""


def _forges(rules: Rules, trusted_users: Iterable[str]) -> str:
    """Return the CEL condition that an update by a stranger changes an annotation that decides a charge."""
    return f"""\
  !(request.userInfo.username in [
{_names(trusted_users)}
  ]) && [
    has(object.metadata.annotations) ? object.metadata.annotations : {{}}
  ].exists(after, [
    has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {{}}
  ].exists(before, [
{_names(rules.owned_annotations | rules.sizing_annotations)}
  ].exists(name, (name in before) != (name in after) || (name in after && before[name] != after[name]))))
"""


def _names(names: Iterable[str]) -> str:
    """Return the inside of a CEL list of texts, on lines of a readable length."""
    lines = [""]
    for text in map(_literal, sorted(names)):
        if lines[-1] and len(lines[-1]) + len(text) > _LINE_LENGTH:
            lines.append("")
        lines[-1] += f"{text}, "
    return "\n".join(f"    {line.rstrip()}" for line in lines).removesuffix(",")


def _literal(text: str) -> str:
    """Return a CEL text. JSON's escapes are CEL's too but for surrogates, so what is not ASCII stays as it is."""
    return json.dumps(text, ensure_ascii=False)


_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')


def managed_names(configuration: Mapping[str, Any]) -> frozenset[str]:
    """Return every resource and annotation that the match conditions of a configuration object name.

    What `Rules` knows and a configuration does not name is a hole: such pods are not reviewed.
    """
    return frozenset(
        _text_of(literal)
        for webhook in configuration.get("webhooks") or ()
        for condition in webhook.get("matchConditions") or ()
        for literal in _LITERAL.findall(condition.get("expression", ""))
    )


def _text_of(literal: str) -> str:
    try:
        text: str = json.loads(literal)
    except ValueError:
        # Escaped as only CEL can, so by another hand than ours.
        return literal[1:-1]
    return text


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and lists indented under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML leaves `1e4` plain, since it is a text to YAML 1.1; to kubectl it is a number.
    style = "|" if "\n" in text else "'" if _LIKE_A_NUMBER.match(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents as YAML, keys in the order given."""
    return "".join(
        "---\n" + yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=10_000) for document in documents
    )

"""`hami-quota usage`: what is used of every quota, and by which pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from webhook.cli.counting import counting_options, recounted
from webhook.reports.usage import namespace_use
from webhook.reports.usage_text import Format, render

if TYPE_CHECKING:
    from webhook.admission import Rules
    from webhook.server.sources import Origin


@click.command("usage")
@click.option("-n", "--namespace", metavar="NAME", help="By default that of the kubeconfig's context, or `default`.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Every namespace that has a quota, or pods that hold some.")
@click.option(
    "-o",
    "--output",
    type=click.Choice([str(form) for form in Format]),
    default=str(Format.TABLE),
    show_default=True,
    help="`wide` adds columns; `json` is described in docs/usage.md.",
)
@click.option("--pods", is_flag=True, help="List the pods too, the largest share of memory first.")
@counting_options
def command(  # noqa: PLR0913 - one parameter an option
    *, origin: Origin, rules: Rules, namespace: str | None, all_namespaces: bool, output: str, pods: bool
) -> None:
    """Show what is used of every quota, counted from scratch as the webhook counts it.

    USED is what allocated and pending pods hold, terminating ones included, in the unit of the quota's key. Exit codes:
    0 counted, 2 could not.
    """
    if namespace and all_namespaces:
        raise click.UsageError("-n and -A exclude each other")
    if not all_namespaces:
        namespace = namespace or _default_namespace(origin)
        origin = replace(origin, namespace=namespace)
    ledger = recounted(origin, rules)
    memory = {backend.names.memory for backend in rules.backends}
    names = ledger.namespaces() if namespace is None else [namespace]
    uses = [namespace_use(ledger.view(name), rules.keys, memory) for name in names]
    if all_namespaces:
        uses = [use for use in uses if use.keys]
    click.echo(render(uses, rules.keys, Format(output), with_namespaces=all_namespaces, with_pods=pods))


def _default_namespace(origin: Origin) -> str:
    if origin.state is not None:
        return "default"
    # The client library takes a third of a second to import; a state directory needs none of it.
    from webhook.kube import default_namespace, pod_namespace  # noqa: PLC0415

    if origin.kubeconfig or origin.context:
        return default_namespace(origin.kubeconfig, origin.context)
    return pod_namespace()

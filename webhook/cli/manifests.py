"""`hami-quota manifests`: what has to be applied to a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from webhook.admission import Rules
from webhook.errors import SettingsError
from webhook.install import (
    VALIDATE_PATH,
    ServiceReference,
    ValidatingOptions,
    mutating_configuration,
    to_yaml,
    validating_configuration,
)
from webhook.policy import Policy


@click.group("manifests")
def command() -> None:
    """Print what has to be applied to a cluster, as YAML on standard output."""


@command.command("webhook")
@click.option(
    "--device-config",
    type=click.Path(path_type=Path),
    required=True,
    help="HAMi's device-config.yaml, the one that `serve` is given.",
)
@click.option("--name", default="hami-quota", show_default=True, help="Name of the configuration object.")
@click.option("--service", default="hami-quota", show_default=True, help="The Service that is called.")
@click.option("--namespace", default="hami-quota-system", show_default=True, help="Its namespace; never judged.")
@click.option("--port", type=click.IntRange(1, 65535), default=443, show_default=True, help="Its port.")
@click.option("--url", default="", help="Called in place of the Service, such as https://127.0.0.1:8443/validate.")
@click.option("--ca-bundle", type=click.Path(path_type=Path), help="The authority's certificate, PEM (ca.crt).")
@click.option("--exclude-namespace", multiple=True, metavar="NAME", help="Never judged either; repeatable.")
@click.option("--timeout", type=click.IntRange(1, 30), default=3, show_default=True, help="Seconds to wait for us.")
@click.option("--failure-policy", type=click.Choice(["Fail", "Ignore"]), default="Fail", show_default=True)
@click.option("--trusted-user", multiple=True, metavar="USER", help="A HAMi component; repeatable. Guards updates.")
@click.option("--mutating", is_flag=True, help="Also the MutatingWebhookConfiguration: HAMi's defaulting by us.")
def webhook(  # noqa: PLR0913, PLR0917 - one parameter an option
    device_config: Path,
    name: str,
    service: str,
    namespace: str,
    port: int,
    url: str,
    ca_bundle: Path | None,
    exclude_namespace: tuple[str, ...],
    timeout: int,
    failure_policy: str,
    trusted_user: tuple[str, ...],
    *,
    mutating: bool,
) -> None:
    """Print the ValidatingWebhookConfiguration for a device configuration.

    --mutating is for clusters where HAMi's own webhook does not run; a failure of that webhook is always ignored. The
    match conditions name the resources of the device configuration: print and apply it again whenever that changes.
    """
    if url and not url.startswith("https://"):
        raise SettingsError(f"--url {url!r}: the API server calls https only, such as https://127.0.0.1:8443/validate")
    if not all(trusted_user):
        raise SettingsError("--trusted-user '': must name a user")
    options = ValidatingOptions(
        name=name,
        service=ServiceReference(name=service, namespace=namespace, port=port),
        url=url,
        ca_bundle=_read_bundle(ca_bundle) if ca_bundle else b"",
        excluded_namespaces=exclude_namespace,
        timeout_s=timeout,
        failure_policy=failure_policy,
        trusted_users=trusted_user,
    )
    rules = Rules.from_config(_read(device_config, "--device-config").decode("utf-8", "replace"), Policy())
    configurations = [validating_configuration(rules, options)]
    if mutating:
        if url and not url.endswith(VALIDATE_PATH):
            raise SettingsError(f"--url {url}: with --mutating it must end in {VALIDATE_PATH}")
        configurations.append(mutating_configuration(rules, options))
    if not trusted_user:
        click.echo("updates are not guarded: name HAMi's scheduler and device plugins with --trusted-user", err=True)
    click.echo(to_yaml(configurations), nl=False)


def _read_bundle(path: Path) -> bytes:
    """Return certificates, and nothing that must not be published or that the API server could not use."""
    from certs.authority import CertificateError, read_certificate  # noqa: PLC0415 - cryptography is slow to import

    bundle = _read(path, "--ca-bundle")
    if b"PRIVATE KEY" in bundle:
        raise SettingsError(f"--ca-bundle {path}: holds a private key: give the authority's certificate, ca.crt")
    try:
        read_certificate(bundle)
    except CertificateError as error:
        raise SettingsError(f"--ca-bundle {path}: holds no certificate ({error}): give ca.crt") from error
    return bundle


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{flag} {path}: {error.strerror or error}") from error

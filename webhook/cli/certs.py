"""`hami-quota certs`: a certificate authority and a serving certificate in a directory."""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from pathlib import Path

import click

from certs import CertificateError, Issued, Names, ensure_pair
from webhook.errors import SettingsError


@click.command("certs")
@click.option("--dir", "directory", type=click.Path(path_type=Path), required=True, help="Where the files go.")
@click.option("--service", default="hami-quota", show_default=True, help="The Service the API server calls.")
@click.option("--namespace", default="hami-quota-system", show_default=True, help="Its namespace.")
@click.option("--loopback", is_flag=True, help="Add localhost, 127.0.0.1 and ::1.")
@click.option("--dns", multiple=True, metavar="NAME", help="A further DNS name; may be repeated.")
@click.option("--ip", multiple=True, metavar="ADDRESS", help="A further IP address; may be repeated.")
@click.option("--replace-ca", is_flag=True, help="Issue a new authority, and trust the old one no longer.")
def command(  # noqa: PLR0913 - one parameter an option
    directory: Path,
    service: str,
    namespace: str,
    *,
    loopback: bool,
    dns: tuple[str, ...],
    ip: tuple[str, ...],
    replace_ca: bool,
) -> None:
    """Issue a certificate authority and a serving certificate.

    Writes ca.crt, tls.crt and tls.key (mode 0600) as a mounted Secret has them, and keeps what is still good, so that
    it may run at every start. The authority's key is in the subdirectory `authority`.
    """
    try:
        standard = Names.of_service(service, namespace, loopback=loopback)
        names = Names(
            dns_names=(*standard.dns_names, *dns),
            ip_addresses=(*standard.ip_addresses, *map(ip_address, ip)),
        )
        result = ensure_pair(directory, names, dt.datetime.now(dt.UTC), replace_ca=replace_ca)
    except (CertificateError, ValueError, OSError) as error:
        raise SettingsError(f"certs: {error}") from error
    verb = "issued" if isinstance(result, Issued) else "kept"
    until = result.certificate.not_after.strftime("%Y-%m-%d %H:%M UTC")
    click.echo(f"{verb} {directory / 'tls.crt'}, good until {until} ({result.reason})")

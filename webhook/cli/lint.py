"""`hami-quota lint`: what a device configuration comes to."""

from __future__ import annotations

from pathlib import Path

import click

from webhook.reports.devices import families_document, families_table
from webhook.settings import read_device_config


@click.command("lint")
@click.option(
    "--device-config",
    type=click.Path(path_type=Path),
    default=Path("/etc/hami-quota/device-config.yaml"),
    show_default=True,
    help="HAMi's device-config.yaml.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="`markdown` is a page for those who write pods and quotas, such as docs/devices.md.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if there is a warning.")
def command(*, device_config: Path, output: str, strict: bool) -> None:
    """Show which device families a configuration puts in force, and what in it HAMi does not read.

    A quota's key is `limits.` and the resource's name. Warnings are printed on standard error.

    Exit codes: 0 it can be started with, 1 it can, and --strict is given and there are warnings, 2 it cannot.
    """
    config = read_device_config(device_config)
    click.echo(
        families_table(config.backends) if output == "table" else families_document(config.backends),
        nl=output == "table",
    )
    for unknown in config.unknown_keys:
        click.echo(f"warning: {device_config}: {unknown}", err=True)
    if strict and config.unknown_keys:
        click.get_current_context().exit(1)

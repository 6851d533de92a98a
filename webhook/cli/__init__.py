"""The `hami-quota` command: one module a subcommand, imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

import click

import webhook
from webhook.errors import HamiQuotaError

_COMMANDS = {
    "certs": "Issue a certificate authority and a serving certificate.",
    "lint": "Show what a device configuration comes to.",
    "manifests": "Print what has to be applied to a cluster.",
    "serve": "Run the admission webhook.",
    "usage": "Show what is used of every quota, and by which pods.",
    "verify": "Compare what a running webhook holds with a recount.",
}


class _LazyGroup(click.Group):
    """A group whose commands are modules of this package, so that one command does not pay for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(f"webhook.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"webhook.cli.{cmd_name}.command is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup, context_settings={"auto_envvar_prefix": "HAMI_QUOTA", "help_option_names": ["-h", "--help"]}
)
@click.version_option(webhook.__version__, message="%(prog)s %(version)s")
def _group() -> None:
    """GPU quotas that hold on clusters which share GPUs with HAMi.

    Every option can be set in the environment too: `--device-config` of `serve` is HAMI_QUOTA_SERVE_DEVICE_CONFIG.
    """


def main() -> None:
    """Run the command; a known error is one line on standard error and exit code 2."""
    try:
        _group(prog_name="hami-quota")
    except HamiQuotaError as error:
        click.echo(f"hami-quota: {error}", err=True)
        sys.exit(2)

"""What the commands that count have in common: where the objects come from, and the options that change a figure."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from webhook.errors import HamiQuotaError, SettingsError
from webhook.policy import Mode, Policy
from webhook.server.recount import recount
from webhook.server.sources import Origin
from webhook.settings import check_families, read_card_sizes, read_rules

if TYPE_CHECKING:
    from webhook.admission import Rules
    from webhook.ledger import QuotaLedger

F = TypeVar("F", bound=Callable[..., Any])

_ORIGINS = (
    click.option("--kubeconfig", help="A kubeconfig; by default the pod's service account, or $KUBECONFIG."),
    click.option("--context", help="The context of the kubeconfig."),
    click.option(
        "--state", type=click.Path(path_type=Path), help="A directory of manifests in place of an API server."
    ),
    click.option("--snapshot", type=click.Path(path_type=Path), help="A file of manifests in place of an API server."),
)
_CHOICES = (
    click.option(
        "--device-config",
        type=click.Path(path_type=Path),
        default=Path("/etc/hami-quota/device-config.yaml"),
        show_default=True,
        help="HAMi's device-config.yaml.",
    ),
    click.option(
        "--default-mode",
        type=click.Choice([str(mode) for mode in Mode]),
        default=str(Mode.ENFORCE),
        show_default=True,
        help="As given to `serve`, like the options below.",
    ),
    click.option(
        "--count-quota/--no-count-quota", default=True, show_default=True, help="Enforce limits.<count name>."
    ),
    click.option(
        "--assumed-card-memory", multiple=True, metavar="FAMILY=MIB", help="Card size while none is registered."
    ),
    click.option("--hami-compat", is_flag=True, help="HAMi's laxness: pending pods count 0."),
)


def counting_options(function: F) -> Callable[..., None]:
    """Give a command the options that say what to count; it is called with `origin` and `rules` in their place."""

    @functools.wraps(function)
    def wrapped(  # noqa: PLR0913 - one parameter an option
        *,
        kubeconfig: str | None,
        context: str | None,
        state: Path | None,
        snapshot: Path | None,
        device_config: Path,
        default_mode: str,
        count_quota: bool,
        assumed_card_memory: tuple[str, ...],
        hami_compat: bool,
        **others: Any,
    ) -> None:
        # What concerns one object is said on standard error; the figures are for standard output alone.
        logging.basicConfig(level=logging.ERROR, format="hami-quota: %(message)s")
        policy = Policy(
            default_mode=Mode(default_mode),
            count_quota=count_quota,
            hami_compat=hami_compat,
            assumed_card_memory_mib=read_card_sizes("--assumed-card-memory", assumed_card_memory),
        )
        origin = _origin(kubeconfig, context, state, snapshot)
        rules = read_rules(device_config, policy)
        check_families(
            "--assumed-card-memory", policy.assumed_card_memory_mib, [family.key for family in rules.backends]
        )
        function(origin=origin, rules=rules, **others)

    decorated: Callable[..., None] = wrapped
    for option in reversed((*_ORIGINS, *_CHOICES)):
        decorated = option(decorated)
    return decorated


def _origin(kubeconfig: str | None, context: str | None, state: Path | None, snapshot: Path | None) -> Origin:
    given = {"--state": state, "--snapshot": snapshot, "--kubeconfig or --context": kubeconfig or context}
    named = [flag for flag, value in given.items() if value]
    if len(named) > 1:
        raise SettingsError(f"{' and '.join(named)} exclude each other")
    if state is not None and not state.is_dir():
        raise SettingsError(f"--state {state}: no such directory")
    if snapshot is not None and not snapshot.is_file():
        raise SettingsError(f"--snapshot {snapshot}: no such file")
    if not named and "KUBERNETES_SERVICE_HOST" not in os.environ:
        # Outside of a cluster, what kubectl would use.
        kubeconfig = os.environ.get("KUBECONFIG") or "~/.kube/config"
    return Origin(state=state or snapshot, kubeconfig=kubeconfig, context=context)


def recounted(origin: Origin, rules: Rules) -> QuotaLedger:
    """Return a ledger filled once from an origin; whatever goes wrong is one line for the user.

    Raises:
        HamiQuotaError: It could not be filled.
    """
    try:
        return recount(origin, rules)
    except HamiQuotaError:
        raise
    except Exception as error:
        raise SettingsError(f"cannot count: {type(error).__name__}: {error}") from error

"""`hami-quota serve`: the admission webhook."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.admission import Rules
from webhook.errors import SettingsError
from webhook.files import manifest_files
from webhook.policy import Mode, Policy
from webhook.settings import (
    check_bindable,
    check_families,
    read_address,
    read_card_sizes,
    read_device_config,
    read_percentages,
)
from webhook.state_directory import read_state

if TYPE_CHECKING:
    from webhook.server.compose import Service
    from webhook.server.sources import Origin

_log = logging.getLogger(__name__)

_HINTS = """
hami-quota serves {origin} on https://{bind}. In another terminal, a review that fits and one that is refused:

  curl --cacert {ca} -H 'Content-Type: application/json' -d @examples/reviews/fits.json https://{bind}/validate
  curl --cacert {ca} -H 'Content-Type: application/json' -d @examples/reviews/refused.json https://{bind}/validate

Ctrl-C ends it.
"""


def _print_hints_when_ready(service: Service, origin: Origin, bind: str, certificates: Path) -> None:
    def wait() -> None:
        while service.source.not_ready():
            time.sleep(0.05)
        click.echo(_HINTS.format(origin=origin.state or "the cluster", bind=bind, ca=certificates / "ca.crt"))

    threading.Thread(target=wait, name="hints", daemon=True).start()


@click.command("serve")
@click.option(
    "--device-config",
    type=click.Path(path_type=Path),
    default=Path("/etc/hami-quota/device-config.yaml"),
    show_default=True,
    help="HAMi's device-config.yaml.",
)
@click.option(
    "--certs",
    "certificates",
    type=click.Path(path_type=Path),
    default=Path("/etc/hami-quota/certs"),
    show_default=True,
    help="Directory of tls.crt and tls.key, such as a mounted Secret.",
)
@click.option("--bind", default="127.0.0.1:8443", show_default=True, help="HOST:PORT to serve on.")
@click.option("--state", type=click.Path(path_type=Path), help="A directory of manifests in place of an API server.")
@click.option("--kubeconfig", help="A kubeconfig; by default the pod's service account is used.")
@click.option("--context", help="The context of the kubeconfig.")
@click.option(
    "--default-mode",
    type=click.Choice([str(mode) for mode in Mode]),
    default=str(Mode.ENFORCE),
    show_default=True,
    help="The mode of a namespace without the label hami-quota/mode.",
)
@click.option("--count-quota/--no-count-quota", default=True, show_default=True, help="Enforce limits.<count name>.")
@click.option("--require-cores", is_flag=True, help="Refuse cards without cores where a core quota applies.")
@click.option("--warn-at", default="80,90", show_default=True, help="Percentages of a limit that are warned about.")
@click.option("--assumed-card-memory", multiple=True, metavar="FAMILY=MIB", help="Card size while none is registered.")
@click.option("--hami-compat", is_flag=True, help="HAMi's laxness: pending, unsized and other schedulers' pods pass.")
@click.option("--scheduler-name", default="hami-scheduler", show_default=True, help="The name of HAMi's scheduler.")
@click.option("--trusted-user", multiple=True, metavar="USER", help="May set annotations that HAMi owns; repeatable.")
@click.option("--enforce-updates", is_flag=True, help="Refuse forged updates; without it they are warned about.")
@click.option(
    "--lookup-after",
    type=click.FloatRange(min=0.0),
    default=10.0,
    show_default=True,
    help="Seconds from which an unseen admission is looked up before it makes anyone be refused.",
)
@click.option(
    "--stale-after",
    type=click.FloatRange(min=0.0, min_open=True),
    default=90.0,
    show_default=True,
    # The API server's bookmarks come once a minute: with less than this a quiet cluster is listed again and again.
    hidden=True,
    help="Seconds without a word from the API server until reviews are not decided; shorter only for trials.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Must be 1: the ledger lives in one process.")
@click.option("--drain", type=click.FloatRange(min=0.0), default=5.0, show_default=True, help="Seconds after SIGTERM.")
@click.option("--hints", is_flag=True, help="Print two commands to try, once it is ready.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    device_config: Path,
    certificates: Path,
    bind: str,
    state: Path | None,
    kubeconfig: str | None,
    context: str | None,
    default_mode: str,
    *,
    count_quota: bool,
    require_cores: bool,
    warn_at: str,
    assumed_card_memory: tuple[str, ...],
    hami_compat: bool,
    scheduler_name: str,
    trusted_user: tuple[str, ...],
    enforce_updates: bool,
    lookup_after: float,
    stale_after: float,
    workers: int,
    drain: float,
    hints: bool,
) -> None:
    """Run the admission webhook over TLS until SIGTERM.

    The cluster's objects come from the API server of the pod's service account, of --kubeconfig, or, with --state, from
    a directory of manifests that is watched for changes.
    """
    # Flask, gunicorn and cryptography are for this command alone.
    from certs import CertificateError, CertificateSource  # noqa: PLC0415
    from webhook.server.compose import Service  # noqa: PLC0415
    from webhook.server.limits import Timing  # noqa: PLC0415
    from webhook.server.serve import run  # noqa: PLC0415
    from webhook.server.sources import Origin  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    address = read_address("--bind", bind)
    if not math.isfinite(lookup_after) or not math.isfinite(drain):
        raise SettingsError("--lookup-after and --drain must be finite numbers of seconds")
    policy = Policy(
        default_mode=Mode(default_mode),
        count_quota=count_quota,
        require_cores=require_cores,
        warn_at=read_percentages("--warn-at", warn_at),
        assumed_card_memory_mib=read_card_sizes("--assumed-card-memory", assumed_card_memory),
        hami_compat=hami_compat,
        scheduler_name=scheduler_name,
        trusted_users=frozenset(trusted_user),
        enforce_updates=enforce_updates,
        lookup_after_s=lookup_after,
    )
    config = read_device_config(device_config)
    for unknown in config.unknown_keys:
        _log.warning("%s: %s", device_config, unknown)
    rules = Rules(config.backends, policy)
    check_families("--assumed-card-memory", policy.assumed_card_memory_mib, [family.key for family in rules.backends])
    origin = Origin(state=state, kubeconfig=kubeconfig, context=context, stale_after_s=stale_after)
    # What is wrong should end the start here, in one line, and not the worker in many.
    origin.check()
    if state is not None:
        for path in manifest_files(state):
            read_state(path)
    try:
        certificate = CertificateSource(certificates / "tls.crt", certificates / "tls.key")
    except (CertificateError, OSError) as error:
        raise SettingsError(f"--certs {certificates}: {error}") from error

    check_bindable("--bind", address)

    def certificate_expiry() -> float:
        return certificate.certificate.not_after.timestamp()

    def new_service() -> Service:
        service = Service(rules, origin, certificate_expiry)
        if hints:
            _print_hints_when_ready(service, origin, bind, certificates)
        return service

    run(new_service, bind=bind, certificates=certificate, workers=workers, timing=Timing(drain_s=drain))

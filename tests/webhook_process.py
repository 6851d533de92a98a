"""The webhook as its own process beside the real control plane, installed the way a cluster would install it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import urllib3
import yaml
from control_plane import free_port
from kube_api import eventually
from processes import Process

if TYPE_CHECKING:
    from control_plane import ControlPlane
    from kube_api import Json

ROOT = Path(__file__).parent.parent
DEVICE_CONFIG = ROOT / "examples" / "device-config.yaml"
COMMAND = Path(sys.executable).with_name("hami-quota")

# Several tests share one API server: a webhook judges only the namespaces that are labelled for it.
LABEL = "hami-quota-test"

_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")


class Webhook:
    """One webhook process, and the configuration object that makes the API server call it.

    Args:
        plane: The control plane it serves.
        directory: For its certificates, kubeconfig and log; certificates that are there are taken.
        name: Of the configuration object, and the value of the namespaces' label.
        options: Further options of `hami-quota serve`.
        only_labelled: Whether it judges the namespaces of `namespace()` alone, and not every one.
        trusted_users: Who may write what HAMi owns; updates by others are refused then.
        kubeconfig: How it reaches the API server; by default as the control plane's administrator.
        mutating: Whether it is installed to apply HAMi's defaulting, too.
    """

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        name: str,
        options: tuple[str, ...] = (),
        *,
        only_labelled: bool = True,
        trusted_users: tuple[str, ...] = (),
        kubeconfig: str = "",
        mutating: bool = False,
    ) -> None:
        self._is_mutating = mutating
        self._trusted = tuple(part for user in trusted_users for part in ("--trusted-user", user))
        self._only_labelled = only_labelled
        self._kubeconfig = kubeconfig or plane.admin.kubeconfig()
        self.plane = plane
        self.name = name
        self.port = free_port()
        self._certs = directory / "certs"
        self._options = (*options, *self._trusted, *(("--enforce-updates",) if trusted_users else ()))
        if not self._certs.exists():
            subprocess.run([COMMAND, "certs", "--dir", self._certs, "--loopback"], check=True, capture_output=True)
        self._process = self._new_process(directory)
        self._http = urllib3.PoolManager(ca_certs=str(self._certs / "ca.crt"), retries=False, timeout=10)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.install()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for path in _CONFIGURATIONS.values():
            self.plane.admin.delete(f"{path}/{self.name}")
        self.stop()
        self._http.clear()

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.launch()
        eventually(self._is_ready_or_ended, "ready webhook", timeout_s=30)

    def launch(self) -> None:
        """Start the process."""
        self._process.start()

    def stop(self, *, kill: bool = False) -> None:
        """End the process; after a kill of the parent, its worker notices within a second and follows."""
        self._http.clear()  # or it would wait for us to say goodbye
        self._process.stop(kill=kill)
        eventually(lambda: not self._is_serving(), "end of the worker")

    def install(self) -> None:
        """Apply the configuration that `hami-quota manifests webhook` prints, for this test's namespaces only."""
        printed = subprocess.run(
            [
                COMMAND,
                "manifests",
                "webhook",
                "--device-config",
                DEVICE_CONFIG,
                "--name",
                self.name,
                "--url",
                f"https://127.0.0.1:{self.port}/validate",
                "--ca-bundle",
                self._certs / "ca.crt",
                *self._trusted,
                *(("--mutating",) if self._is_mutating else ()),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for configuration in yaml.safe_load_all(printed):
            if self._only_labelled:
                for webhook in configuration["webhooks"]:
                    webhook["namespaceSelector"]["matchLabels"] = {LABEL: self.name}
            status, body = self.plane.admin.post(_CONFIGURATIONS[configuration["kind"]], configuration)
            assert status == 201, body
        self._wait_until_called()

    def namespace(self) -> str:
        """Return a new namespace that this webhook judges."""
        return self.plane.create_namespace(labels={LABEL: self.name})

    def is_ready(self) -> bool:
        """Return whether /readyz says so."""
        return self.readiness()[0] == 200

    def _is_ready_or_ended(self) -> bool:
        self._process.require_running()
        return self.is_ready()

    def readiness(self) -> tuple[int, str]:
        """Return status and text of /readyz; 0 while nobody listens."""
        try:
            answer = self._http.request("GET", f"https://127.0.0.1:{self.port}/readyz")
        except urllib3.exceptions.HTTPError as error:
            return 0, str(error)
        return answer.status, answer.data.decode()

    def review(self, body: bytes) -> tuple[int, Json]:
        """Post an AdmissionReview as the API server would, and return status and answer."""
        answer = self._http.request(
            "POST",
            f"https://127.0.0.1:{self.port}/validate?timeout=5s",
            headers={"Content-Type": "application/json"},
            body=body,
        )
        return answer.status, json.loads(answer.data)

    def _is_serving(self) -> bool:
        try:
            self._http.request("GET", f"https://127.0.0.1:{self.port}/healthz")
        except urllib3.exceptions.HTTPError:
            return False
        return True

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that carry these labels."""
        page = self._http.request("GET", f"https://127.0.0.1:{self.port}/metrics").data.decode()
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        total = 0.0
        for line in page.splitlines():
            sample = _SAMPLE.match(line)
            if sample and sample["name"] == name and wanted <= set((sample["labels"] or "").split(",")):
                total += float(sample["value"])
        return total

    def used(self, namespace: str, key: str = "limits.nvidia.com/gpumem") -> float:
        """Return what the webhook counts as held."""
        return self.metric("hami_quota_used", namespace=namespace, key=key)

    def wait_for_limit(self, namespace: str, limit: int, key: str = "limits.nvidia.com/gpumem") -> None:
        """Wait until the webhook has seen the limits of a namespace, all quotas added up."""
        eventually(
            lambda: self.metric("hami_quota_limit", namespace=namespace, key=key) == limit,
            f"limit {limit} at the webhook",
        )

    def wait_for_used(self, namespace: str, used: int, key: str = "limits.nvidia.com/gpumem") -> None:
        """Wait until the webhook counts this much as held."""
        eventually(
            lambda: self.used(namespace, key) == used,
            f"use of {used} at the webhook, not {self.used(namespace, key)}",
        )

    def _new_process(self, directory: Path) -> Process:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(self._kubeconfig, encoding="utf-8")
        return Process(
            [
                COMMAND,
                "serve",
                "--kubeconfig",
                kubeconfig,
                "--device-config",
                DEVICE_CONFIG,
                "--certs",
                self._certs,
                "--bind",
                f"127.0.0.1:{self.port}",
                *self._options,
            ],
            directory / "webhook.log",
        )

    def _wait_until_called(self) -> None:
        """Wait until the API server calls the webhook; a fresh configuration takes a moment to be seen."""
        namespace = self.namespace()
        pod: Json = {
            "metadata": {"name": "probe"},
            "spec": {
                "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpumem": "16Gi"}}}]
            },
        }
        eventually(
            lambda: self.plane.admin.post(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")[0] == 403,
            "review by the webhook",
        )
        if self._is_mutating:
            pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "1"
            eventually(
                lambda: (
                    self.plane.admin.post(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")[1]
                    .get("spec", {})
                    .get("schedulerName")
                    == "hami-scheduler"
                ),
                "patch by the webhook",
            )
        self.plane.delete_namespace(namespace)


_CONFIGURATIONS = {
    f"{kind}WebhookConfiguration": f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
    for kind in ("Validating", "Mutating")
}

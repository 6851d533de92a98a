"""What `make demo` runs: a real API server that refuses GPU pods over quota, to try with kubectl."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from control_plane import ControlPlane, binaries  # noqa: E402 - the tests' own control plane
from webhook_process import COMMAND, DEVICE_CONFIG, Webhook  # noqa: E402

REGISTER = "hami.io/node-nvidia-register"
CARDS = [
    {
        "id": f"GPU-{index}",
        "count": 10,
        "devmem": 40960,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "health": True,
    }
    for index in range(4)
]

QUOTAS = {
    "team-a": {"limits.nvidia.com/gpumem": "24576", "limits.nvidia.com/gpucores": "200"},
    "team-b": {"limits.nvidia.com/gpumem": "8192"},
}

FITS = """\
apiVersion: v1
kind: Pod
metadata: {name: fits}
spec:
  containers:
  - {name: server, image: example.com/server, resources: {limits: {nvidia.com/gpumem: "10000"}}}
"""

REFUSED = """\
apiVersion: v1
kind: Pod
metadata: {name: too-big}
spec:
  initContainers:
  - {name: proxy, image: example.com/proxy, restartPolicy: Always, resources: {limits: {nvidia.com/gpumem: "4000"}}}
  - {name: load, image: example.com/load, resources: {limits: {nvidia.com/gpumem: "12000"}}}
  containers:
  - {name: server, image: example.com/server, resources: {limits: {nvidia.com/gpumem: "10000"}}}
"""

READY = """
Ready. In another terminal:

  export KUBECONFIG={kubeconfig} PATH={programs}:$PATH

  kubectl -n team-a create -f {folder}/fits.yaml
  kubectl -n team-a create -f {folder}/too-big.yaml
  {usage} -A --pods --device-config {device_config}

The first asks for 10000 of 24576 MiB. The second needs 16000 at its peak (its sidecar beside its init container), and
14576 are left. The third shows what is used; Kubernetes itself counts none of these keys. A node with four cards of
40960 MiB is registered, so pods that ask for a percentage or for a whole card have a size.
What the webhook says is in {log}. Ctrl-C ends everything and removes it.
"""


def say(text: str) -> None:
    """Print at once, even into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Start everything, print what to try, and wait for Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job starts without
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    say("starting etcd, kube-apiserver, kube-controller-manager and the webhook ...")
    with tempfile.TemporaryDirectory(prefix="hami-quota-demo-") as name:
        folder = Path(name)
        (folder / "fits.yaml").write_text(FITS, encoding="utf-8")
        (folder / "too-big.yaml").write_text(REFUSED, encoding="utf-8")
        with ControlPlane() as plane, Webhook(plane, folder, "demo", only_labelled=False) as webhook:
            for namespace, hard in QUOTAS.items():
                plane.admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
                quota = {"metadata": {"name": "gpu-cap"}, "spec": {"hard": hard}}
                plane.admin.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
                webhook.wait_for_limit(namespace, int(hard["limits.nvidia.com/gpumem"]))
            plane.admin.post(
                "/api/v1/nodes", {"metadata": {"name": "node-1", "annotations": {REGISTER: json.dumps(CARDS)}}}
            )
            say(
                READY.format(
                    kubeconfig=plane.kubeconfig(),
                    programs=binaries(),
                    folder=folder,
                    usage=f"{COMMAND} usage",
                    device_config=DEVICE_CONFIG,
                    log=folder / "webhook.log",
                )
            )
            try:
                signal.pause()
            except KeyboardInterrupt:
                say("stopping ...")


if __name__ == "__main__":
    main()

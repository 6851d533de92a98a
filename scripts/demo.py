"""What `make demo` runs: a real API server that refuses GPU pods over quota, to try with kubectl."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from control_plane import ControlPlane, binaries  # noqa: E402 - the tests' own control plane
from webhook_process import Webhook  # noqa: E402

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
  - {name: server, image: registry.k8s.io/pause, resources: {limits: {nvidia.com/gpumem: "10000"}}}
"""

REFUSED = """\
apiVersion: v1
kind: Pod
metadata: {name: too-big}
spec:
  initContainers:
  - {name: proxy, image: registry.k8s.io/pause, restartPolicy: Always, resources: {limits: {nvidia.com/gpumem: "4000"}}}
  - {name: load, image: registry.k8s.io/pause, resources: {limits: {nvidia.com/gpumem: "12000"}}}
  containers:
  - {name: server, image: registry.k8s.io/pause, resources: {limits: {nvidia.com/gpumem: "10000"}}}
"""


def main() -> None:
    """Start everything, print what to try, and wait for Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    print("starting etcd, kube-apiserver, kube-controller-manager and the webhook ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="hami-quota-demo-") as folder:
        directory = Path(folder)
        with ControlPlane() as plane, Webhook(plane, directory, "demo", only_labelled=False):
            for namespace, hard in QUOTAS.items():
                plane.admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
                quota = {"metadata": {"name": "gpu-cap"}, "spec": {"hard": hard}}
                plane.admin.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
            (directory / "fits.yaml").write_text(FITS, encoding="utf-8")
            (directory / "too-big.yaml").write_text(REFUSED, encoding="utf-8")
            print(
                "\nReady. In another terminal:\n\n"
                f"  export KUBECONFIG={plane.kubeconfig()} PATH={binaries()}:$PATH\n\n"
                f"  kubectl -n team-a create -f {directory}/fits.yaml\n"
                f"  kubectl -n team-a create -f {directory}/too-big.yaml      # 16000 at its peak, 14576 are left\n"
                "  kubectl -n team-a describe quota gpu-cap\n\n"
                "Ctrl-C ends it and removes everything.",
                flush=True,
            )
            try:
                signal.pause()
            except KeyboardInterrupt:
                print("\nstopping ...", flush=True)


if __name__ == "__main__":
    main()

"""A real Kubernetes control plane on the loopback interface, and a door to it for tests.

Owns the processes: etcd, kube-apiserver, kube-controller-manager and, if asked for, kube-scheduler. There
is no kubelet: a node is an object that a test creates, and a pod bound to one stays as the test leaves it.
Where the programs come from is left to `scripts/control-plane binaries`, which builds them once into a cache;
that may take longer than one test is given, so `make test` calls it before pytest starts.

On two cores a start takes 3 s, a restart of the API server 3 s or, killed, 2 s, the end 0.1 s, a namespace 0.02 s;
a session starts one control plane, and each test takes a namespace of its own. Building the programs took 6
minutes, and 10 s with a warm Go build cache.

Nothing outlives its owner: `close` kills and reaps each process it started, by pid, and removes the
temporary folder; should the owner itself be killed, the kernel kills the children (PR_SET_PDEATHSIG).
Keys and certificates live in that folder only, readable by its owner. Only the API server listens on TCP:
etcd asks nobody who they are, so it listens on a Unix socket inside the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Self

import urllib3
from identities import Authority, new_key, write_private
from kube_api import Api
from processes import Process, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kube_api import Json

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "control-plane"

# Generous: a loaded two-core machine has been seen to take three times its usual start.
START_TIMEOUT_S = 90

# Outside Linux's ephemeral range (32768 to 60999), or an outgoing connection of this machine could hold the
# API server's port while it restarts.
PORTS = range(20000, 30000)

# The node lifecycle controller takes nodes without a kubelet for dead after 40 s, and taints them. Without it
# nobody takes away the taint that new nodes get on admission, so that goes too.
CONTROLLERS = "*,-node-lifecycle-controller"
NO_ADMISSION = "TaintNodesByCondition"

KUBECONFIG_MARK = "# Written by scripts/control-plane, and of no use once that has ended.\n"


class ControlPlaneError(Exception):
    """The control plane could not be built, or refused what a test needs before it begins."""


def binaries() -> Path:
    """Return the folder of the programs, building them first if no cache has them.

    Raises:
        ControlPlaneError: The build failed; its output is on standard error.
    """
    try:
        done = subprocess.run([SCRIPT, "binaries"], stdout=subprocess.PIPE, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise ControlPlaneError("scripts/control-plane could not build its programs") from error
    return Path(done.stdout.strip())


class ControlPlane:
    """A running control plane; a context manager, or `start` and `close`.

    Args:
        scheduler: Whether to run kube-scheduler too; without it pods stay unbound unless a test binds them.
        api_server_flags: Appended to ours: the last of a flag given twice holds, and lists add up.
        logs: A folder for the logs, which then stay; else they go with the temporary folder.
    """

    def __init__(
        self, *, scheduler: bool = False, api_server_flags: Sequence[str] = (), logs: Path | None = None
    ) -> None:
        self._scheduler_wanted = scheduler
        self._api_server_flags = tuple(api_server_flags)
        self._logs = logs
        self._programs = Path()
        self._directory = Path()
        self._apis: dict[tuple[str, tuple[str, ...]], Api] = {}
        self.processes: list[Process] = []
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all programs and return when the API server is ready and the controllers are at work.

        Raises:
            ProcessError: A program ended or did not become ready; nothing is left running.
        """
        self._programs = binaries()
        # Short, because a Unix socket's path may have 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="control-plane-"))
        try:
            self._authority = Authority(self._directory)
            self.etcd = self._start_etcd()
            self.api_server = self._process("kube-apiserver", *self._api_server_arguments())
            self.start_api_server()
            self.controller_manager = self._client_process(
                "kube-controller-manager",
                f"--controllers={CONTROLLERS}",
                # Each controller acts as its own service account, as on a real cluster: an admission
                # webhook sees who asks.
                "--use-service-account-credentials",
                f"--service-account-private-key-file={self._directory / 'service-accounts.key'}",
                f"--root-ca-file={self._authority.bundle}",
            )
            if self._scheduler_wanted:
                self._client_process("kube-scheduler")
            self._wait(lambda: self._has_default_account("default"), self.controller_manager)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill what runs, newest first, and remove the temporary folder. Its data serves nobody any more."""
        for api in self._apis.values():
            api.close()
        for process in reversed(self.processes):
            process.stop(kill=True)
        self.processes.clear()
        if self._directory != Path():
            shutil.rmtree(self._directory)
            self._directory = Path()

    @property
    def running(self) -> bool:
        """Whether every program that was started still runs."""
        return all(process.running for process in self.processes)

    @property
    def admin(self) -> Api:
        """The API server as a member of system:masters, whom RBAC lets do anything."""
        return self.api("control-plane-admin", "system:masters")

    def api(self, user: str, *groups: str) -> Api:
        """Return the API server as `user` sees it; RBAC gives a new name no rights, see `grant`.

        A user's first call makes the certificate, and is for one thread; the result is for many.
        """
        if (user, groups) not in self._apis:
            identity = self._authority.client(user, groups)
            self._apis[user, groups] = Api(self.url, self._authority.bundle, identity)
        return self._apis[user, groups]

    def grant(self, namespace: str, user: str, cluster_role: str = "edit") -> None:
        """Let `user` do in `namespace` what a ClusterRole says; the built-in `edit` may create pods."""
        status, body = self.admin.post(
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
            {
                "metadata": {"generateName": "grant-"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": cluster_role,
                },
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            },
        )
        if status != HTTPStatus.CREATED:
            raise ControlPlaneError(f"cannot grant {cluster_role} to {user}: {body}")

    def create_namespace(self, prefix: str = "test-", labels: Json | None = None) -> str:
        """Create a namespace with a fresh name, and return that once pods can be created in it.

        Pod admission wants the default service account, which a controller makes a moment later.
        """
        metadata = {"generateName": prefix, "labels": labels or {}}
        status, body = self.admin.post("/api/v1/namespaces", {"metadata": metadata})
        if status != HTTPStatus.CREATED:
            raise ControlPlaneError(f"cannot create a namespace: {body}")
        name: str = body["metadata"]["name"]
        self._wait(lambda: self._has_default_account(name), self.controller_manager)
        return name

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace; does not wait until it is gone.

        The namespace goes first, as nothing can be created in it then; its pods are deleted at once, since
        bound ones would wait for a kubelet.
        """
        self.admin.delete(f"/api/v1/namespaces/{name}")
        self.admin.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="0")

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, api: Api | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the admin, or as the user of `api`; its output is in the result.

        Raises:
            ControlPlaneError: It failed and `check` is true; the text has what it said.
        """
        command = [str(self._programs / "kubectl"), f"--kubeconfig={self.kubeconfig(api)}"]
        command.append(f"--cache-dir={self._directory / 'kubectl-cache'}")
        done = subprocess.run([*command, *arguments], input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise ControlPlaneError(f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done

    def kubeconfig(self, api: Api | None = None) -> Path:
        """Return the file of the admin's kubeconfig, or of that of the user of `api`."""
        api = api or self.admin
        return write_private(api.identity.key.with_suffix(".kubeconfig"), api.kubeconfig().encode())

    def start_api_server(self) -> None:
        """Start the API server, on the port that it had before, and wait until it is ready."""
        self.api_server.start()
        self._wait(self._is_ready, self.api_server)

    def stop_api_server(self, *, kill: bool = False) -> None:
        """End the API server alone; etcd keeps every object and the controllers go on asking for it."""
        self.api_server.stop(kill=kill)
        for api in self._apis.values():
            api.close()

    def restart_api_server(self, *, kill: bool = False) -> None:
        """Stop the API server and start it again: every watch breaks, no object is lost."""
        self.stop_api_server(kill=kill)
        self.start_api_server()

    def _process(self, program: str, *arguments: str) -> Process:
        process = Process([self._programs / program, *arguments], (self._logs or self._directory) / f"{program}.log")
        self.processes.append(process)
        return process

    def _client_process(self, program: str, *arguments: str) -> Process:
        """Start a program that works through the API server, under the user name RBAC knows it by."""
        process = self._process(
            program,
            f"--kubeconfig={self.kubeconfig(self.api(f'system:{program}'))}",
            "--leader-elect=false",  # there is no other, and a lease would delay the start
            "--secure-port=0",
            "--kube-api-qps=1000",  # the default of 20 takes seconds for the tokens of so many controllers
            "--kube-api-burst=1000",
            *arguments,
        )
        process.start()
        return process

    def _start_etcd(self) -> Process:
        nobody = "http://127.0.0.1:1"  # where etcd says it is; the flags want host and port, and no one asks
        etcd = self._process(
            "etcd",
            f"--data-dir={self._directory / 'data'}",
            f"--listen-client-urls=unix://{self._directory / 'etcd'}",
            f"--advertise-client-urls={nobody}",
            f"--listen-peer-urls=unix://{self._directory / 'etcd-peer'}",
            f"--initial-advertise-peer-urls={nobody}",
            f"--initial-cluster=default={nobody}",
            "--unsafe-no-fsync",  # the data need not survive this machine
            "--log-level=warn",
        )
        etcd.start()
        self._wait((self._directory / "etcd").exists, etcd)
        return etcd

    def _api_server_arguments(self) -> list[str]:
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        serving = self._authority.server("127.0.0.1")
        accounts = new_key(self._directory / "service-accounts.key")[0]
        authentication = self._directory / "authentication.json"
        anonymous = {"enabled": True, "conditions": [{"path": path} for path in ("/livez", "/readyz")]}
        authentication.write_text(
            json.dumps(
                {
                    "apiVersion": "apiserver.config.k8s.io/v1",
                    "kind": "AuthenticationConfiguration",
                    "anonymous": anonymous,
                }
            )
        )
        return [
            f"--etcd-servers=unix://{self._directory / 'etcd'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            # Said outright, since it is otherwise taken from the default route, which a machine may lack. The
            # endpoint of the kubernetes service must not be a loopback address, and nothing here needs it.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self._authority.bundle}",
            f"--authentication-config={authentication}",
            "--authorization-mode=RBAC",
            f"--disable-admission-plugins={NO_ADMISSION}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--service-cluster-ip-range=10.96.0.0/16",
            # Without it a stop waits for every watch to end by itself, which those of the controllers never do.
            "--shutdown-watch-termination-grace-period=1s",
            *self._api_server_flags,
        ]

    def _is_ready(self) -> bool:
        return self.admin.get("/readyz")[0] == HTTPStatus.OK

    def _has_default_account(self, namespace: str) -> bool:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        return self.admin.get(path)[0] == HTTPStatus.OK

    def _wait(self, probe: Callable[[], bool], process: Process) -> None:
        """Wait for `probe`, which fails while nobody listens, as long as `process` lives."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            process.require_running()
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                if probe():
                    return
            if time.monotonic() > deadline:
                raise ProcessError(f"{process.name} not ready within {START_TIMEOUT_S} s\n{process.log_tail()}")
            time.sleep(0.02)


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def run(out: Path | None, *, scheduler: bool, api_server_flags: Sequence[str]) -> int:
    """Run a control plane until a signal ends it, and return the exit code.

    A kubeconfig of somebody else's is not overwritten: `out` must be new, or one that this wrote before.
    """
    if out is not None and out.exists() and not out.read_text().startswith(KUBECONFIG_MARK):
        sys.stderr.write(f"{out} is not ours to overwrite\n")
        return 2
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    started = time.monotonic()
    try:
        with ControlPlane(scheduler=scheduler, api_server_flags=api_server_flags) as plane:
            target = out or plane.kubeconfig()
            write_private(target, (KUBECONFIG_MARK + plane.admin.kubeconfig()).encode())
            try:
                took_s = time.monotonic() - started
                sys.stdout.write(f"ready after {took_s:.1f} s at {plane.url}; Ctrl-C ends it\n")
                sys.stdout.write(f"export KUBECONFIG={target.resolve()}\n")
                sys.stdout.flush()
                while plane.running:
                    time.sleep(0.2)
                for process in plane.processes:
                    process.require_running()
            finally:
                target.unlink(missing_ok=True)
    except (ControlPlaneError, ProcessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def main() -> int:
    """Parse the command line of `scripts/control-plane run`."""
    parser = argparse.ArgumentParser(prog="scripts/control-plane", description="A real control plane.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="run in the foreground until Ctrl-C")
    command.add_argument("--kubeconfig-out", type=Path, metavar="FILE", help="where the admin's kubeconfig goes")
    command.add_argument("--scheduler", action="store_true", help="run kube-scheduler too")
    command.add_argument(
        "--api-server-flag", action="append", default=[], metavar="FLAG", help="as --api-server-flag=--v=4"
    )
    chosen = parser.parse_args()
    return run(chosen.kubeconfig_out, scheduler=chosen.scheduler, api_server_flags=chosen.api_server_flag)


if __name__ == "__main__":
    sys.exit(main())

"""What `make bench` runs: the server CPU time and the latency of a review, beside an empty Flask route.

The servers run at the same time, each a process of its own over TLS on loopback, and take turns in short rounds, so
that what else the machine does falls on all. CPU time is the kernel's account of the server's processes, threads that
have ended included; compare the ratio, which travels between machines, rather than the figures, which do not.

    a   `@app.post("/validate") def validate(): return ""` under gunicorn's gthread worker with 4 threads
    b   `hami-quota serve` over a generated state directory that holds few pods, or any other command (--ours-cmd)
    c   the same over one that holds many pods
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import selectors
import shlex
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
NAMESPACE = "bench"

IN_FLIGHT = (1, 8)

# Reviews go round this many pods, so that what is in use stays the same however long it runs.
PODS_IN_TURN = 64

START_TIMEOUT_S = 60
OURS = (
    f"{BIN}/hami-quota serve --state {{state}} --device-config {ROOT}/examples/device-config.yaml "
    "--certs {certs} --bind 127.0.0.1:{port}"
)


# The reviews.


@dataclass(frozen=True)
class Shape:
    """What makes a review large: containers, and in each of them environment variables.

    One container in two asks for GPUs, as beside a server there are things that log and proxy.
    """

    containers: int
    variables: int
    has_managed_fields: bool = True


# About 2.6, 7 and 40 KB.
SHAPES = (Shape(1, 1, has_managed_fields=False), Shape(2, 15), Shape(6, 49))


def reviews(shape: Shape) -> list[bytes]:
    """Return reviews of pods as a ReplicaSet makes them, each of another pod."""
    return [_review(shape, number) for number in range(PODS_IN_TURN)]


def _review(shape: Shape, number: int) -> bytes:
    group = {"group": "", "version": "v1"}
    content = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": str(uuid.UUID(int=number + 1)),
            "kind": group | {"kind": "Pod"},
            "resource": group | {"resource": "pods"},
            "requestKind": group | {"kind": "Pod"},
            "requestResource": group | {"resource": "pods"},
            "namespace": NAMESPACE,
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "5c1e3f0a-7a0c-4a3e-9b57-3f2f9f2f8f10",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["JTI=3a0d2f2e-7a4c-4f0d-8e0e-1b7d8c1b2a3c"]},
            },
            "object": _pod(shape, number),
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _pod(shape: Shape, number: int) -> dict[str, Any]:
    names = [f"server-{index}" for index in range(shape.containers)]
    pod: dict[str, Any] = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"inference-6d4b75cb6d-{number:05d}",
            "generateName": "inference-6d4b75cb6d-",
            "namespace": NAMESPACE,
            "uid": str(uuid.UUID(int=(1 << 64) + number)),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "inference", "pod-template-hash": "6d4b75cb6d"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "inference-6d4b75cb6d",
                    "uid": "0c4f7a3e-5a52-4d62-8a0d-9c1d4d7f6b11",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "volumes": [
                {
                    "name": "kube-api-access-7xk2p",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        ],
                        "defaultMode": 420,
                    },
                }
            ],
            "containers": [
                _container(name, shape.variables, asks_for_gpus=index % 2 == 0) for index, name in enumerate(names)
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "hami-scheduler",
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }
    if shape.has_managed_fields:
        containers = {f'k:{{"name":"{name}"}}': _container_fields(shape.variables) for name in names}
        pod["metadata"]["managedFields"] = [
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:containers": containers, "f:restartPolicy": {}, "f:schedulerName": {}}},
            }
        ]
    return pod


def _container(name: str, variables: int, *, asks_for_gpus: bool) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2k", "nvidia.com/gpucores": "10"}
    amounts = gpus if asks_for_gpus else {"cpu": "500m", "memory": "256Mi"}
    return {
        "name": name,
        "image": f"registry.example.com/inference/{name}:1.4.2",
        "env": [{"name": f"SETTING_{index}", "value": f"/models/llama-7b/{index}"} for index in range(variables)],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [
            {
                "name": "kube-api-access-7xk2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _container_fields(variables: int) -> dict[str, Any]:
    env: dict[str, Any] = {".": {}}
    env |= {f'k:{{"name":"SETTING_{index}"}}': {".": {}, "f:name": {}, "f:value": {}} for index in range(variables)}
    names = ("image", "imagePullPolicy", "name", "resources", "terminationMessagePath", "terminationMessagePolicy")
    return {".": {}, "f:env": env} | {f"f:{name}": {} for name in names}


def request(body: bytes) -> bytes:
    """Return a review as the API server's client sends it."""
    head = (
        "POST /validate?timeout=10s HTTP/1.1",
        "Host: hami-quota.hami-quota-system.svc:443",
        "User-Agent: kube-apiserver-admission",
        f"Content-Length: {len(body)}",
        "Accept: application/json, */*",
        "Content-Type: application/json",
        "Accept-Encoding: gzip",
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def write_state(directory: Path, pods: int) -> None:
    """Write a namespace with a quota that nothing exceeds, and this many pods that are known in it."""
    directory.mkdir()
    quota = {"limits.nvidia.com/gpumem": "1000000000", "limits.nvidia.com/gpucores": "1000000000"}
    amounts = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "1"}
    items: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpu-cap", "namespace": NAMESPACE},
            "spec": {"hard": quota},
        },
    ]
    items += [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"known-{number}",
                "namespace": NAMESPACE,
                "uid": str(uuid.UUID(int=(1 << 96) + number)),
            },
            "spec": {
                "schedulerName": "hami-scheduler",
                "containers": [{"name": "server", "image": "none", "resources": {"limits": amounts}}],
            },
            "status": {"phase": "Pending"},
        }
        for number in range(pods)
    ]
    (directory / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


# The servers.


def serve_baseline(port: int, certs: Path) -> None:
    """Serve an empty Flask route under gthread with one TLS context for all connections, until a signal."""
    from flask import Flask  # noqa: PLC0415 - the baseline's process alone needs it
    from gunicorn.app.base import BaseApplication  # noqa: PLC0415

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certs / "tls.crt", certs / "tls.key")
    app = Flask("baseline")

    @app.post("/validate")
    def validate() -> str:
        return ""

    settings = {
        "bind": f"127.0.0.1:{port}",
        "worker_class": "gthread",
        "threads": 4,
        "keepalive": 120,
        "certfile": str(certs / "tls.crt"),
        "keyfile": str(certs / "tls.key"),
        "ssl_context": lambda _config, _default: context,
        "control_socket_disable": True,
        "loglevel": "warning",
    }

    class Baseline(BaseApplication):  # type: ignore[misc] # gunicorn publishes no types
        def load_config(self) -> None:
            for name, value in settings.items():
                self.cfg.set(name, value)

        def load(self) -> Flask:
            return app

    Baseline().run()


@dataclass
class Server:
    """A server that is measured."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def cpu_s(self) -> float:
        """Return the CPU time that its processes have used so far."""
        return sum(_cpu_s(pid) for pid in _family(self.process.pid))

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _cpu_s(pid: int) -> float:
    # The clock of another process, in nanoseconds where /proc/PID/stat has ticks of 10 ms: what clock_getcpuclockid(3)
    # computes, and Python does not offer.
    return time.clock_gettime((~pid << 3) | 2)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from _family(int(child))


@contextlib.contextmanager
def running(name: str, command: Sequence[str], port: int, directory: Path, cpu: int | None) -> Iterator[Server]:
    """Run a server on one CPU."""
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603 - the caller's own command
    if cpu is not None:
        os.sched_setaffinity(process.pid, {cpu})
    server = Server(name, port, process, log)
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# The load.


class Client:
    """One connection that asks, waits for the answer, and asks again."""

    def __init__(self, server: Server, trust: ssl.SSLContext) -> None:
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = trust.wrap_socket(raw, server_hostname="127.0.0.1")
        self.asked_at = 0.0
        self._received = b""

    def ask(self, data: bytes) -> None:
        """Send a request."""
        self._received = b""
        self.asked_at = time.perf_counter()
        self.socket.sendall(data)

    def wait(self) -> None:
        """Wait for the whole answer."""
        while not self.has_answer():
            pass

    def has_answer(self) -> bool:
        """Read what is there, and return whether it is the whole answer."""
        while True:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._received += piece
            if not self.socket.pending():
                break
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return False
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(body) < length:
            return False
        if not lines[0].startswith(b"http/1.1 200") or b'"allowed":false' in body:
            raise ConnectionError(f"unexpected answer: {self._received[:400]!r}")
        return True


@dataclass
class Turn:
    """What one turn of load cost."""

    cpu_us: float
    latencies_s: list[float]


def load(server: Server, trust: ssl.SSLContext, requests: Iterator[bytes], in_flight: int, seconds: float) -> Turn:
    """Keep `in_flight` requests on their way for some time, and return what it cost."""
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        clients: list[Client] = []
        for _ in range(in_flight):
            client = Client(server, trust)
            stack.enter_context(client.socket)
            # Before the next one: gthread gives a thread to each new connection until it has spoken.
            client.ask(next(requests))
            client.wait()
            selector.register(client.socket, selectors.EVENT_READ, client)
            clients.append(client)
        _drive(selector, clients, requests, seconds * 0.2)
        before = server.cpu_s()
        latencies = _drive(selector, clients, requests, seconds)
        return Turn((server.cpu_s() - before) / len(latencies) * 1e6, latencies)


def _drive(
    selector: selectors.BaseSelector, clients: Sequence[Client], requests: Iterator[bytes], seconds: float
) -> list[float]:
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    for client in clients:
        client.ask(next(requests))
    waiting = len(clients)
    while waiting:
        for key, _ in selector.select():
            client = key.data
            if not client.has_answer():
                continue
            now = time.perf_counter()
            latencies.append(now - client.asked_at)
            if now < end:
                client.ask(next(requests))
            else:
                waiting -= 1
    return latencies


def wait_until_ready(server: Server, trust: ssl.SSLContext, data: bytes) -> None:
    """Wait until a review is answered as it will be."""
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        problem: object = "it has ended"
        if server.process.poll() is None:
            try:
                client = Client(server, trust)
                with client.socket:
                    client.ask(data)
                    client.wait()
            except OSError as error:
                problem = error
            else:
                return
        if server.process.poll() is not None or time.monotonic() > end:
            sys.exit(f"{server.name} does not answer: {problem}\n{server.log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


# The report.


@dataclass
class Cell:
    """The turns of both servers under one kind of load; turn i of one stands beside turn i of the other."""

    shape: Shape
    requests: Sequence[bytes]
    in_flight: int
    turns: dict[str, list[Turn]]

    def row(self, names: Sequence[str]) -> str:
        """Return the line of the table."""
        cpu = [[turn.cpu_us for turn in self.turns[name]] for name in names]
        ratios = [ours / theirs for theirs, ours in zip(*cpu, strict=True)]
        cells = [f"{len(self.requests[0]) / 1000:.1f} KB", str(self.in_flight)]
        cells += [f"{statistics.median(one):.0f} ({min(one):.0f}-{max(one):.0f})" for one in cpu]
        cells += [f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f}-{max(ratios):.2f})"]
        for name in names:
            latencies = [latency * 1e6 for turn in self.turns[name] for latency in turn.latencies_s]
            median, last = statistics.median(latencies), statistics.quantiles(latencies, n=100)[98]
            cells += [f"{median:.0f} / {last:.0f}"]
        return f"| {' | '.join(cells)} |"


def report(cells: Sequence[Cell], names: Sequence[str]) -> str:
    """Return how the second server compares with the first, as a table."""
    titles = ["body", "in flight"]
    titles += [f"{name}, CPU us a review" for name in names]
    titles += ["ratio"]
    titles += [f"{name}, p50 / p99 us" for name in names]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join([*lines, *(cell.row(names) for cell in cells)])


def measure(servers: Sequence[Server], trust: ssl.SSLContext, rounds: int, seconds: float) -> list[Cell]:
    """Let the servers take turns under every kind of load."""
    cells = [
        Cell(shape, [request(body) for body in reviews(shape)], in_flight, {server.name: [] for server in servers})
        for shape, in_flight in itertools.product(SHAPES, IN_FLIGHT)
    ]
    for number in range(rounds):
        for cell in cells:
            # Who goes first changes, so that going first is no advantage.
            for server in servers if number % 2 == 0 else reversed(servers):
                turn = load(server, trust, itertools.cycle(cell.requests), cell.in_flight, seconds)
                cell.turns[server.name].append(turn)
        sys.stderr.write(f"round {number + 1} of {rounds}\n")
    return cells


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="CPU time and latency of a review, beside an empty Flask route.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of load in each turn")
    parser.add_argument("--pods", type=int, default=100, help="known to ours")
    parser.add_argument("--many-pods", type=int, default=20_000, help="known to a second one of ours")
    parser.add_argument("--ours-cmd", default=OURS, help="with {port}, {certs} and {state} (default: %(default)s)")
    parser.add_argument("--baseline", nargs=2, metavar=("PORT", "CERTS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.baseline:
        serve_baseline(int(arguments.baseline[0]), Path(arguments.baseline[1]))
        return

    cpus = sorted(os.sched_getaffinity(0))
    server_cpu = cpus[-1] if len(cpus) > 1 else None
    if server_cpu is not None:
        os.sched_setaffinity(0, {cpus[0]})
    with tempfile.TemporaryDirectory(prefix="hami-quota-bench-") as folder, contextlib.ExitStack() as stack:
        directory = Path(folder)
        certs = directory / "certs"
        subprocess.run(  # noqa: S603 - our own command
            [BIN / "hami-quota", "certs", "--dir", certs, "--loopback"], check=True, stdout=subprocess.DEVNULL
        )
        ports = [free_port() for _ in range(3)]
        names = ["empty Flask route"] + [f"ours, {pods} pods known" for pods in (arguments.pods, arguments.many_pods)]
        commands = [[sys.executable, __file__, "--baseline", str(ports[0]), str(certs)]]
        for pods, port in zip((arguments.pods, arguments.many_pods), ports[1:], strict=True):
            state = directory / f"state-{pods}"
            write_state(state, pods)
            commands.append(shlex.split(arguments.ours_cmd.format(port=port, certs=certs, state=state)))
        servers = [
            stack.enter_context(running(name, command, port, directory, server_cpu))
            for name, command, port in zip(names, commands, ports, strict=True)
        ]
        trust = ssl.create_default_context(cafile=str(certs / "ca.crt"))
        for server in servers:
            wait_until_ready(server, trust, request(reviews(SHAPES[0])[0]))
        cells = measure(servers, trust, arguments.rounds, arguments.seconds)
    heading = f"Medians of {arguments.rounds} paired rounds (least-most); keep-alive TLS on loopback."
    middle = [cell for cell in cells if cell.shape is SHAPES[1]]
    sys.stdout.write("\n\n".join([heading, report(cells, names[:2]), report(middle, names[1:])]) + "\n")


if __name__ == "__main__":
    main()

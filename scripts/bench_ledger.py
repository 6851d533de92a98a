"""What `make bench` runs second: what a start and a watch event cost in a big cluster, beside `json.loads`.

    start    `hami-quota serve --kubeconfig` over an API server with 20,000 pods of 6 KB, of which one in twenty asks
             for GPUs and half of those are allocated, until it is ready; beside one over an API server without objects
    events   a pod event from its bytes to the ledger, in this process

`json.loads` of the same bytes is the least that Python could do about them, and it stands beside every figure: compare
ratios, which travel between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import select
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench import BIN, ROOT, START_TIMEOUT_S, Server, Shape, free_port, reviews, running

from webhook.api.resource_quota import decode_resource_quota
from webhook.ledger import QuotaLedger
from webhook.policy import Policy
from webhook.server.sources import Sinks
from webhook.settings import read_rules

DEVICE_CONFIG = ROOT / "examples/device-config.yaml"
NODES = 50
CARDS_PER_NODE = 8
NAMESPACES = 20
FEW_PODS = 100

# One pod in so many asks for GPUs, and every second one of those is allocated.
GPU_EVERY = 20

# How much of a container makes a stored pod 6 KB, its status and managed fields included.
SHAPE = Shape(1, 16)

# The API server sends one a minute; often enough here that a start meets some.
BOOKMARK_EVERY_S = 1.0

# How long the memory of a server that has become ready may still change.
SETTLE_S = 0.5

POLL_S = 0.02

# json.loads takes one event in so many: it costs the same for each, and it is slow.
JSON_EVERY = 5

# The objects.

Json = dict[str, Any]


class Template:
    """The bytes of objects that differ in a number alone: where it stands, and in what it decides."""

    def __init__(self, document: Json) -> None:
        self._text = json.dumps(document, separators=(",", ":"))

    def fill(self, number: int, namespace: str) -> bytes:
        """Return one object."""
        text = self._text.replace("@namespace@", namespace).replace("@number@", f"{number:05d}")
        return text.replace("@uid@", str(uuid.UUID(int=(1 << 96) + number))).encode()


def pod_template(*, asks_for_gpus: bool, memory_mib: int = 0) -> Template:
    """Return pods as a running cluster stores them.

    Args:
        asks_for_gpus: Whether they ask for a share of a GPU, or for CPU alone.
        memory_mib: What the allocation annotation says of their share; 0 for pods that are not allocated.
    """
    pod: Json = json.loads(reviews(SHAPE)[0])["request"]["object"]
    del pod["kind"], pod["apiVersion"]  # as in a list
    is_running = memory_mib > 0 or not asks_for_gpus
    pod["metadata"] |= {
        "name": "inference-6d4b75cb6d-@number@",
        "namespace": "@namespace@",
        "uid": "@uid@",
        "resourceVersion": "1@number@",
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
    }
    container = pod["spec"]["containers"][0]
    if not asks_for_gpus:
        amounts = {"cpu": "500m", "memory": "256Mi"}
        container["resources"] = {"limits": amounts, "requests": amounts}
        pod["spec"]["schedulerName"] = "default-scheduler"
    elif memory_mib:
        pod["metadata"]["annotations"] |= {
            "hami.io/vgpu-node": "node-07",
            "hami.io/vgpu-devices-allocated": f"GPU-07-3,NVIDIA,{memory_mib},10:;",
            "hami.io/bind-phase": "success",
            "hami.io/bind-time": "1767225600",
        }
    pod["status"] = _status(container["name"], container["image"], is_running=is_running)
    if is_running:
        pod["spec"]["nodeName"] = "node-07"
        conditions = {
            f'k:{{"type":"{condition["type"]}"}}': {f"f:{field}": {} for field in condition}
            for condition in pod["status"]["conditions"]
        }
        pod["metadata"]["managedFields"].append(
            {
                "manager": "kubelet",
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:status": {"f:conditions": conditions, "f:containerStatuses": {}, "f:phase": {}}},
                "subresource": "status",
            }
        )
    return Template(pod)


def _status(name: str, image: str, *, is_running: bool) -> Json:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    if not is_running:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return {"phase": "Pending", "conditions": [unscheduled], "qosClass": "BestEffort"}
    digest = "sha256:" + "8d" * 32
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in kinds
        ],
        "hostIP": "10.0.0.7",
        "hostIPs": [{"ip": "10.0.0.7"}],
        "podIP": "10.1.7.31",
        "podIPs": [{"ip": "10.1.7.31"}],
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": image,
                "imageID": f"{image}@{digest}",
                "containerID": f"containerd://{'4f' * 32}",
                "started": True,
            }
        ],
        "qosClass": "Burstable",
    }


PLAIN = pod_template(asks_for_gpus=False)
PENDING = pod_template(asks_for_gpus=True)
ALLOCATED = pod_template(asks_for_gpus=True, memory_mib=2000)
REALLOCATED = pod_template(asks_for_gpus=True, memory_mib=3000)


def namespace_of(number: int) -> str:
    """Return in which namespace an object stands."""
    return f"team-{number % NAMESPACES:02d}"


def quota(namespace: str) -> bytes:
    """Return a quota that nothing exceeds."""
    hard = {"limits.nvidia.com/gpumem": "1000000000", "limits.nvidia.com/gpucores": "1000000000"}
    metadata = {"name": "gpu-cap", "namespace": namespace, "uid": f"uid-{namespace}", "resourceVersion": "1"}
    return json.dumps({"metadata": metadata, "spec": {"hard": hard}, "status": {"hard": hard, "used": {}}}).encode()


def _node(number: int) -> bytes:
    name = f"node-{number:02d}"
    cards = [
        {
            "id": f"GPU-{number:02d}-{index}",
            "index": index,
            "count": 10,
            "devmem": 81920,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-80GB",
            "numa": index // 4,
            "mode": "hami-core",
            "health": True,
        }
        for index in range(CARDS_PER_NODE)
    ]
    annotations = {"hami.io/node-nvidia-register": json.dumps(cards)}
    return json.dumps({"metadata": {"name": name, "resourceVersion": "1", "annotations": annotations}}).encode()


def _pod(number: int) -> bytes:
    gpus = ALLOCATED if number // GPU_EVERY % 2 else PENDING
    template = PLAIN if number % GPU_EVERY else gpus
    # By the bunch, so that every namespace gets pods of each kind.
    return template.fill(number, namespace_of(number // (2 * GPU_EVERY)))


def cluster(pods: int) -> dict[str, list[bytes]]:
    """Return every collection of a cluster by its path; without pods there is nothing in it at all."""
    return {
        "/api/v1/pods": [_pod(number) for number in range(pods)],
        "/api/v1/nodes": [_node(number) for number in range(NODES if pods else 0)],
        "/api/v1/namespaces": [
            json.dumps({"metadata": {"name": namespace_of(number), "resourceVersion": "1"}}).encode()
            for number in range(NAMESPACES if pods else 0)
        ],
        "/api/v1/resourcequotas": [quota(namespace_of(number)) for number in range(NAMESPACES if pods else 0)],
    }


# The API server.


def page(items: Sequence[bytes], query: dict[str, str]) -> bytes:
    """Return the answer to a list."""
    start = int(query.get("continue", "0"))
    end = start + int(query.get("limit", str(len(items) or 1)))
    token = b',"continue":"%d"' % end if end < len(items) else b""
    head = b'{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9000000"%s},"items":[' % token
    return head + b",".join(items[start:end]) + b"]}"


def pages(items: Sequence[bytes], limit: int) -> Iterator[bytes]:
    """Yield the answers in which a client gets all items."""
    for start in range(0, len(items), limit):
        yield page(items, {"limit": str(limit), "continue": str(start)})


class Handler(BaseHTTPRequestHandler):
    """Answers lists in pages, and keeps watches open that bring bookmarks alone."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    collections: dict[str, list[bytes]]

    def do_GET(self) -> None:
        """Answer."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        items = self.collections.get(url.path)
        if items is None:
            self._answer(404, b'{"kind":"Status","code":404}')
        elif "watch" in query:
            self._watch()
        else:
            self._answer(200, page(items, query))

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""

    def _answer(self, code: int, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _watch(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            for version in itertools.count(9_000_001):
                line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % version
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                # A client that watches has nothing more to say: what can be read is its hanging up.
                if select.select([self.connection], [], [], BOOKMARK_EVERY_S)[0]:
                    return


class ApiServer(ThreadingHTTPServer):
    """A server whose open watches end with it."""

    daemon_threads = True
    block_on_close = False


@contextmanager
def api_server(collections: dict[str, list[bytes]], folder: Path) -> Iterator[Path]:
    """Serve collections from a process of their own; yield a kubeconfig for it."""
    server = ApiServer(("127.0.0.1", 0), type("Handler", (Handler,), {"collections": collections}))
    # A fork, so that the bytes are there without being made or sent again.
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    port = server.server_address[1]
    server.server_close()
    named = {"name": "bench"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [named | {"cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [named | {"user": {}}],
        "contexts": [named | {"context": {"cluster": "bench", "user": "bench"}}],
    }
    path = folder / f"kubeconfig-{port}"
    path.write_text(json.dumps(config))
    try:
        yield path
    finally:
        process.terminate()
        process.join()


# A start.


@dataclass(frozen=True)
class Start:
    """What a server took to become ready, and what it holds then."""

    ready_s: float
    cpu_s: float
    resident_mb: float
    peak_mb: float


def start(kubeconfig: Path, certs: Path, folder: Path, cpu: int | None) -> Start:
    """Start a server, wait until it is ready, look at it, and end it."""
    port = free_port()
    command = [str(BIN / "hami-quota"), "serve", "--kubeconfig", str(kubeconfig), "--certs", str(certs)]
    command += ["--device-config", str(DEVICE_CONFIG), "--bind", f"127.0.0.1:{port}", "--drain", "0"]
    trust = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    begun = time.perf_counter()
    with running(f"serve-{port}", command, port, folder, cpu) as server:
        _wait_until_ready(server, trust)
        ready_s, cpu_s = time.perf_counter() - begun, server.cpu_s()
        time.sleep(SETTLE_S)
        memory = _memory_mb(_worker(server.process.pid))
    return Start(ready_s, cpu_s, memory["VmRSS"], memory["VmHWM"])


def _wait_until_ready(server: Server, trust: ssl.SSLContext) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=trust)
    end = time.monotonic() + START_TIMEOUT_S
    with contextlib.closing(connection):
        while True:
            problem: object = "it has ended"
            try:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                problem = answer.read()
            except (OSError, http.client.HTTPException) as error:
                problem = error
                connection.close()
            else:
                if answer.status == http.HTTPStatus.OK:
                    return
            if server.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"not ready: {problem!r}\n{server.log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_S)


def _worker(pid: int) -> int:
    """Return the process that serves: the child of the one that was started."""
    children = [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return int(children[0]) if children else pid


def _memory_mb(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    amounts = (line.partition(":") for line in lines)
    return {name: int(text.split()[0]) / 1024 for name, _, text in amounts if name in {"VmRSS", "VmHWM"}}


# Events.


class Ledger:
    """A ledger with one namespace and its quota, and the sink that fills it."""

    def __init__(self) -> None:
        rules = read_rules(DEVICE_CONFIG, Policy())
        ledger = QuotaLedger(clock=time.monotonic, lookup_after_s=10.0, mode=rules.policy.mode)
        sinks = Sinks.over(ledger, rules)
        sinks.quotas.upserted(decode_resource_quota(quota(namespace_of(0))))
        self._pods = sinks.pods

    def take(self, raw: bytes) -> None:
        """Take a pod event's object, as a reflector hands it over."""
        self._pods.upserted(self._pods.decode(raw))


@dataclass(frozen=True)
class Cost:
    """CPU microseconds of one event, and of `json.loads` of the same bytes."""

    ours_us: float
    json_us: float


def cost(take: Callable[[bytes], object], texts: Sequence[bytes]) -> Cost:
    """Return what it costs to take these texts, one after the other."""
    some = texts[::JSON_EVERY]
    return Cost(cpu_s(take, texts) / len(texts) * 1e6, cpu_s(json.loads, some) / len(some) * 1e6)


def cpu_s(act: Callable[[bytes], object], texts: Iterable[bytes]) -> float:
    """Return the CPU time of this thread that an act takes over all texts; making the texts is left out."""
    total = 0.0
    remaining = iter(texts)
    while some := list(itertools.islice(remaining, 20)):
        before = time.thread_time()
        for text in some:
            act(text)
        total += time.thread_time() - before
    return total


def events(pods: int) -> dict[str, Cost]:
    """Return the cost of each kind of event, one round of it, of as many events as pods."""

    def texts(template: Template) -> list[bytes]:
        return [template.fill(number, namespace_of(0)) for number in range(pods)]

    costs = {
        "a pod without GPUs": cost(Ledger().take, texts(PLAIN)),
        "a new pod that asks for GPUs": cost(Ledger().take, texts(PENDING)),
    }
    allocated, reallocated = texts(ALLOCATED), texts(REALLOCATED)
    big, small = Ledger(), Ledger()
    costs["a new pod, allocated"] = cost(big.take, allocated)
    for text in allocated[:FEW_PODS]:
        small.take(text)
    turns = itertools.cycle(reallocated[:FEW_PODS] + allocated[:FEW_PODS])
    costs[changed(FEW_PODS)] = cost(small.take, list(itertools.islice(turns, pods)))
    costs[changed(pods)] = cost(big.take, reallocated)
    return costs


def changed(pods: int) -> str:
    """Return the name of the event that changes what a known pod holds."""
    return f"an allocated pod changes, {pods:,} known"


# The report.


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, ["---"] * len(titles), *rows])


def middle(values: Iterable[float], digits: int = 1) -> str:
    """Return the median with the least and the most."""
    values = list(values)
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def start_table(full: Sequence[Start], empty: Sequence[Start], loads_s: Sequence[float], pods: int) -> str:
    """Return what the objects cost at a start."""

    def row(title: str, value: Callable[[Start], float], digits: int) -> list[str]:
        pairs = [(value(ours), value(theirs)) for ours, theirs in zip(full, empty, strict=True)]
        figures = ([a for a, _ in pairs], [b for _, b in pairs], [a - b for a, b in pairs])
        return [title, *(middle(column, digits) for column in figures)]

    extra_s = [ours.cpu_s - theirs.cpu_s for ours, theirs in zip(full, empty, strict=True)]
    ratio = [extra / loads for extra, loads in zip(extra_s, loads_s, strict=True)]
    rows = [
        row("until `/readyz` says 200, s", lambda it: it.ready_s, 2),
        row("CPU until then, s", lambda it: it.cpu_s, 2),
        row("resident memory of the worker, MB", lambda it: it.resident_mb, 0),
        row("its peak, MB", lambda it: it.peak_mb, 0),
        ["`json.loads` of the same lists, CPU s", "", "", middle(loads_s, 2)],
        ["CPU of the difference, beside it", "", "", f"**{middle(ratio, 2)}**"],
    ]
    return table(["a start", f"{pods:,} pods", "no objects", "difference"], rows)


def event_table(rounds: Sequence[dict[str, Cost]], many: int) -> str:
    """Return what events cost."""
    rows = []
    for name in rounds[0]:
        costs = [one[name] for one in rounds]
        ours = [it.ours_us for it in costs]
        rows.append(
            [
                name,
                middle(ours),
                f"{1e6 / statistics.median(ours):,.0f}",
                middle(it.json_us for it in costs),
                f"**{middle((it.ours_us / it.json_us for it in costs), 2)}**",
            ]
        )
    growth = [one[changed(many)].ours_us / one[changed(FEW_PODS)].ours_us for one in rounds]
    titles = ["event", "CPU us", "a second, on one CPU", "`json.loads`, CPU us", "ratio"]
    last = f"{many:,} known pods beside {FEW_PODS}: **{middle(growth, 2)}** times the CPU of an event."
    return f"{table(titles, rows)}\n\n{last}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a start and a watch event cost, beside json.loads.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pods", type=int, default=20_000, help="and events of each kind, in each round")
    arguments = parser.parse_args()

    cpus = sorted(os.sched_getaffinity(0))
    server_cpu = cpus[-1] if len(cpus) > 1 else None
    if server_cpu is not None:
        os.sched_setaffinity(0, {cpus[0]})
    full: list[Start] = []
    empty: list[Start] = []
    loads_s: list[float] = []
    costs: list[dict[str, Cost]] = []
    objects = cluster(arguments.pods)
    size = sum(map(len, objects["/api/v1/pods"])) / arguments.pods
    with tempfile.TemporaryDirectory(prefix="hami-quota-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        certs = folder / "certs"
        subprocess.run(  # noqa: S603 - our own command
            [BIN / "hami-quota", "certs", "--dir", certs, "--loopback"], check=True, stdout=subprocess.DEVNULL
        )
        big = stack.enter_context(api_server(objects, folder))
        none = stack.enter_context(api_server(cluster(0), folder))
        for number in range(arguments.rounds):
            full.append(start(big, certs, folder, server_cpu))
            empty.append(start(none, certs, folder, server_cpu))
            loads_s.append(sum(cpu_s(json.loads, pages(items, 500)) for items in objects.values()))
            costs.append(events(arguments.pods))
            sys.stderr.write(f"round {number + 1} of {arguments.rounds}\n")
    heading = f"Medians of {arguments.rounds} rounds (least-most); pods of {size / 1000:.1f} KB."
    tables = [start_table(full, empty, loads_s, arguments.pods), event_table(costs, arguments.pods)]
    sys.stdout.write("\n\n".join([heading, *tables]) + "\n")


if __name__ == "__main__":
    main()

"""The transport as a process of its own, over TLS: what hostile, slow and departing peers do to everybody else."""

from __future__ import annotations

import datetime as dt
import http.client
import itertools
import json
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from kube_api import eventually
from processes import Process

from certs import Names, ensure_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVER = Path(__file__).parent.parent / "transport_server.py"
NAMES = Names.of_service("hami-quota", "hami-quota-system", loopback=True)
MAX_BODY = 4 * 1024 * 1024

# The webhook timeout that an answer must keep.
TIMEOUT_S = 10


class _Server:
    """One server process and ways to reach it."""

    def __init__(self, directory: Path, drain_s: float = 0.3, workers: int = 1) -> None:
        self.certificates = directory / "certs"
        ensure_pair(self.certificates, NAMES, dt.datetime.now(dt.UTC))
        self.log = directory / "server.log"
        command = [sys.executable, SERVER, self.certificates, "0", str(drain_s), str(workers)]
        self.process = Process(command, self.log)
        self.port = 0

    def start(self) -> None:
        self.process.start()
        found = eventually(self._find_address, "address in the log")
        self.port = int(found[1])

    def _find_address(self) -> re.Match[str] | None:
        self.process.require_running()
        return re.search(r"serving on https://127\.0\.0\.1:(\d+)", self.log.read_text())

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def secure(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        return (context or self.trust()).wrap_socket(self.connect(), server_hostname="127.0.0.1")

    def client(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=self.trust())

    def get(self, path: str) -> tuple[int, str]:
        client = self.client()
        client.request("GET", path)
        response = client.getresponse()
        text = response.read().decode()
        client.close()
        return response.status, text

    def worker(self) -> int:
        return int(self.get("/pid")[1])

    def ended(self) -> bool:
        return not self.process.running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    """One server for every test that leaves it as it was; that it is, their order shows."""
    server = _Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    assert server.log.read_text().count("service started") == 1
    server.process.stop()
    assert_nothing_left(server)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[_Server]:
    """A server for one test."""
    server = _Server(tmp_path)
    server.start()
    yield server
    server.process.stop()
    assert_nothing_left(server)


def assert_nothing_left(server: _Server) -> None:
    """Nobody may hold the port, or have the server's program on its command line, any more."""
    mark = str(server.certificates).encode()
    eventually(lambda: not processes_with(mark), "end of every process")
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def processes_with(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in arguments:
                found.append(int(entry.name))
    return found


def review(uid: str, **more: Any) -> bytes:
    return json.dumps({"request": {"uid": uid}, **more}).encode()


def request(body: bytes, *, content_type: str = "application/json") -> bytes:
    head = f"POST /validate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read exactly one answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(connection, 1)
    status_line, *lines = data.decode().rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = b""
    while len(body) < int(headers["content-length"]):
        body += receive(connection, int(headers["content-length"]) - len(body))
    return int(status_line.split()[1]), headers, body


def receive(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size)
    assert data, "the server closed the connection"
    return data


def allowed_uid(answer: tuple[int, dict[str, str], bytes]) -> str:
    status, _, body = answer
    assert status == 200, body
    response = json.loads(body)["response"]
    assert response["allowed"] is True
    return str(response["uid"])


def post(client: http.client.HTTPConnection, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
    client.request("POST", "/validate?timeout=10s", body=body, headers={"Content-Type": content_type})
    response = client.getresponse()
    return response.status, json.loads(response.read())


def test_reviews_are_answered_whatever_silent_half_open_and_slow_peers_do(server: _Server) -> None:
    context = server.trust()
    silent = [server.connect() for _ in range(200)]
    spare = [server.secure(context) for _ in range(200)]
    half_sent = [server.secure(context) for _ in range(50)]
    for number, connection in enumerate(half_sent):
        connection.sendall(request(review(f"half-{number}"))[:-5])
    hello_only = [server.connect() for _ in range(50)]
    for connection in hello_only:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00")

    for number in range(50):
        with server.secure(context) as connection:
            connection.sendall(request(review(f"new-{number}")))
            assert allowed_uid(read_answer(connection)) == f"new-{number}"
    assert server.get("/readyz") == (200, "ok")

    # And none of them has paid for it: what was begun can be finished, a spare session can be used.
    for number, connection in enumerate(half_sent):
        connection.sendall(request(review(f"half-{number}"))[-5:])
        assert allowed_uid(read_answer(connection)) == f"half-{number}"
    for number, connection in enumerate(spare):
        connection.sendall(request(review(f"spare-{number}")))
        assert allowed_uid(read_answer(connection)) == f"spare-{number}"
    for connection in (*silent, *spare, *half_sent, *hello_only):
        connection.close()


def test_many_requests_of_every_kind_use_one_connection(server: _Server) -> None:
    client = server.client()
    client.connect()
    local = client.sock.getsockname()
    for number in range(20):
        status, body = post(client, review(str(number)))
        assert (status, body["response"]["uid"]) == (200, str(number))
        client.request("GET", "/readyz")
        response = client.getresponse()
        assert (response.status, response.read()) == (200, b"ok")
        assert response.getheader("Server") is None
    assert client.sock.getsockname() == local
    client.close()


@pytest.mark.parametrize(
    ("body", "content_type", "want"),
    [
        pytest.param(b"not JSON", "application/json", 400, id="a body that is not JSON"),
        pytest.param(b"", "application/json", 400, id="no body"),
        pytest.param(review("1"), "text/plain", 400, id="JSON by another name"),
        pytest.param(review("1"), "application/json; charset=utf-8", 200, id="JSON with a parameter"),
        pytest.param(review("1", x="x" * (MAX_BODY - 100)), "application/json", 200, id="a body as large as allowed"),
        pytest.param(b" " * (MAX_BODY + 1), "application/json", 413, id="a body one byte too large"),
        pytest.param(
            review("1", **{"raise": "broken"}), "application/json", 500, id="a review that breaks the reviewer"
        ),
    ],
)
def test_every_kind_of_body_has_an_answer_and_the_server_stays_up(
    server: _Server, body: bytes, content_type: str, want: int
) -> None:
    client = server.client()
    status, answer = post(client, body, content_type)
    assert status == want
    assert "response" in answer if want == 200 else answer["reason"]
    client.close()
    client = server.client()
    assert post(client, review("after"))[0] == 200
    client.close()


def test_a_body_too_large_is_refused_before_it_is_sent(server: _Server) -> None:
    with server.secure() as connection:
        connection.sendall(request(b" " * (MAX_BODY + 1))[:200])
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"]) == (413, "close")
        assert str(MAX_BODY) in json.loads(body)["reason"]
        assert connection.recv(1) == b""


def test_a_body_without_a_length_is_refused_once_it_is_too_large(server: _Server) -> None:
    with server.secure() as connection:
        connection.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(MAX_BODY // 0x10000 + 2):
            connection.sendall(chunk)
        assert read_answer(connection)[0] == 413


def test_pipelined_requests_are_answered_in_order(server: _Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    page = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
    with server.secure() as connection:
        connection.sendall(
            request(review("1")) + page + request(review("2", wait=str(gate))) + request(review("3")) + page
        )
        assert allowed_uid(read_answer(connection)) == "1"
        assert read_answer(connection)[2] == b"ok"
        gate.write_bytes(b"")
        assert allowed_uid(read_answer(connection)) == "2"
        assert allowed_uid(read_answer(connection)) == "3"
        assert read_answer(connection)[2] == b"ok"


def test_reviews_that_wait_hold_up_nobody_else(server: _Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    context = server.trust()
    waiting = [server.secure(context) for _ in range(40)]
    for number, connection in enumerate(waiting):
        connection.sendall(request(review(f"waiting-{number}", wait=str(gate))))
    with server.secure(context) as connection:
        connection.sendall(request(review("other")))
        assert allowed_uid(read_answer(connection)) == "other"
    assert server.get("/readyz") == (200, "ok")
    answers: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(hold_open, gate, until=lambda: len(answers) == len(waiting))
        answers.extend(allowed_uid(read_answer(connection)) for connection in waiting)
        opening.result(timeout=TIMEOUT_S)
    assert answers == [f"waiting-{number}" for number in range(40)]
    for connection in waiting:
        connection.close()


def hold_open(gate: Path, until: Callable[[], bool]) -> None:
    """Let everyone through who waits at a gate, until nobody will."""
    while not until():
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            time.sleep(0.01)  # nobody is there at the moment


class _Caller:
    """Sends reviews at 20 a second on kept connections, as the API server would, until it is told to stop."""

    def __init__(self, server: _Server) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._server = server
        self._is_stopped = threading.Event()
        self._clients = [server.client() for _ in range(4)]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.expect_answers(4)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def expect_answers(self, count: int) -> None:
        """Wait for this many more answers, or for a failure."""
        goal = self.answers + count
        eventually(lambda: self.answers >= goal or self.failures, "answers")

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _run(self) -> None:
        for client in itertools.cycle(self._clients):
            if self._is_stopped.wait(0.05):
                return
            try:
                status, body = post(client, review("steady"))
            except OSError as error:
                self.failures.append(repr(error))
            except http.client.HTTPException as error:
                self.failures.append(repr(error))
            else:
                self.answers += 1
                if status != 200:
                    self.failures.append(str(body))


def test_no_review_fails_when_the_server_is_told_to_stop_under_load(tmp_path: Path) -> None:
    server = _Server(tmp_path, drain_s=1.0)
    server.start()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    unused, waiting = server.secure(), server.secure()
    probe = server.client()
    waiting.sendall(request(review("in flight", wait=str(gate))))

    def is_unready() -> bool:
        probe.request("GET", "/readyz")
        response = probe.getresponse()
        response.read()
        return response.status == 503

    with _Caller(server) as caller:
        server.process.send(signal.SIGTERM)
        eventually(is_unready, "false readiness")
        # The endpoint is taken out only now, and the API server may hear of it later still.
        caller.expect_answers(5)
    assert caller.failures == []
    eventually(lambda: not is_listening(server), "end of accepting")
    gate.write_bytes(b"")
    answer = read_answer(waiting)
    assert allowed_uid(answer) == "in flight"
    assert answer[1]["connection"] == "close"
    # A connection on which nothing was asked keeps nobody waiting.
    assert unused.recv(1) == b""
    for connection in (waiting, unused):
        connection.close()
    probe.close()
    eventually(server.ended, "end of the server")
    assert "service stopped" in server.log.read_text()
    assert_nothing_left(server)


def is_listening(server: _Server) -> bool:
    try:
        server.connect().close()
    except OSError:
        return False
    return True


def test_a_renewed_certificate_is_served_without_a_failed_request(own_server: _Server) -> None:
    context = own_server.trust()

    def names() -> set[str]:
        with own_server.secure(context) as connection:
            connection.sendall(request(review("handshake")))
            assert allowed_uid(read_answer(connection)) == "handshake"
            return {name for _, name in connection.getpeercert()["subjectAltName"]}

    with _Caller(own_server) as caller:
        assert "renewed.test" not in names()
        ensure_pair(
            own_server.certificates,
            Names(dns_names=(*NAMES.dns_names, "renewed.test"), ip_addresses=NAMES.ip_addresses),
            dt.datetime.now(dt.UTC),
        )
        eventually(lambda: "renewed.test" in names(), "new certificate")
        caller.expect_answers(8)
    assert caller.failures == []
    assert own_server.log.read_text().count("service started") == 1


def test_a_killed_worker_is_replaced_by_one_that_has_started_afresh(own_server: _Server) -> None:
    first = own_server.worker()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: own_server.log.read_text().count("serving on") == 2, "second worker")
    second = own_server.worker()
    assert second != first
    assert own_server.log.read_text().count("service started") == 2


def test_no_signal_makes_a_second_worker(server: _Server) -> None:
    for count, signum in enumerate((signal.SIGTTIN, signal.SIGUSR2), start=1):
        server.process.send(signum)
        eventually(lambda count=count: server.log.read_text().count("ignored") == count, "refusal in the log")
    assert server.log.read_text().count("service started") == 1


def test_a_hang_up_that_reaches_the_worker_is_for_its_parent_to_judge(server: _Server) -> None:
    worker = server.worker()
    os.kill(worker, signal.SIGHUP)
    assert server.worker() == worker


def test_the_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    server = _Server(tmp_path)
    server.start()
    server.process.stop(kill=True)
    eventually(lambda: "stopped" in server.log.read_text(), "end of the worker")
    assert_nothing_left(server)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_or_a_closed_terminal_ends_everything(tmp_path: Path, signum: signal.Signals) -> None:
    server = _Server(tmp_path)
    server.start()
    server.process.send(signum)
    eventually(server.ended, "end of the server")
    assert_nothing_left(server)


def test_an_interrupt_does_not_wait_for_a_review_that_waits(tmp_path: Path) -> None:
    server = _Server(tmp_path)
    server.start()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with server.secure() as connection:
        connection.sendall(request(review("1", wait=str(gate))))
        server.process.send(signal.SIGINT)
        # Sooner than the parent would lose patience, which is after 19 s here.
        eventually(server.ended, "end of the server", timeout_s=10)
    assert_nothing_left(server)


@pytest.mark.parametrize(
    ("workers", "environment"),
    [
        pytest.param(2, {}, id="by option"),
        pytest.param(1, {"WEB_CONCURRENCY": "2"}, id="by gunicorn's variable"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "--preload -w 4"}, id="by gunicorn's arguments"),
    ],
)
def test_more_than_one_worker_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server = _Server(tmp_path, workers=workers)
    server.process.start()
    eventually(server.ended, "refusal")
    assert "the ledger lives in one process" in server.log.read_text()
    assert "serving on" not in server.log.read_text()

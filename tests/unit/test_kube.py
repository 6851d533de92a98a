import datetime as dt
import gzip
import json
import ssl
import threading
import time
from ipaddress import ip_address
from types import SimpleNamespace

import kubernetes.config.incluster_config
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fake_api_server import body, hang_up, kubeconfig, page, pod, running, silence, status, stream

from webhook import __version__
from webhook.errors import ApiServerError, SettingsError
from webhook.kube import LONGEST_LINE, RELOAD_INTERVAL_S, KubeClient, default_namespace, pod_namespace, split_lines

PODS = "/api/v1/pods"


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def client(server, tmp_path):
    with KubeClient.from_kubeconfig(kubeconfig(tmp_path, server.port, "t1")) as client:
        yield client


# Lines.


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([b"a\n"], [b"a"], id="a line a piece"),
        pytest.param([b"a\nb\nc\n"], [b"a", b"b", b"c"], id="several lines in a piece"),
        pytest.param([b"a", b"b", b"c\nd", b"\n"], [b"abc", b"d"], id="a line in several pieces"),
        pytest.param([b"a", b"\n", b"\n\nb\n"], [b"a", b"b"], id="empty lines are left out"),
        pytest.param([b"a\nb"], [b"a", b"b"], id="what has no end comes last"),
    ],
)
def test_lines_of_a_byte_stream(pieces, want):
    assert list(split_lines(pieces)) == want


def test_a_long_line_costs_its_length():
    """Joined anew with each piece, this would move 50 GB."""
    pieces = [b"x" * 1000] * 10_000 + [b"\n"]
    started = time.monotonic()

    (line,) = split_lines(pieces)

    assert len(line) == 10_000_000
    assert time.monotonic() - started < 2


def test_a_line_without_end_is_given_up():
    def endless():
        while True:
            yield b"x" * (1 << 20)

    with pytest.raises(ApiServerError, match=f"a line of more than {LONGEST_LINE} bytes"):
        list(split_lines(endless()))


# Requests and answers.


def test_the_body_comes_as_it_is_sent(server, client):
    server.lists = [body(b'{"odd": [1,\n 2]}')]

    assert client.get("/api/v1/nodes", {"labelSelector": "a in (b,c)", "limit": "1"}) == b'{"odd": [1,\n 2]}'

    assert server.requests == [("/api/v1/nodes", {"labelSelector": "a in (b,c)", "limit": "1"})]
    assert server.headers[0]["User-Agent"] == f"hami-quota/{__version__}"
    assert server.headers[0]["Authorization"] == "Bearer t1"
    assert server.headers[0]["Accept"] == "application/json"


def test_large_answers_may_come_compressed_to_a_kubeconfig(server, client):
    server.lists = [body(gzip.compress(b"large"), headers={"Content-Encoding": "gzip"})]

    assert client.get(PODS) == b"large"

    assert server.headers[0]["Accept-Encoding"] == "gzip"


def test_a_watch_never_comes_compressed(server, client):
    server.watches = [stream(b"a\n")]

    with client.stream(PODS, {"watch": "true"}, 5) as lines:
        assert list(lines) == [b"a"]

    assert server.headers[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(
            status(403, "Forbidden", 'pods is forbidden: User "x" cannot list'),
            (403, 'Forbidden: pods is forbidden: User "x" cannot list', None),
            id="a Status",
        ),
        pytest.param(
            status(429, "TooManyRequests", headers={"Retry-After": "3"}),
            (429, "TooManyRequests", 3),
            id="a time to wait",
        ),
        pytest.param(
            status(503, "ServiceUnavailable", headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
            (503, "ServiceUnavailable", None),
            id="a date to wait for is left out",
        ),
        pytest.param(
            status(503, "ServiceUnavailable", headers={"Retry-After": "-1"}),
            (503, "ServiceUnavailable", None),
            id="a time that has passed is left out",
        ),
        pytest.param(body(b"<html>\nBad\n  gateway", 502), (502, "<html> Bad gateway", None), id="a page of a proxy"),
        pytest.param(body(b"", 504), (504, "Gateway Timeout", None), id="no body"),
        pytest.param(body(b"\xff\xfe", 500), (500, "\ufffd\ufffd", None), id="no text"),
        pytest.param(
            body(b"", 302, {"Location": "http://127.0.0.1:1/"}), (302, "Found", None), id="a redirect is not followed"
        ),
    ],
)
def test_an_error_of_the_server(server, client, answer, want):
    server.lists = server.watches = [answer]
    for ask in (lambda: client.get(PODS), lambda: client.stream(PODS, {"watch": "true"}, 5)):
        with pytest.raises(ApiServerError) as caught:
            ask()

        error = caught.value
        assert (error.status, error.reason, error.retry_after_s) == want


def test_a_long_error_is_trimmed(server, client):
    server.lists = [status(500, "InternalError", "x" * 100_000)]

    with pytest.raises(ApiServerError) as caught:
        client.get(PODS)

    assert len(caught.value.reason) == 256
    assert caught.value.reason.endswith("xxx...")


def test_an_error_whose_body_is_cut_is_still_that_error(server, client):
    def cut(handler, query):
        handler.close_connection = True
        handler.send_response(403)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"{")

    server.lists = [cut]

    with pytest.raises(ApiServerError) as caught:
        client.get(PODS)

    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")


def test_nobody_listening_is_status_0(tmp_path):
    with running() as server:
        path = kubeconfig(tmp_path, server.port)
    with KubeClient.from_kubeconfig(path) as client, pytest.raises(ApiServerError) as caught:
        client.get(PODS, timeout_s=5)

    assert caught.value.status == 0
    assert "Connection refused" in caught.value.reason


def test_an_answer_that_never_comes_is_given_up(server, client):
    server.lists = [silence()]
    started = time.monotonic()

    with pytest.raises(ApiServerError, match="timed out") as caught:
        client.get(PODS, timeout_s=0.2)

    assert caught.value.status == 0
    assert 0.2 <= time.monotonic() - started < 2


def test_an_answer_in_drops_is_given_up(server, client):
    def drops(handler, query):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"1\r\nx\r\n")
            time.sleep(0.05)

    server.lists = [drops]
    started = time.monotonic()

    with pytest.raises(ApiServerError, match="timed out"):
        client.get(PODS, timeout_s=0.3)

    assert time.monotonic() - started < 2


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(server, client):
    """A request may go out just as the server gives up an idle connection; nobody should hear of it."""
    server.lists = [body(b"1"), hang_up(), body(b"2")]

    assert client.get(PODS) == b"1"
    assert client.get(PODS) == b"2"


def test_connections_are_used_again(server, client):
    ports = set()

    def note(handler, query):
        ports.add(handler.client_address[1])
        (stream(b"a\n") if "watch" in query else body(b"1"))(handler, query)

    server.lists = server.watches = [note]
    for _ in range(3):
        client.get(PODS)
        with client.stream(PODS, {"watch": "true"}, 5) as lines:
            list(lines)

    assert len(ports) == 1


# Streams.


def test_lines_arrive_one_by_one(server, client):
    go_on = threading.Event()

    def slowly(handler, query):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"5\r\na\nb\nc\r\n")
        go_on.wait(10)
        handler.wfile.write(b"2\r\nd\n\r\n0\r\n\r\n")

    server.watches = [slowly]

    with client.stream(PODS, {"watch": "true"}, 10) as stream_of_lines:
        lines = iter(stream_of_lines)
        assert [next(lines), next(lines)] == [b"a", b"b"]
        go_on.set()
        assert list(lines) == [b"cd"]


def test_lines_of_a_server_that_sends_no_chunks_arrive_one_by_one(server, client):
    go_on = threading.Event()

    def slowly(handler, query):
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b"a\n")
        go_on.wait(10)
        handler.wfile.write(b"b\n")

    server.watches = [slowly]

    with client.stream(PODS, {"watch": "true"}, 10) as stream_of_lines:
        lines = iter(stream_of_lines)
        assert next(lines) == b"a"
        go_on.set()
        assert list(lines) == [b"b"]


def test_a_silent_stream_is_given_up(server, client):
    with (
        client.stream(PODS, {"watch": "true"}, 0.2) as lines,
        pytest.raises(ApiServerError, match="Read timed out") as caught,
    ):
        list(lines)

    assert caught.value.status == 0


def test_a_stream_that_is_cut_is_an_error_after_its_lines(server, client):
    server.watches = [stream(b"a\n", b"b\n", end="cut")]

    with client.stream(PODS, {"watch": "true"}, 5) as stream_of_lines:
        lines = iter(stream_of_lines)
        assert [next(lines), next(lines)] == [b"a", b"b"]
        with pytest.raises(ApiServerError) as caught:
            next(lines)

    assert caught.value.status == 0


def interrupted_by_another_thread(client):
    """Read a silent stream while another thread interrupts it; return how long the reader waited."""
    with client.stream(PODS, {"watch": "true"}, 30) as lines:
        timer = threading.Timer(0.1, lines.interrupt)
        timer.start()
        started = time.monotonic()
        with pytest.raises(ApiServerError):
            list(lines)
        waited = time.monotonic() - started
        timer.join()
        return waited


def test_interrupt_wakes_the_reader(server, client):
    assert interrupted_by_another_thread(client) < 2


def test_interrupt_of_a_stream_that_has_ended_does_nothing(server, client):
    server.watches = [stream(b"a\n")]
    with client.stream(PODS, {"watch": "true"}, 5) as lines:
        assert list(lines) == [b"a"]

        lines.interrupt()
    lines.interrupt()


# One pod.


def test_uid_of_a_pod(server, client):
    server.lists = [body(json.dumps(pod("a", 5, uid="u-1", status={"phase": 7})).encode())]

    assert client.pod_uid("team-a", "a", 1) == "u-1"

    assert server.requests == [("/api/v1/namespaces/team-a/pods/a", {})]


def test_no_such_pod(server, client):
    server.lists = [status(404, "NotFound", 'pods "a" not found')]

    assert client.pod_uid("team-a", "a", 1) is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(status(403, "Forbidden"), id="not allowed to look"),
        pytest.param(status(500, "InternalError"), id="an internal error"),
        pytest.param(body(b"{}"), id="something that is no pod"),
        pytest.param(body(b""), id="nothing"),
        pytest.param(silence(), id="no answer"),
    ],
)
def test_a_look_up_that_fails_is_not_gone(server, client, answer):
    server.lists = [answer]

    with pytest.raises(ApiServerError):
        client.pod_uid("team-a", "a", 0.2)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2Fb"])
def test_names_that_no_object_can_have_are_not_asked_for(server, client, name):
    assert client.pod_uid("team-a", name, 1) is None
    assert client.pod_uid(name, "a", 1) is None
    assert server.requests == []


def test_odd_names_are_quoted(server, client):
    server.lists = [status(404, "NotFound")]

    assert client.pod_uid("team-a", "a?b#c d", 1) is None

    assert server.requests == [("/api/v1/namespaces/team-a/pods/a%3Fb%23c%20d", {})]


# Credentials.


def test_a_kubeconfig_with_a_new_token_is_read_again(server, client, tmp_path):
    server.accepted_tokens = {"t2"}
    server.lists = [body(b"1")]
    kubeconfig(tmp_path, server.port, "t2")

    assert client.get(PODS) == b"1"


def test_a_token_that_stays_bad_is_not_read_for_every_request(server, tmp_path):
    now = [0.0]
    readings = []
    path = kubeconfig(tmp_path, server.port, "bad")
    known = KubeClient.from_kubeconfig(path)

    def configure():
        readings.append(now[0])
        return known._configure()

    server.accepted_tokens = {"t1"}
    with known, KubeClient(configure, clock=lambda: now[0]) as client:
        for _ in range(10):
            with pytest.raises(ApiServerError) as caught:
                client.get(PODS)
            assert caught.value.status == 401
        now[0] += RELOAD_INTERVAL_S
        with pytest.raises(ApiServerError):
            client.get(PODS)

    assert readings == [0, 0, RELOAD_INTERVAL_S]


def test_many_threads_that_are_refused_read_the_token_once(server, client, tmp_path):
    server.accepted_tokens = {"t2"}
    server.lists = [body(b"1")]
    kubeconfig(tmp_path, server.port, "t2")
    together = threading.Barrier(8)
    answers = []

    def ask():
        together.wait()
        answers.append(client.get(PODS))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [b"1"] * 8


def test_a_kubeconfig_that_went_bad_leaves_the_old_one_in_use(server, client, tmp_path):
    server.accepted_tokens = {"t2"}
    (tmp_path / "kubeconfig").write_text("{}")

    with pytest.raises(ApiServerError) as caught:
        client.get(PODS)

    assert caught.value.status == 401


@pytest.mark.parametrize("content", [None, "{}", "[", "apiVersion: v1\ncurrent-context: nobody\ncontexts: []\n"])
def test_a_kubeconfig_that_cannot_be_used(tmp_path, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SettingsError, match="no access to an API server"):
        KubeClient.from_kubeconfig(str(path))


def test_outside_of_a_cluster(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(SettingsError, match="no access to an API server"):
        KubeClient.in_cluster()


class ServiceAccount:
    """What kubelet puts into a pod."""

    def __init__(self, folder):
        self.folder = folder
        self._write_certificate()

    def rotate(self, token):
        """Replace the token."""
        (self.folder / "token").write_text(token)

    def server_context(self):
        """Return what the API server's side of TLS needs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "ca.crt", self.folder / "key")
        return context

    def _write_certificate(self):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        (self.folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / "key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


@pytest.fixture
def account(tmp_path, monkeypatch):
    account = ServiceAccount(tmp_path)
    account.rotate("t1")
    theirs = kubernetes.config.incluster_config
    monkeypatch.setattr(theirs, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(theirs, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return account


@pytest.fixture
def cluster(account, monkeypatch):
    with running(account.server_context()) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        yield server


def test_a_service_account_is_used_and_its_rotated_token_picked_up(cluster, account):
    cluster.accepted_tokens = {"t1"}
    cluster.lists = [page(100)]
    with KubeClient.in_cluster() as client:
        client.get(PODS)
        assert cluster.headers[0]["Authorization"] == "bearer t1"
        assert cluster.headers[0]["Accept-Encoding"] == "identity"

        cluster.accepted_tokens = {"t2"}
        account.rotate("t2")

        client.get(PODS)
        with client.stream(PODS, {"watch": "true"}, 5):
            pass
    assert [headers["Authorization"][-2:] for headers in cluster.headers] == ["t1", "t1", "t2", "t2"]


def test_the_library_reads_the_token_again_by_itself_when_its_copy_is_a_minute_old(cluster, account, monkeypatch):
    """So a token is normally replaced before anybody is refused; this fails if the pinned library stops doing it."""
    cluster.lists = [page(100)]

    later = dt.datetime.now() + dt.timedelta(minutes=2)  # noqa: DTZ005 - the library's clock has no zone either
    two_minutes_on = SimpleNamespace(datetime=SimpleNamespace(now=lambda: later), timedelta=dt.timedelta)

    with KubeClient.in_cluster() as client:
        client.get(PODS)
        account.rotate("t2")
        monkeypatch.setattr(kubernetes.config.incluster_config, "datetime", two_minutes_on)
        client.get(PODS)

    assert [headers["Authorization"] for headers in cluster.headers] == ["bearer t1", "bearer t2"]


def test_a_token_file_may_end_in_a_newline(cluster, account):
    account.rotate("t1\n")
    cluster.accepted_tokens = {"t1"}
    cluster.lists = [page(100)]

    with KubeClient.in_cluster() as client:
        client.get(PODS)


def test_a_token_file_that_is_empty_for_an_instant_is_an_error_of_that_request(cluster, account, monkeypatch):
    cluster.lists = [page(100)]
    with KubeClient.in_cluster() as client:
        account.rotate("")
        monkeypatch.setattr(client._door._configuration, "refresh_api_key_hook", refuse_to_read)
        with pytest.raises(ApiServerError, match="credentials cannot be read: Token file exists but empty"):
            client.get(PODS)


def refuse_to_read(configuration):
    """Do what the library's hook does with an empty file."""
    raise kubernetes.config.ConfigException("Token file exists but empty.")


def test_another_server_is_not_trusted(cluster, account):
    with KubeClient.in_cluster() as client:
        account._write_certificate()
        with pytest.raises(ApiServerError, match="CERTIFICATE_VERIFY_FAILED"):
            client.get(PODS)

    assert cluster.requests == []


def test_interrupt_wakes_the_reader_of_an_encrypted_stream(cluster):
    with KubeClient.in_cluster() as client:
        assert interrupted_by_another_thread(client) < 2


def test_a_client_starts_no_threads(server, client):
    server.lists = [body(b"1")]
    server.watches = [stream(b"a\n")]
    client.get(PODS)
    before = threading.active_count()
    for _ in range(100):
        with client.stream(PODS, {"watch": "true"}, 5) as lines:
            list(lines)

    assert threading.active_count() == before


# Posts.


def test_an_object_is_sent_and_the_answer_comes_back(server, client):
    server.posts = [body(b'{"status": {}}', code=201)]
    assert client.post("/apis/things", b'{"a": 1}') == b'{"status": {}}'
    assert server.bodies == [{"a": 1}]
    assert server.headers[0]["Content-Type"] == "application/json"


def test_an_object_is_sent_once_when_the_connection_breaks(server, client):
    server.posts = [hang_up()]
    with pytest.raises(ApiServerError) as caught:
        client.post("/apis/things", b"{}")
    assert caught.value.status == 0
    assert len(server.bodies) == 1


def test_an_object_is_sent_again_with_renewed_credentials(server, client, tmp_path):
    server.accepted_tokens = {"t2"}
    kubeconfig(tmp_path, server.port, "t2")
    server.posts = [body(b"{}", code=201)]
    assert client.post("/apis/things", b"{}") == b"{}"
    assert len(server.bodies) == 2


def test_a_refused_object_is_an_error(server, client):
    server.posts = [status(403, "Forbidden", "not you")]
    with pytest.raises(ApiServerError, match="403 Forbidden: not you"):
        client.post("/apis/things", b"{}")


# Contexts.


@pytest.mark.parametrize(
    ("context", "want"),
    [
        pytest.param(None, "team-a", id="the current one"),
        pytest.param("other", "default", id="one that names no namespace"),
    ],
)
def test_the_namespace_of_a_context(tmp_path, context, want):
    path = tmp_path / "config"
    contexts = [
        {"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
        {"name": "other", "context": {"cluster": "c", "user": "u"}},
    ]
    others = {"clusters": [{"name": "c", "cluster": {}}], "users": [{"name": "u", "user": {}}]}
    path.write_text(json.dumps({"current-context": "main", "contexts": contexts, **others}))
    assert default_namespace(str(path), context) == want
    with pytest.raises(SettingsError, match="no such context"):
        default_namespace(str(path), "third")


def test_the_namespace_of_a_kubeconfig_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match="no access"):
        default_namespace(str(tmp_path / "none"))


def test_the_namespace_of_the_pod_that_this_runs_in(tmp_path, monkeypatch):
    monkeypatch.setattr("webhook.kube._POD_NAMESPACE", tmp_path / "namespace")
    assert pod_namespace() == "default"
    (tmp_path / "namespace").write_text("team-b\n")
    assert pod_namespace() == "team-b"

"""A small API server that answers lists, watches and gets by script, over real HTTP."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class FakeApiServer:
    """Answers each request with the next answer of the script for its kind; the last one is repeated.

    An answer is a function that is given the request's handler and its query. `lists` answers plain GETs and `watches`
    those with `watch`; a script that is empty leaves watches open and silent. `posts` answers POSTs, whose bodies are
    kept. `accepted_tokens`, if set, makes it answer 401 to any other.
    """

    def __init__(self, context: ssl.SSLContext | None = None):
        self.lists: list[Answer] = []
        self.watches: list[Answer] = []
        self.posts: list[Answer] = []
        self.bodies: list[dict] = []
        self.accepted_tokens: set[str] | None = None
        self.requests: list[tuple[str, dict]] = []  # (path, query)
        self.headers: list[dict] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                fake._answer(self)

            def do_POST(self):
                fake.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                fake._answer(self)

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # with the usual 5, a burst of connections waits a second for the next try

            def handle_error(self, request, client_address):
                """Clients hang up in the middle on purpose."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        """Stop serving; answers that are still open end with their connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def queries(self, *, watch: bool) -> list[dict]:
        """Return the queries of the lists, or of the watches, in order of arrival."""
        return [query for _, query in self.requests if ("watch" in query) is watch]

    def _answer(self, handler):
        url = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.requests.append((url.path, query))
        self.headers.append(dict(handler.headers))
        token = handler.headers.get("Authorization", "").partition(" ")[2]
        if self.accepted_tokens is not None and token not in self.accepted_tokens:
            status(401, "Unauthorized")(handler, query)
            return
        script = self.watches if "watch" in query else self.lists
        script = self.posts if handler.command == "POST" else script
        if not script:
            silence()(handler, query)
            return
        answer = script[0] if len(script) == 1 else script.pop(0)
        answer(handler, query)


Answer = Callable[[BaseHTTPRequestHandler, dict], None]


@contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[FakeApiServer]:
    server = FakeApiServer(context)
    try:
        yield server
    finally:
        server.close()


def kubeconfig(folder: Path, port: int, token: str | None = None) -> str:
    """Write a kubeconfig for the fake server; return its path."""
    path = folder / "kubeconfig"
    named = {"name": "fake"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{**named, "user": {"token": token} if token else {}}],
        "contexts": [{**named, "context": {"cluster": "fake", "user": "fake"}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def pod(name: str, version: int, *, uid: str | None = None, **fields) -> dict:
    metadata = {"namespace": "team-a", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **fields}


def event(kind: str, item: dict) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def error_event(code: int, reason: str) -> bytes:
    return event("ERROR", {"kind": "Status", "status": "Failure", "code": code, "reason": reason})


def body(content: bytes, code: int = 200, headers: dict | None = None) -> Answer:
    def answer(handler, query):
        handler.send_response(code)
        for key, value in (headers or {}).items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def page(version: int, *items: dict, token: str = "") -> Answer:
    metadata = {"resourceVersion": str(version), **({"continue": token} if token else {})}
    return body(json.dumps({"kind": "PodList", "metadata": metadata, "items": items or None}).encode())


def status(code: int, reason: str, message: str = "", headers: dict | None = None) -> Answer:
    content = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return body(json.dumps(content).encode(), code, headers)


def stream(*pieces: bytes, end: str = "clean") -> Answer:
    """Answer with chunks; then end `clean`, `cut` the connection, or stay `open` until the client goes."""

    def answer(handler, query):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if end == "clean":
            handler.wfile.write(b"0\r\n\r\n")
        elif end == "open":
            wait_for_hang_up(handler)
        handler.close_connection = end != "clean"

    return answer


def silence() -> Answer:
    """Accept a watch and never write again."""
    return stream(end="open")


def hang_up() -> Answer:
    """Close the connection without an answer."""

    def answer(handler, query):
        handler.close_connection = True

    return answer


def wait_for_hang_up(handler):
    with suppress(OSError):
        handler.connection.recv(1)

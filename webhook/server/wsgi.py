"""Calls a WSGI application (PEP 3333) with a whole request and returns the whole response."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from webhook.server.http1 import Request, Response

_log = logging.getLogger(__name__)

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# Framing and the connection are the server's own business (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    {b"connection", b"content-length", b"date", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)


class Application(Protocol):
    """A WSGI application."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any], /) -> Iterable[bytes]:
        """Answer one request."""


class Bridge:
    """Calls one application, from any thread.

    Args:
        application: The application.
        host: The name and port it is told it is served at.
    """

    def __init__(self, application: Application, host: str, port: int) -> None:
        self._application = application
        self._host = host
        self._port = port

    def call(self, request: Request) -> Response:
        """Return the application's response; what it raises is raised.

        Raises:
            RuntimeError: It broke the protocol: no start_response before the body, or a second one without an error.
        """
        started = _Start()
        result = self._application(self._environ(request), started)
        try:
            for part in result:
                started.write(part)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
        return started.response()

    def _environ(self, request: Request) -> dict[str, Any]:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
            "QUERY_STRING": request.query.decode("latin-1"),
            "REMOTE_ADDR": request.peer,
            "SERVER_NAME": self._host,
            "SERVER_PORT": str(self._port),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(request.body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "https",
            "wsgi.input": io.BytesIO(request.body),
            "wsgi.input_terminated": True,
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in request.headers:
            if b"_" in name or name in {b"content-length", b"transfer-encoding"}:
                continue  # X_Name would pass for X-Name; the length is that of the body that came
            key = name.decode("latin-1").upper().replace("-", "_")
            if key != "CONTENT_TYPE":
                key = f"HTTP_{key}"
            text = value.decode("latin-1")
            environ[key] = f"{environ[key]},{text}" if key in environ else text
        return environ


class _Start:
    """The `start_response` of one request, and what came after it."""

    def __init__(self) -> None:
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
    ) -> Callable[[bytes], None]:
        if self._status is not None and exc_info is None:
            raise RuntimeError("start_response was called twice")
        self._status = int(status.split(" ", 1)[0])
        # Nothing has been sent yet, so what an error handler says replaces everything before it.
        self._parts.clear()
        self._headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in headers
            if name.lower().encode("latin-1") not in _HOP_BY_HOP
        ]
        return self.write

    def write(self, part: bytes) -> None:
        """Take a part of the body."""
        if self._status is None:
            raise RuntimeError("the body began before start_response was called")
        self._parts.append(part)

    def response(self) -> Response:
        """Return everything as one response."""
        if self._status is None:
            raise RuntimeError("start_response was not called")
        return Response(self._status, b"".join(self._parts), self._headers)

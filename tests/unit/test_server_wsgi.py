from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from wsgiref.validate import validator

import pytest

from webhook.server.http1 import Request
from webhook.server.wsgi import Bridge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REQUEST = Request(
    "POST", b"/a%20b", b"x=1", [(b"content-type", b"text/plain"), (b"host", b"x")], b"body", 0.0, "192.0.2.7"
)


def call(application: Callable[..., Iterable[bytes]], request: Request = REQUEST) -> Any:
    return Bridge(application, "127.0.0.1", 8443).call(request)


def test_the_protocol_is_kept_as_its_own_validator_sees_it() -> None:
    @validator
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [environ["wsgi.input"].read(2), environ["wsgi.input"].read(-1)]

    response = call(application)
    assert (response.status, response.body) == (201, b"body")
    assert list(response.headers) == [(b"Content-Type", b"text/plain")]


def test_the_environment_says_what_was_asked() -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [json.dumps({key: value for key, value in environ.items() if isinstance(value, str)}).encode()]

    headers = [(b"content-type", b"a"), (b"accept", b"b"), (b"accept", b"c"), (b"content_type", b"d"), (b"x_y", b"e")]
    environ = json.loads(call(application, REQUEST._replace(headers=headers)).body)
    assert environ == {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/a b",
        "QUERY_STRING": "x=1",
        "REMOTE_ADDR": "192.0.2.7",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": "4",
        "CONTENT_TYPE": "a",
        "HTTP_ACCEPT": "b,c",
        "wsgi.url_scheme": "https",
    }


def test_the_server_frames_the_answer_and_not_the_application() -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "99"), ("Connection", "close"), ("X-Kept", "1")])
        return [b"x"]

    assert list(call(application).headers) == [(b"X-Kept", b"1")]


def test_what_is_written_and_what_is_returned_make_one_body() -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        write = start_response("200 OK", [])
        write(b"a")
        yield b"b"
        yield b"c"

    assert call(application).body == b"abc"


def test_an_error_handler_replaces_what_came_before_it() -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"half"
        error = ValueError("broken")
        start_response("500 Internal Server Error", [], (ValueError, error, error.__traceback__))
        yield b"sorry"

    response = call(application)
    assert (response.status, response.body) == (500, b"sorry")


def test_the_result_is_closed_even_if_it_breaks() -> None:
    class Result:
        is_closed = False

        def __iter__(self) -> Iterator[bytes]:
            raise ValueError("broken")

        def close(self) -> None:
            self.is_closed = True

    result = Result()
    with pytest.raises(ValueError, match="broken"):
        call(lambda environ, start_response: result)
    assert result.is_closed


@pytest.mark.parametrize(
    ("calls", "body"),
    [
        pytest.param(0, b"x", id="a body before start_response"),
        pytest.param(0, b"", id="no start_response at all"),
        pytest.param(2, b"x", id="start_response twice"),
    ],
)
def test_an_application_that_breaks_the_protocol_is_an_error(calls: int, body: bytes) -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        for _ in range(calls):
            start_response("200 OK", [])
        return [body] if body else []

    with pytest.raises(RuntimeError):
        call(application)

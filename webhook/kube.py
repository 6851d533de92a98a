"""The one door to the API server: requests in, raw bytes out.

Only this module imports the client library, and of it only what reads credentials (`Configuration`, the
loaders) and what holds the connections (`RESTClientObject`, a urllib3 pool with the cluster's TLS settings).
Its `ApiClient` is left alone: it decodes whole objects into models, one odd field in one object makes a whole
list fail, and its signature changed between 34 and 37. What the bytes mean is decided by the callers.

Every request has a time limit on both sides, and every failure is an `ApiServerError`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import list_kube_config_contexts, load_incluster_config, load_kube_config

from webhook import __version__
from webhook.errors import ApiServerError, SettingsError

_log = logging.getLogger(__name__)

# A connection inside a cluster opens in a few milliseconds; the longest wait of a decision is the webhook's
# timeout.
CONNECT_TIMEOUT_S = 5.0

# How often a 401 may make us read the credentials again. Kubelet replaces a token once it has lived 80 % of
# its time, so one look is normally enough; a kubeconfig may start a program for it, and a broken
# authenticator would start many.
RELOAD_INTERVAL_S = 5.0

# etcd takes at most 1.5 MiB in one request, so no object and no event comes near this; a peer that is no API
# server may.
LONGEST_LINE = 32 << 20

_DONE = frozenset({HTTPStatus.OK, HTTPStatus.CREATED})

# Where kubelet puts it beside the token. Source: Kubernetes, "Accessing the Kubernetes API from a Pod".
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_PIECE = 1 << 20
_LONGEST_ERROR_BODY = 16 << 10
_LONGEST_REASON = 256


class _Status(msgspec.Struct):
    """What we read of the Status object that comes with an error."""

    reason: str = ""
    message: str = ""


class _Metadata(msgspec.Struct):
    uid: str


class _Named(msgspec.Struct):
    metadata: _Metadata


class _Call(NamedTuple):
    """One request."""

    method: str
    path: str
    params: Mapping[str, str] | None
    encoding: str
    body: bytes | None = None


class _Door:
    """Connections and credentials that belong together: one reading of the configuration."""

    def __init__(self, configuration: Configuration) -> None:
        # Ask the kernel to look for a peer that went away; client 36.0.0 and older ignore the attribute.
        configuration.keep_alive = True
        self.host: str = configuration.host.rstrip("/")
        self.pool: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        self._configuration = configuration
        self._lock = threading.Lock()

    def authorization(self) -> str | None:
        """Return the Authorization header; the library re-reads a token file when its copy is a minute old.

        The library moved the token from `authorization` to `BearerToken`, and 36.0.0 wrote one and read the
        other, so it sent none; asking for both works with every release. The strip is for token files that end
        in a newline, which would make an invalid header.
        """
        with self._lock:
            read = self._configuration.get_api_key_with_prefix
            key = read("BearerToken") or read("authorization")
        return key.strip() if key else None


class KubeClient:
    """Sends requests to one API server. Safe to share between threads; starts none.

    Args:
        configure: Reads the credentials and says how to connect; called again after a 401, so that what was
            renewed on disk is picked up without a restart.
        gzip: Whether large answers may come compressed. It pays over slow lines; on the loopback interface a list
            of 4.5 MB took 57 ms plain and 67 ms compressed, and the API server's CPU besides.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        configure: Callable[[], Configuration],
        *,
        gzip: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configure = configure
        self._clock = clock
        self._headers = {"User-Agent": f"hami-quota/{__version__}", "Accept": "application/json"}
        self._encoding = "gzip" if gzip else "identity"
        self._reload_lock = threading.Lock()
        self._reloaded_at = -RELOAD_INTERVAL_S
        self._door = self._new_door()

    @classmethod
    def in_cluster(cls) -> Self:
        """Return a client that uses the service account of the pod it runs in."""

        def configure() -> Configuration:
            configuration = Configuration()
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # theirs
            return configuration

        return cls(configure)

    @classmethod
    def from_kubeconfig(cls, path: str | None = None, context: str | None = None) -> Self:
        """Return a client for one context of a kubeconfig.

        Args:
            path: The file, or several separated as in `$KUBECONFIG`; by default what `$KUBECONFIG` says.
            context: The context's name; by default the file's current one.
        """

        def configure() -> Configuration:
            configuration = Configuration()
            load_kube_config(  # type: ignore[no-untyped-call]  # the library's loaders have no types
                config_file=path, context=context, client_configuration=configuration
            )
            return configuration

        return cls(configure, gzip=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. Open streams end with their owners."""
        self._door.pool.clear()

    def get(self, path: str, params: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> bytes:
        """Return the body of one answer.

        Args:
            path: Path on the API server, already quoted.
            params: Query parameters, not quoted.
            timeout_s: Limit for the whole exchange. A body that arrives in drops is given up too, at the
                latest one read after the limit.

        Raises:
            ApiServerError: No answer in time, or an answer that is an error.
        """
        return self._whole(_Call("GET", path, params, self._encoding), timeout_s)

    def post(self, path: str, body: bytes, timeout_s: float = 10.0) -> bytes:
        """Create an object and return the body of the answer.

        It is sent once: when the connection breaks nobody knows what became of it. Only a 401, which says that nothing
        was done, is followed by a second try with new credentials.

        Args:
            path: Path on the API server, already quoted.
            body: The object as JSON.
            timeout_s: Limit for the whole exchange.

        Raises:
            ApiServerError: No answer in time, or an answer that is an error.
        """
        return self._whole(_Call("POST", path, None, self._encoding, body), timeout_s)

    def _whole(self, call: "_Call", timeout_s: float) -> bytes:
        deadline = self._clock() + timeout_s
        response = self._open(call, lambda: self._left(deadline))
        try:
            parts = []
            for part in response.stream(_PIECE, decode_content=True):
                parts.append(part)
                self._left(deadline)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _unanswered(error) from error
        finally:
            # What was read to its end is back in the pool by now; anything else must not be used again.
            response.close()
        return b"".join(parts)

    def stream(self, path: str, params: Mapping[str, str] | None, read_timeout_s: float) -> "LineStream":
        """Open a watch and return its lines as they arrive.

        Args:
            path: Path on the API server, already quoted.
            params: Query parameters, not quoted.
            read_timeout_s: How long the server may stay silent, before its answer and within it.

        Raises:
            ApiServerError: The stream could not be opened; the iteration raises it when the line breaks.
        """
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        # A compressed stream would sit in the compressor's buffer; the API server compresses no watch anyway.
        return LineStream(self._open(_Call("GET", path, params, "identity"), lambda: timeout))

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        """Return the UID of the pod that is stored under a name now, or None if there is none.

        This is a consistent read: without a resourceVersion the API server answers with the latest state.

        Raises:
            ApiServerError: Whether the pod exists is not known, also when the answer is no pod.
        """
        if not (_is_segment(namespace) and _is_segment(name)):
            return None
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        try:
            body = self.get(path, timeout_s=timeout_s)
        except ApiServerError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        try:
            return msgspec.json.decode(body, type=_Named).metadata.uid
        except msgspec.DecodeError as error:
            raise ApiServerError(0, f"the answer for pod {namespace}/{name} is no pod: {error}") from error

    def _new_door(self) -> _Door:
        try:
            return _Door(self._configure())
        except Exception as error:
            # What a kubeconfig can go wrong with, the library raises as it comes: its own error, YAML's, a
            # missing key, whatever a credential helper that it starts has failed with.
            raise SettingsError(f"no access to an API server: {_trimmed(str(error))}") from error

    def _left(self, deadline: float) -> urllib3.Timeout:
        left = deadline - self._clock()
        if left <= 0:
            raise ApiServerError(0, "timed out")
        return urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, left), read=left)

    def _open(self, call: "_Call", timeout: Callable[[], urllib3.Timeout]) -> urllib3.BaseHTTPResponse:
        """Send a request and return the answer once its headers are in.

        There is one second try, for two reasons: the server closed an idle connection just as we used it for a
        GET, or our credentials were renewed. Everything else is left to the caller's own backoff.
        """
        door = self._door
        target = f"{call.path}?{urlencode(call.params)}" if call.params else call.path
        for is_last in (False, True):
            try:
                response = door.pool.request(
                    call.method,
                    door.host + target,
                    body=call.body,
                    headers=self._with_credentials(door, call),
                    timeout=timeout(),
                    retries=False,  # ours is above; and a redirect would carry the token elsewhere
                    preload_content=False,
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                is_resent = call.method == "GET" and isinstance(error, urllib3.exceptions.ProtocolError)
                if is_resent and not is_last:
                    continue
                raise _unanswered(error) from error
            if response.status == HTTPStatus.UNAUTHORIZED and not is_last and self._reload(door):
                response.close()
                door = self._door
                continue
            if response.status not in _DONE:
                raise _refused(response)
            return response
        raise AssertionError("the last try returns or raises")

    def _with_credentials(self, door: _Door, call: "_Call") -> dict[str, str]:
        try:
            authorization = door.authorization()
        except Exception as error:
            # Such as a token file that is empty for an instant, when somebody else than kubelet writes it.
            raise ApiServerError(0, _trimmed(f"credentials cannot be read: {error}")) from error
        headers = {**self._headers, "Accept-Encoding": call.encoding}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def _reload(self, refused: _Door) -> bool:
        """Read the credentials again; say whether there is something new to try."""
        with self._reload_lock:
            if self._door is not refused:
                return True  # another thread has just done it
            now = self._clock()
            if now - self._reloaded_at < RELOAD_INTERVAL_S:
                return False
            self._reloaded_at = now
            try:
                self._door = self._new_door()
            except SettingsError as error:
                _log.warning("credentials cannot be read again: %s", error)
                return False
        refused.pool.clear()
        return True


def default_namespace(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace that a context of a kubeconfig names, or `default`.

    Raises:
        SettingsError: The file cannot be read, or has no such context.
    """
    try:
        contexts, active = list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]  # theirs
    except Exception as error:
        raise SettingsError(f"no access to an API server: {_trimmed(str(error))}") from error
    chosen = active if context is None else next((item for item in contexts if item["name"] == context), None)
    if chosen is None:
        raise SettingsError(f"--context {context}: the kubeconfig has no such context")
    return str(chosen["context"].get("namespace") or "default")


def pod_namespace() -> str:
    """Return the namespace of the pod this process runs in, or `default` outside of one."""
    try:
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


class LineStream:
    """The lines of one open answer. Iterate in one thread; `interrupt` from any.

    As a context manager it closes the connection, unless the stream was read to its end.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._response.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line without its end; what a clean end of the stream leaves of a line comes last."""
        try:
            yield from split_lines(_pieces(self._response))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError is what TLS says of a socket that `interrupt` has shut under the reader.
            raise _unanswered(error) from error

    def interrupt(self) -> None:
        """Wake the thread that waits in the iteration; it sees the stream break.

        Closing a socket does not wake a thread that waits on it; shutting it down does.
        """
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            _log.debug("the stream had ended by itself")


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of a byte stream that arrives in arbitrary pieces; no line ends, no empty lines.

    The pieces of a line are joined once, so a long line costs its length and not its square.

    >>> list(split_lines([b"a\nb", b"c\n\n", b"d"]))
    [b'a', b'bc', b'd']
    """
    pending: list[bytes] = []
    pending_bytes = 0
    for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = end
            if pending:
                pending.append(end)
                line = b"".join(pending)
                pending.clear()
                pending_bytes = 0
            if line:
                yield line
        if rest:
            pending.append(rest)
            pending_bytes += len(rest)
            if pending_bytes > LONGEST_LINE:
                raise ApiServerError(0, f"a line of more than {LONGEST_LINE} bytes")
    if pending:
        yield b"".join(pending)


def _pieces(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield what has arrived, as soon as it arrives.

    The API server writes an event as one chunk. A proxy may answer without chunks; there `read1` returns what
    is there, where urllib3's own `stream` would wait until its buffer is full.
    """
    if getattr(response, "chunked", False):
        yield from response.read_chunked(_PIECE)
        return
    while piece := response.read1(_PIECE):
        yield piece


def _is_segment(name: str) -> bool:
    """Say whether a name can be a path segment; the API server stores no object whose name cannot.

    Dots alone would be taken for a path, and an empty name asks for the list.

    Source: apimachinery pkg/api/validation/path/name.go, IsValidPathSegmentName.
    """
    return name not in {"", ".", ".."} and "/" not in name and "%" not in name


def _refused(response: urllib3.BaseHTTPResponse) -> ApiServerError:
    """Return the error that an answer stands for, and close it."""
    try:
        body = response.read(_LONGEST_ERROR_BODY, decode_content=True)
    except (urllib3.exceptions.HTTPError, OSError):
        body = b""
    finally:
        response.close()
    try:
        status = msgspec.json.decode(body, type=_Status)
        reason = ": ".join(text for text in (status.reason, status.message) if text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason = body.decode(errors="replace")
    return ApiServerError(
        response.status,
        _trimmed(reason or response.reason or "no reason given"),
        _seconds(response.headers.get("Retry-After")),
    )


def _unanswered(error: Exception) -> ApiServerError:
    return ApiServerError(0, _trimmed(f"{type(error).__name__}: {error}"))


def _trimmed(text: str) -> str:
    """Return a text fit for one log line: no line ends, and not longer than a reason needs to be."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _seconds(retry_after: Any) -> float | None:
    """Return Retry-After in seconds; the API server never sends the form that is a date."""
    try:
        seconds = int(retry_after)
    except (TypeError, ValueError):
        return None
    return float(seconds) if seconds >= 0 else None

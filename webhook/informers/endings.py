"""How a list or a watch can end, and how long to pause before the next one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

import msgspec

from webhook.errors import ApiServerError

# The first pause is half a second to a second, the longest 15 to 30 s. A minute without trouble forgets the past.
BACKOFF_FIRST_S = 1.0
BACKOFF_LONGEST_S = 30.0
BACKOFF_FORGET_S = 60.0

_LONGEST_DETAIL = 256


class Trouble(StrEnum):
    """Why a list or a watch failed; the label of the error counter."""

    EXPIRED = "expired"  # 410: the version we continue from is gone
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    THROTTLED = "throttled"  # 429
    REFUSED = "refused"  # another 4xx
    SERVER = "server"  # 5xx, or an ERROR event
    UNREACHABLE = "unreachable"  # no answer, or a line that broke
    SILENT = "silent"  # neither event nor bookmark for too long
    SHORT = "short"  # a watch that ended at once, with nothing
    MALFORMED = "malformed"  # an answer or a line that is not what it should be
    ODD_OBJECT = "odd_object"  # one object that could not be decoded or applied
    INTERNAL = "internal"  # our own fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a list or a watch ended, and so what comes next.

    Attributes:
        trouble: What went wrong; None for a good end.
        detail: The same for a person.
        must_list: Whether only a list helps; otherwise the same is tried again, a watch from its last version.
        retry_after_s: The least pause that the server asked for.
    """

    trouble: Trouble | None = None
    detail: str = ""
    must_list: bool = False
    retry_after_s: float | None = None


class Backoff:
    """How long to pause after trouble: twice as long each time, jittered, forgotten after a quiet minute.

    The jitter covers the upper half of each interval. Replicas spread, and yet no draw is so short that a server
    which refuses everything is asked in a tight loop.

    Args:
        draw: A random number from 0 to 1.
    """

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._ceiling_s = BACKOFF_FIRST_S
        self._resumed_at = float("-inf")

    def pause_s(self, now: float, retry_after_s: float | None = None) -> float:
        """Return the pause after trouble met now; a server that asks for more gets it, up to the longest."""
        if now - self._resumed_at > BACKOFF_FORGET_S:
            self._ceiling_s = BACKOFF_FIRST_S
        pause_s = self._ceiling_s * (0.5 + 0.5 * self._draw())
        if retry_after_s is not None:
            pause_s = max(pause_s, min(retry_after_s, BACKOFF_LONGEST_S))
        self._ceiling_s = min(2 * self._ceiling_s, BACKOFF_LONGEST_S)
        self._resumed_at = now + pause_s
        return pause_s


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_STATUS = msgspec.json.Decoder(_Status)

_TROUBLES: Mapping[int, Trouble] = {
    0: Trouble.UNREACHABLE,
    HTTPStatus.GONE: Trouble.EXPIRED,
    HTTPStatus.UNAUTHORIZED: Trouble.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: Trouble.FORBIDDEN,
    HTTPStatus.NOT_FOUND: Trouble.NOT_FOUND,
    HTTPStatus.TOO_MANY_REQUESTS: Trouble.THROTTLED,
}


def by_error(error: ApiServerError) -> Ended:
    """Return what an error of the API server means for the loop.

    A version that is gone, or that the server cannot read (400), will not get better by asking again.
    """
    is_client_fault = HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR
    return Ended(
        trouble=_TROUBLES.get(error.status, Trouble.REFUSED if is_client_fault else Trouble.SERVER),
        detail=str(error),
        must_list=error.status in {HTTPStatus.GONE, HTTPStatus.BAD_REQUEST},
        retry_after_s=error.retry_after_s,
    )


def by_error_event(raw: msgspec.Raw) -> Ended:
    """Return what the Status in an ERROR event means for the loop.

    Source: apimachinery pkg/api/errors, IsResourceExpired and IsGone, which go by the reason.
    """
    try:
        status = _STATUS.decode(raw)
    except msgspec.DecodeError as error:
        return Ended(trouble=Trouble.MALFORMED, detail=f"an ERROR event without a Status: {error}")
    detail = f"{status.code} {status.reason}: {status.message}"[:_LONGEST_DETAIL]
    if status.code == HTTPStatus.GONE or status.reason in {"Expired", "Gone"}:
        return Ended(trouble=Trouble.EXPIRED, detail=detail, must_list=True)
    return Ended(trouble=Trouble.SERVER, detail=detail)

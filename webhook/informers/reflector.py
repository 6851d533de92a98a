"""List-and-watch of one resource type: the loop that keeps a sink equal to what the API server stores.

`Reflector` lists everything once, then follows the watch from the list's resourceVersion, and lists again when
the watch can no longer tell what was missed. What objects mean is the business of the `decode` it is given and
of the sink.

What a sink is promised:

- It hears of every object that stays in place: after the last change the sink has seen the last state.
- Calls come from one thread, one at a time, in the order of the API server's resource versions.
- `replaced` carries the whole truth of one moment. Whatever the sink knows and it does not name is gone.
- One object that cannot be read, or that the sink cannot take, never stops the others.

What it is not promised:

- Every state in between. Objects are seen some milliseconds late, and what happened while the watch was away is
  folded into one `replaced`: an object may have changed many times, or come and gone unseen.
- That a name means one object. A pod deleted and created again while the watch was away shows up as the same
  namespace and name with another UID, with no deletion in between. A sink that keys by name must compare UIDs
  and treat the pair as a deletion and a creation; one that keys by UID sees just that.
- That a deletion is of something known, or told once: events may come again when a watch resumes.

Why we never list from the API server's cache (`resourceVersion=0`): it may be older than what we have already
applied, so a list after a reconnect could bring deleted pods back, and move this replica behind what another has
struck off. With no resourceVersion at all a list is consistent, and its pages are one snapshot. Newer API servers
answer it from their cache too, once they have made sure that the cache has caught up.

Source: client-go tools/cache, reflector.go and shared_informer.go; Kubernetes API concepts, "Efficient detection
of changes".
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

import msgspec

from webhook.errors import ApiServerError
from webhook.informers.endings import Backoff, Ended, Trouble, by_error, by_error_event

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

# client-go's page size: 3 MB for pods of 6 KB.
PAGE_SIZE = 500
PAGE_TIMEOUT_S = 60.0

# The API server ends a watch after this long, by our own request and drawn anew each time, as client-go does it;
# so replicas spread over API servers again after one of them was restarted.
WATCH_MIN_S = 300
WATCH_MAX_S = 600

# The API server sends a bookmark once a minute, so 75 s without a word means that the line is dead, or that the
# server has nothing to compare us with. We list again then, which leaves 15 s of the 90 s after which a view
# counts as stale. Of a type that has not changed since the API server started the first bookmark may take longer
# (seen with 1.36.3: 121 s for nodes and resourcequotas); such a type is listed once more than needed.
SILENCE_S = 75.0

# A watch that ends sooner than this without having moved us on is a fault, even if it ends politely.
SHORT_WATCH_S = 1.0

# After how many expired continue tokens a list is still taken in pages.
MOST_EXPIRED_LISTS = 1

# How many odd objects get a log line of their own. Beyond that the counter tells.
MOST_COMPLAINTS = 100


class ObjectRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which object: what is readable of its metadata. Fields that are absent are empty."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Sink(Protocol[T_contra]):
    """Where a reflector tells what changed. See the module's docstring for what is promised.

    Methods run in the reflector's thread and hold up the watch, so they should take microseconds. An exception
    from `upserted` or `deleted` is logged, counted and reported as `undecodable`; one from another method makes
    the reflector list again.
    """

    def replaced(self, items: Sequence[T_contra], resource_version: str, odd: Sequence[ObjectRef]) -> None:
        """Take the state of one moment; forget whatever is neither in `items` nor in `odd`.

        Args:
            items: Everything that decoded.
            resource_version: The moment.
            odd: What exists but could not be decoded. A sink that knew one of them should keep what it knew.
        """

    def upserted(self, item: T_contra) -> None:
        """Take an object that is new, or changed, or seen again unchanged."""

    def deleted(self, ref: ObjectRef) -> None:
        """Forget an object. Only its metadata is read, so no object is too odd to be deleted."""

    def undecodable(self, ref: ObjectRef) -> None:
        """Take note of an object that became unreadable: `upserted` was not called, or failed."""

    def progressed(self, resource_version: str) -> None:
        """Take note that everything up to a version is applied: after each event and each bookmark."""


class Lines(Protocol):
    """The lines of an open watch."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines; raise ApiServerError when the line breaks."""

    def interrupt(self) -> None:
        """Make the iteration end soon; called from another thread."""


class ApiServer(Protocol):
    """What a reflector asks of the API server; `kube.KubeClient` satisfies it."""

    def get(self, path: str, params: Mapping[str, str], timeout_s: float) -> bytes:
        """Return the body of one answer, or raise ApiServerError."""

    def stream(self, path: str, params: Mapping[str, str], read_timeout_s: float) -> AbstractContextManager[Lines]:
        """Open a watch, or raise ApiServerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorStatistics:
    """The state of a reflector at one moment.

    Attributes:
        name: The resource type, for messages and labels.
        has_synced: Whether the first list has been applied.
        last_contact: When, on the reflector's clock, the last list, event or bookmark was applied; or None.
        resource_version: The version up to which everything is applied; empty before the first list.
        lists: Lists applied, the first one included.
        watches: Watches that the server accepted.
        events: Events met, bookmarks not counted.
        bookmarks: Bookmarks met.
        errors: How often each trouble was met; every kind is present.
    """

    name: str
    has_synced: bool
    last_contact: float | None
    resource_version: str
    lists: int
    watches: int
    events: int
    bookmarks: int
    errors: Mapping[Trouble, int]

    @property
    def relists(self) -> int:
        """Lists after the first one."""
        return max(0, self.lists - 1)


class Reflector(Generic[T]):
    """Keeps a sink equal to the objects of one resource type.

    Args:
        name: The resource type, for messages and labels.
        api_server: Where to ask.
        path: The collection, such as `/api/v1/pods`.
        decode: Makes the value to keep from an object's JSON. Nothing else of the object is kept, so in a big
            cluster it should name only what is used. It must not keep the `Raw`, which holds a whole page of the
            list alive. Objects from a list have neither apiVersion nor kind.
        version_of: The resourceVersion of a decoded value.
        sink: Who is told.
        params: Selectors, such as `fieldSelector`. An object that leaves the selection arrives as deleted.
        silence_s: How long without list, event and bookmark until the reflector lists again.
        clock: Monotonic seconds.
        sleep: Waits; by default until the time is over or `stop` is called.
        draw: A random number from 0 to 1.
    """

    def __init__(  # noqa: PLR0913 - what varies by resource, and what tests replace; all by name
        self,
        *,
        name: str,
        api_server: ApiServer,
        path: str,
        decode: Callable[[msgspec.Raw], T],
        version_of: Callable[[T], str],
        sink: Sink[T],
        params: Mapping[str, str] | None = None,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self._api_server = api_server
        self._path = path
        self._decode = decode
        self._version_of = version_of
        self._sink = sink
        self._params = dict(params or {})
        self._silence_s = silence_s
        self._clock = clock
        self._draw = draw
        self._stopping = threading.Event()
        self._sleep = sleep or self._stopping.wait
        self._backoff = Backoff(draw)
        self._thread: threading.Thread | None = None
        self._stream_lock = threading.Lock()
        self._stream: Lines | None = None
        # Written by the reflector's thread alone. Readers get each field whole, if not all of one instant.
        self._must_list = True
        self._expired_lists = 0
        self._last_contact: float | None = None
        self._version = ""
        self._lists = 0
        self._watches = 0
        self._events = 0
        self._bookmarks = 0
        self._errors = dict.fromkeys(Trouble, 0)
        self._complained: set[str] = set()

    @property
    def has_synced(self) -> bool:
        """Whether the first list has been applied."""
        return self._lists > 0

    @property
    def last_contact(self) -> float | None:
        """When the last list, event or bookmark was applied, on the reflector's clock; None before the first."""
        return self._last_contact

    @property
    def is_running(self) -> bool:
        """Whether its thread is at work; nothing but `stop` should end it."""
        return self._thread is not None and self._thread.is_alive()

    def statistics(self) -> ReflectorStatistics:
        """Return the state of this moment; callable from any thread."""
        return ReflectorStatistics(
            name=self.name,
            has_synced=self.has_synced,
            last_contact=self._last_contact,
            resource_version=self._version,
            lists=self._lists,
            watches=self._watches,
            events=self._events,
            bookmarks=self._bookmarks,
            errors=dict(self._errors),
        )

    def load(self) -> None:
        """List everything once, in the caller's thread, and watch nothing.

        Raises:
            ApiServerError: The list failed, or is none.
        """
        while True:
            try:
                ended = self._list()
            except ApiServerError as error:
                # A continue token that expired: the list starts anew, the third time in one piece.
                if error.status == HTTPStatus.GONE and self._expired_lists <= MOST_EXPIRED_LISTS + 1:
                    continue
                raise
            if ended.trouble is not None:
                raise ApiServerError(0, f"{self.name}: {ended.detail}")
            return

    def start(self) -> None:
        """Run in a thread of its own, which ends with the process if nobody stops it."""
        self._thread = threading.Thread(target=self.run, name=f"reflector-{self.name}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End the loop from any thread and wait for it; return whether it has ended.

        A pause and an open watch end at once. A list page that is on its way is waited for.
        """
        self._stopping.set()
        with self._stream_lock:
            if self._stream is not None:
                self._stream.interrupt()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run(self) -> None:
        """List and watch until stopped. No error ends it."""
        while not self._stopping.is_set():
            pause_s = self._settle(self._step())
            if pause_s > 0:
                self._sleep(pause_s)

    def follow(self, lines: Iterable[bytes]) -> Ended:
        """Apply the lines of one watch until it ends or says that it cannot go on."""
        decode_event = _EVENT.decode
        for line in lines:
            try:
                event = decode_event(line)
            except msgspec.DecodeError as error:
                return Ended(trouble=Trouble.MALFORMED, detail=f"{error}, in a line of {len(line)} bytes")
            kind = event.type
            if kind in {"MODIFIED", "ADDED"}:
                version = self._upsert(event.object)
            elif kind in {"DELETED", "BOOKMARK"}:
                try:
                    ref = _OBJECT.decode(event.object).metadata
                except msgspec.DecodeError as error:
                    # Something is gone and we cannot tell what; a list can.
                    return Ended(trouble=Trouble.MALFORMED, detail=f"{kind}: {error}", must_list=True)
                if kind == "DELETED":
                    self._delete(ref)
                else:
                    self._bookmarks += 1
                version = ref.resource_version
            elif kind == "ERROR":
                return by_error_event(event.object)
            else:
                return Ended(trouble=Trouble.MALFORMED, detail=f"an event of type {kind[:40]!r}")
            if version:
                self._version = version
                self._sink.progressed(version)
            self._last_contact = self._clock()
        return Ended()

    def _step(self) -> Ended:
        """Do one list, or follow one watch to its end."""
        try:
            return self._list() if self._must_list else self._watch()
        except ApiServerError as error:
            return by_error(error)
        except Exception as error:  # noqa: BLE001 - a thread that is gone would leave the view frozen for ever
            _log.exception("%s: unexpected", self.name)
            return Ended(trouble=Trouble.INTERNAL, detail=repr(error), must_list=True)

    def _settle(self, ended: Ended) -> float:
        """Note how a step ended; return how long to pause before the next one."""
        if self._stopping.is_set():
            return 0  # the stream broke because we broke it
        # A list that failed is tried again; a watch that failed is resumed, unless it cannot be.
        self._must_list = ended.must_list or (self._must_list and ended.trouble is not None)
        if ended.trouble is None:
            return 0
        self._errors[ended.trouble] += 1
        # Silence took its time already, and a list that fails after it will pause.
        is_silent = ended.trouble is Trouble.SILENT
        pause_s = 0 if is_silent else self._backoff.pause_s(self._clock(), ended.retry_after_s)
        _log.warning(
            "%s: %s: %s; %s in %.1f s",
            self.name,
            ended.trouble,
            ended.detail,
            "listing again" if self._must_list else f"watching again from version {self._version}",
            pause_s,
        )
        return pause_s

    def _list(self) -> Ended:
        """List everything and hand it over.

        Only decoded values outlive their page. When a continue token expires the list starts anew; should that
        happen again, it is taken in one piece, which cannot expire.
        """
        params = dict(self._params)
        if self._expired_lists <= MOST_EXPIRED_LISTS:
            params["limit"] = str(PAGE_SIZE)
        items: list[T] = []
        odd: list[ObjectRef] = []
        version = ""
        while True:
            try:
                page = self._page(params, items, odd)
            except ApiServerError as error:
                if error.status == HTTPStatus.GONE:
                    self._expired_lists += 1
                raise
            except msgspec.DecodeError as error:
                return Ended(trouble=Trouble.MALFORMED, detail=f"a list that is none: {error}")
            if self._stopping.is_set():
                return Ended()
            # All pages are of one moment; should a server mix them, the first is the one to watch from.
            version = version or page.resource_version
            if not page.continue_:
                break
            params["continue"] = page.continue_
        if not version:
            return Ended(trouble=Trouble.MALFORMED, detail="a list without resourceVersion")
        self._sink.replaced(items, version, odd)
        self._version = version
        self._lists += 1
        self._expired_lists = 0
        self._last_contact = self._clock()
        return Ended()

    def _page(self, params: Mapping[str, str], items: list[T], odd: list[ObjectRef]) -> "_ListMetadata":
        """Add what one page holds. The page's bytes are dropped on return: nothing else refers to them."""
        page = _PAGE.decode(self._api_server.get(self._path, params, PAGE_TIMEOUT_S))
        for raw in page.items or ():
            try:
                items.append(self._decode(raw))
            except Exception as error:  # noqa: BLE001 - whatever is odd about one object, the others count
                odd.append(self._complain(raw, error))
        return page.metadata

    def _watch(self) -> Ended:
        """Follow one watch from the last version."""
        opened_at, opened_from = self._clock(), self._version
        params = {
            **self._params,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_MIN_S + int(self._draw() * (WATCH_MAX_S - WATCH_MIN_S))),
        }
        with self._api_server.stream(self._path, params, self._silence_s) as stream, self._holding(stream):
            self._watches += 1
            try:
                ended = self.follow(stream)
            except ApiServerError as error:
                ended = by_error(error)
        if ended.must_list:
            return ended
        now = self._clock()
        # The rule looks at the clock and not at the kind of end: a proxy that closes idle streams, or a server
        # that waits for a version which a restore of etcd took back, is silent without ever timing out. A server
        # that refuses the watch is not silent: what it has not lost meanwhile, the watch can still tell.
        silent_s = now - (opened_at if self._last_contact is None else self._last_contact)
        if silent_s >= self._silence_s:
            detail = f"neither event nor bookmark for {silent_s:.0f} s"
            return Ended(trouble=Trouble.SILENT, detail=detail, must_list=True)
        if ended.trouble is None and self._version == opened_from and now - opened_at < SHORT_WATCH_S:
            return Ended(trouble=Trouble.SHORT, detail="a watch ended at once")
        return ended

    @contextmanager
    def _holding(self, stream: Lines) -> Iterator[None]:
        """Let `stop` reach the open stream."""
        with self._stream_lock:
            self._stream = stream
            if self._stopping.is_set():
                stream.interrupt()
        try:
            yield
        finally:
            with self._stream_lock:
                self._stream = None

    def _upsert(self, raw: msgspec.Raw) -> str:
        self._events += 1
        try:
            item = self._decode(raw)
            self._sink.upserted(item)
            return self._version_of(item)
        except Exception as error:  # noqa: BLE001 - one odd object never stops an informer
            ref = self._complain(raw, error)
            self._sink.undecodable(ref)
            return ref.resource_version

    def _delete(self, ref: ObjectRef) -> None:
        self._events += 1
        try:
            self._sink.deleted(ref)
        except Exception as error:  # noqa: BLE001 - the same
            self._complain_of(ref, error)
            self._sink.undecodable(ref)

    def _complain(self, raw: msgspec.Raw, error: Exception) -> ObjectRef:
        """Count an odd object, log it once, and return what is readable of it."""
        try:
            ref = _OBJECT.decode(raw).metadata
        except msgspec.DecodeError:
            ref = ObjectRef()
        self._complain_of(ref, error)
        return ref

    def _complain_of(self, ref: ObjectRef, error: Exception) -> None:
        self._errors[Trouble.ODD_OBJECT] += 1
        if ref.uid not in self._complained and len(self._complained) < MOST_COMPLAINTS:
            self._complained.add(ref.uid)
            _log.error("%s: %s (uid %s) cannot be used: %s", self.name, ref, ref.uid, error)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None  # Go writes a slice that was never filled as null


class _Object(msgspec.Struct):
    metadata: ObjectRef


_EVENT = msgspec.json.Decoder(_Event)
_PAGE = msgspec.json.Decoder(_Page)
_OBJECT = msgspec.json.Decoder(_Object)

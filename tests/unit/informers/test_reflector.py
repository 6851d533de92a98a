import logging
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from operator import attrgetter

import msgspec
import pytest
from fake_api_server import (
    FakeApiServer,
    body,
    bookmark,
    error_event,
    event,
    hang_up,
    kubeconfig,
    page,
    pod,
    running,
    silence,
    status,
    stream,
)

from webhook.errors import ApiServerError
from webhook.informers.endings import Backoff, Ended, Trouble
from webhook.informers.reflector import MOST_COMPLAINTS, ObjectRef, Reflector
from webhook.kube import KubeClient

PODS = "/api/v1/pods"


class Pod(msgspec.Struct, frozen=True):
    """What the tests keep of a pod: enough to see states and identities."""

    name: str
    uid: str
    resource_version: str
    memory_mib: int


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str


class _PodObject(msgspec.Struct):
    metadata: _Metadata
    memory: int = 0


def decode(raw: msgspec.Raw) -> Pod:
    """Decode a pod; a `memory` that is no number makes it an odd object."""
    item = msgspec.json.decode(raw, type=_PodObject)
    return Pod(item.metadata.name, item.metadata.uid, item.metadata.resource_version, item.memory)


class Books:
    """A sink that keeps pods by UID, and remembers every call."""

    def __init__(self):
        self.pods: dict[str, Pod] = {}
        self.calls: list[tuple] = []
        self.fail_on: set[tuple[str, str]] = set()

    @property
    def used(self) -> int:
        """The sum of all pods."""
        return sum(item.memory_mib for item in self.pods.values())

    def replaced(self, items: Sequence[Pod], resource_version: str, odd: Sequence[ObjectRef]) -> None:
        """Keep what is odd as it was known."""
        self._note("replaced", resource_version)
        kept = {ref.uid: self.pods[ref.uid] for ref in odd if ref.uid in self.pods}
        self.pods = kept | {item.uid: item for item in items}

    def upserted(self, item: Pod) -> None:
        """Keep the pod."""
        self._note("upserted", item.name)
        self.pods[item.uid] = item

    def deleted(self, ref: ObjectRef) -> None:
        """Drop the pod."""
        self._note("deleted", ref.name)
        self.pods.pop(ref.uid, None)

    def undecodable(self, ref: ObjectRef) -> None:
        """Keep what was known."""
        self._note("undecodable", ref.name)

    def progressed(self, resource_version: str) -> None:
        """Change nothing."""
        self._note("progressed", resource_version)

    def _note(self, call: str, what: str) -> None:
        self.calls.append((call, what))
        if (call, what) in self.fail_on:
            raise RuntimeError(f"{call} {what} cannot be taken")


class Timeline:
    """A clock that only pauses advance."""

    def __init__(self):
        self.now = 1000.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the time."""
        self.pauses.append(seconds)
        self.now += seconds


def offline(sink: Books, timeline: Timeline | None = None) -> Reflector[Pod]:
    """Return a reflector whose stream is fed by hand."""
    return Reflector(
        name="pods",
        api_server=None,
        path=PODS,
        decode=decode,
        version_of=attrgetter("resource_version"),
        sink=sink,
        clock=(timeline or Timeline()).clock,
    )


# Lines of one watch.


@pytest.mark.parametrize(
    ("lines", "want_calls", "want"),
    [
        pytest.param([], [], Ended(), id="a watch that ends with nothing ends well"),
        pytest.param(
            [event("ADDED", pod("a", 5)), event("MODIFIED", pod("a", 6))],
            [("upserted", "a"), ("progressed", "5"), ("upserted", "a"), ("progressed", "6")],
            Ended(),
            id="added and modified are the same to a sink",
        ),
        pytest.param(
            [event("DELETED", pod("a", 7))],
            [("deleted", "a"), ("progressed", "7")],
            Ended(),
            id="a deletion carries the version of the deletion",
        ),
        pytest.param(
            [event("DELETED", pod("a", 7, memory="odd"))],
            [("deleted", "a"), ("progressed", "7")],
            Ended(),
            id="an odd object can be deleted",
        ),
        pytest.param([bookmark(9)], [("progressed", "9")], Ended(), id="a bookmark moves the version and no object"),
        pytest.param(
            [event("ADDED", pod("a", 5, memory="odd")), event("ADDED", pod("b", 6))],
            [("undecodable", "a"), ("progressed", "5"), ("upserted", "b"), ("progressed", "6")],
            Ended(),
            id="one odd object does not stop the next",
        ),
        pytest.param(
            [error_event(410, "Expired"), event("ADDED", pod("a", 5))],
            [],
            Ended(trouble=Trouble.EXPIRED, detail="410 Expired: ", must_list=True),
            id="an ERROR event of code 410 asks for a list",
        ),
        pytest.param(
            [error_event(0, "Gone")],
            [],
            Ended(trouble=Trouble.EXPIRED, detail="0 Gone: ", must_list=True),
            id="an ERROR event whose reason says that the version is gone asks for a list",
        ),
        pytest.param(
            [error_event(500, "InternalError")],
            [],
            Ended(trouble=Trouble.SERVER, detail="500 InternalError: "),
            id="another ERROR event resumes from the last version",
        ),
        pytest.param(
            [event("ADDED", pod("a", 5)), event("ADDED", pod("b", 6))[:40]],
            [("upserted", "a"), ("progressed", "5")],
            Ended(trouble=Trouble.MALFORMED, detail="Input data was truncated, in a line of 40 bytes"),
            id="a line that was cut ends the watch",
        ),
        pytest.param(
            [b'{"type": "SNAPSHOT", "object": {}}'],
            [],
            Ended(trouble=Trouble.MALFORMED, detail="an event of type 'SNAPSHOT'"),
            id="an event of a kind that is not known ends the watch",
        ),
        pytest.param(
            [b'{"type": "ERROR", "object": 7}'],
            [],
            Ended(
                trouble=Trouble.MALFORMED,
                detail="an ERROR event without a Status: Expected `object`, got `int`",
            ),
            id="an ERROR event without a Status is malformed",
        ),
        pytest.param(
            [b'{"type": "DELETED", "object": {"metadata": {"uid": 7}}}'],
            [],
            Ended(
                trouble=Trouble.MALFORMED,
                detail="DELETED: Expected `str`, got `int` - at `$.metadata.uid`",
                must_list=True,
            ),
            id="a deletion of nobody knows what asks for a list",
        ),
        pytest.param(
            [b'{"type": "ADDED", "object": {"metadata": []}}'],
            [("undecodable", "")],
            Ended(),
            id="an object without metadata is odd and leaves the version",
        ),
    ],
)
def test_lines_of_a_watch(lines, want_calls, want):
    books = Books()

    assert offline(books).follow(lines) == want

    assert books.calls == want_calls


def test_an_object_that_the_sink_cannot_take_does_not_stop_the_next(caplog):
    books = Books()
    books.fail_on = {("upserted", "a"), ("deleted", "a")}
    reflector = offline(books)

    reflector.follow([event("ADDED", pod("a", 5)), event("DELETED", pod("a", 6)), event("ADDED", pod("b", 7))])

    assert [call for call in books.calls if call[0] != "progressed"] == [
        ("upserted", "a"),
        ("undecodable", "a"),
        ("deleted", "a"),
        ("undecodable", "a"),
        ("upserted", "b"),
    ]
    assert reflector.statistics().errors[Trouble.ODD_OBJECT] == 2


def test_an_odd_object_is_logged_once_and_counted_each_time(caplog):
    reflector = offline(Books())

    reflector.follow([event("MODIFIED", pod("a", version, memory="odd")) for version in range(50)])

    assert reflector.statistics().errors[Trouble.ODD_OBJECT] == 50
    assert [record.message for record in caplog.records] == [
        "pods: team-a/a (uid uid-a) cannot be used: Expected `int`, got `str` - at `$.memory`"
    ]


def test_a_flood_of_odd_objects_does_not_flood_the_log(caplog):
    reflector = offline(Books())

    reflector.follow([event("ADDED", pod(f"p{number}", number, memory="odd")) for number in range(1000)])

    assert len(caplog.records) == MOST_COMPLAINTS
    assert reflector.statistics().errors[Trouble.ODD_OBJECT] == 1000


def test_events_and_bookmarks_are_contact():
    timeline = Timeline()
    reflector = offline(Books(), timeline)
    seen = []
    for line in (event("ADDED", pod("a", 5)), bookmark(6), error_event(500, "InternalError")):
        timeline.now += 10
        reflector.follow([line])
        seen.append(reflector.last_contact)

    assert seen == [1010, 1020, 1020]
    statistics = reflector.statistics()
    assert (statistics.events, statistics.bookmarks, statistics.resource_version) == (1, 1, "6")


# Pauses.


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(lambda: 1.0)

    assert [backoff.pause_s(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_no_draw_makes_the_pauses_vanish():
    backoff = Backoff(lambda: 0.0)

    assert [backoff.pause_s(0.0) for _ in range(4)] == [0.5, 1, 2, 4]


def test_a_quiet_minute_forgets_the_past():
    backoff = Backoff(lambda: 1.0)
    assert [backoff.pause_s(0.0), backoff.pause_s(1.0), backoff.pause_s(3.0)] == [1, 2, 4]

    assert backoff.pause_s(66.0) == 8  # 59 s after the pause of 4 s ended
    assert backoff.pause_s(66.0 + 8 + 61) == 1


@pytest.mark.parametrize(("asked", "want"), [(5.0, 5), (0.0, 1), (3600.0, 30)])
def test_a_server_that_asks_for_more_gets_it_within_bounds(asked, want):
    assert Backoff(lambda: 1.0).pause_s(0.0, asked) == want


# The loop against a server. The clock is moved by pauses alone, unless a test says otherwise.


class World:
    """A fake API server, a reflector in a thread, and what it told its sink."""

    def __init__(self, server: FakeApiServer, client: KubeClient):
        self.server = server
        self.client = client
        self.books = Books()
        self.timeline = Timeline()
        self.reflector: Reflector[Pod] | None = None
        self.max_pauses = 1000

    def start(self, **options) -> None:
        """Start a reflector; options replace what is usual here."""
        self.reflector = self.new(**options)
        self.reflector.start()

    def new(self, **options) -> Reflector[Pod]:
        """Return a reflector that is not started."""
        return Reflector(
            **{
                "name": "pods",
                "api_server": self.client,
                "path": PODS,
                "decode": decode,
                "version_of": attrgetter("resource_version"),
                "sink": self.books,
                "clock": self.timeline.clock,
                "sleep": self._sleep,
                "draw": lambda: 0.5,
                **options,
            }
        )

    def _sleep(self, seconds: float) -> None:
        self.timeline.sleep(seconds)
        if len(self.timeline.pauses) >= self.max_pauses:
            self.reflector._stopping.wait()

    @property
    def errors(self) -> dict[str, int]:
        """The troubles that were met, by name."""
        return {str(kind): count for kind, count in self.reflector.statistics().errors.items() if count}

    def watched_from(self) -> list[str]:
        """Return the versions that watches were asked from."""
        return [query["resourceVersion"] for query in self.server.queries(watch=True)]


@pytest.fixture
def world(tmp_path):
    with running() as server, KubeClient.from_kubeconfig(kubeconfig(tmp_path, server.port)) as client:
        world = World(server, client)
        yield world
        if world.reflector is not None:
            assert world.reflector.stop()


def eventually(condition, timeout_s=10.0):
    """Wait for what another thread does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_a_list_then_a_watch_from_its_version(world):
    world.server.lists = [page(100, pod("p1", 90, memory=4000))]
    world.server.watches = [stream(event("ADDED", pod("p2", 101, memory=2000)), end="open")]

    world.start(params={"fieldSelector": "spec.nodeName!="})

    eventually(lambda: world.books.used == 6000)
    assert world.server.requests[0] == (PODS, {"fieldSelector": "spec.nodeName!=", "limit": "500"})
    (watch,) = world.server.queries(watch=True)
    assert watch == {
        "fieldSelector": "spec.nodeName!=",
        "watch": "true",
        "resourceVersion": "100",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "450",
    }
    assert world.books.calls[-2:] == [("upserted", "p2"), ("progressed", "101")]


def test_a_load_lists_every_page_once_and_watches_nothing(world):
    world.server.lists = [page(100, pod("p1", 90, memory=4000), token="more"), page(100, pod("p2", 91, memory=2000))]

    world.reflector = world.new()
    world.reflector.load()

    assert world.books.used == 6000
    assert [query.get("continue") for query in world.server.queries(watch=False)] == [None, "more"]
    assert world.server.queries(watch=True) == []
    assert world.reflector.statistics().resource_version == "100"


def test_a_load_whose_continue_token_expires_twice_takes_the_list_in_one_piece(world):
    expired = status(410, "Expired")
    first = page(100, pod("p1", 90), token="more")
    world.server.lists = [first, expired, first, expired, page(101, pod("p1", 90, memory=7))]

    world.reflector = world.new()
    world.reflector.load()

    assert world.books.used == 7
    assert [query.get("limit") for query in world.server.queries(watch=False)] == ["500", "500", "500", "500", None]


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(status(403, "Forbidden", "not you"), "403 Forbidden: not you", id="a refusal"),
        pytest.param(status(410, "Expired"), "410 Expired", id="a list that never holds still"),
        pytest.param(body(b"[]"), "pods: a list that is none", id="no list"),
    ],
)
def test_a_load_that_fails_is_an_error(world, answer, want):
    world.server.lists = [answer]
    world.reflector = world.new()

    with pytest.raises(ApiServerError, match=want):
        world.reflector.load()

    assert world.books.calls == []


def test_ready_only_after_the_first_list_is_applied(world):
    held = threading.Event()

    def held_back(handler, query):
        held.wait()
        page(100)(handler, query)

    world.server.lists = [held_back]
    world.start()

    eventually(lambda: world.server.requests)
    statistics = world.reflector.statistics()
    assert (statistics.has_synced, statistics.last_contact, statistics.lists) == (False, None, 0)
    held.set()
    eventually(lambda: world.reflector.has_synced)
    assert world.reflector.last_contact == world.timeline.now
    assert world.reflector.statistics().resource_version == "100"


@pytest.mark.parametrize(
    "expiry",
    [
        pytest.param(stream(error_event(410, "Expired")), id="as an ERROR event"),
        pytest.param(status(410, "Expired", "too old resource version: 100 (170)"), id="as an HTTP status"),
        pytest.param(status(400, "BadRequest", "invalid resource version"), id="as a version that cannot be read"),
    ],
)
def test_an_expired_version_is_listed_again_and_the_deleted_are_gone(world, expiry):
    world.server.lists = [
        page(100, pod("p1", 90, memory=4000), pod("p2", 91, memory=2000)),
        page(180, pod("p2", 91, memory=2000)),
    ]
    world.server.watches = [expiry, silence()]

    world.start()

    eventually(lambda: world.watched_from() == ["100", "180"])
    assert world.books.used == 2000
    assert len(world.server.queries(watch=False)) == 2
    assert world.reflector.statistics().relists == 1
    assert world.timeline.pauses == [0.75]


def test_a_server_that_says_gone_for_ever_is_listed_a_few_times_in_ten_seconds(world):
    world.server.lists = [page(100)]
    world.server.watches = [stream(error_event(410, "Expired"))]
    world.max_pauses = 4

    world.start(draw=lambda: 0.0)

    eventually(lambda: len(world.timeline.pauses) == 4)
    assert sum(world.timeline.pauses) == 7.5
    assert len(world.server.queries(watch=False)) == 4


def test_a_pod_made_anew_under_its_name_shows_as_another_uid(world):
    world.server.lists = [
        page(100, pod("p1", 90, uid="old", memory=4000)),
        page(180, pod("p1", 170, uid="new", memory=1000)),
    ]
    world.server.watches = [status(410, "Gone"), silence()]

    world.start()

    eventually(lambda: set(world.books.pods) == {"new"})
    assert ("deleted", "p1") not in world.books.calls


def test_silence_ends_in_a_new_list(world):
    world.server.lists = [page(100, pod("p1", 90, memory=4000)), page(180)]
    world.server.watches = [silence()]

    world.start(clock=time.monotonic, silence_s=0.2)

    eventually(lambda: world.books.calls and world.books.used == 0)
    assert world.errors["silent"] >= 1
    assert world.timeline.pauses == []
    assert set(world.errors) == {"silent"}


def test_watches_that_end_politely_without_a_word_are_silence_too(world):
    def ends_after_40_s(handler, query):
        world.timeline.now += 40
        stream()(handler, query)

    world.server.lists = [page(100, pod("p1", 90, memory=4000)), page(180)]
    world.server.watches = [ends_after_40_s, ends_after_40_s, silence()]

    world.start()

    eventually(lambda: world.watched_from() == ["100", "100", "180"])
    assert world.errors == {"silent": 1}


def test_a_server_that_was_away_for_long_is_watched_from_where_we_were(world):
    """A list of everything by every replica at once is the last thing that a server needs which just came back."""

    def refuses(handler, query):
        world.timeline.now += 60
        status(503, "ServiceUnavailable")(handler, query)

    world.server.lists = [page(100)]
    world.server.watches = [refuses, refuses, refuses, stream(bookmark(150), end="open")]

    world.start()

    eventually(lambda: world.reflector.statistics().bookmarks == 1)
    assert world.watched_from() == ["100"] * 4
    assert len(world.server.queries(watch=False)) == 1


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(stream(event("ADDED", pod("p2", 102))[:30], end="cut"), id="inside a chunk's line"),
        pytest.param(stream(event("ADDED", pod("p2", 102))[:30]), id="by a polite end"),
        pytest.param(stream(end="cut"), id="between two lines"),
        pytest.param(stream(b'{"type": "ADDED", "object": }\n', end="open"), id="by something that is no JSON"),
    ],
)
def test_a_watch_that_is_cut_resumes_from_the_last_version(world, second):
    world.server.lists = [page(100)]
    world.server.watches = [
        stream(event("ADDED", pod("p1", 101, memory=1))),
        second,
        stream(event("ADDED", pod("p2", 102, memory=2)), end="open"),
    ]

    world.start()

    eventually(lambda: world.books.used == 3)
    assert world.watched_from() == ["100", "101", "101"]
    assert len(world.server.queries(watch=False)) == 1
    assert world.timeline.pauses == [0.75]


def test_a_watch_that_ends_after_news_is_opened_again_at_once(world):
    world.server.lists = [page(100)]
    world.server.watches = [stream(bookmark(101)), stream(bookmark(102)), silence()]

    world.start()

    eventually(lambda: world.watched_from() == ["100", "101", "102"])
    assert world.timeline.pauses == []


def test_a_watch_that_ends_at_once_with_nothing_does_not_loop_hot(world):
    world.server.lists = [page(100)]
    world.server.watches = [stream()]
    world.max_pauses = 4

    world.start()

    eventually(lambda: len(world.timeline.pauses) == 4)
    assert len(world.watched_from()) == 4
    assert world.timeline.pauses == [0.75, 1.5, 3, 6]
    assert world.errors == {"short": 4}


@pytest.mark.parametrize("code", [429, 503])
def test_a_throttling_server_is_given_the_time_it_asks_for(world, code):
    throttled = status(code, "TooManyRequests", headers={"Retry-After": "7"})
    world.server.lists = [throttled, page(100)]
    world.server.watches = [throttled, silence()]

    world.start()

    eventually(lambda: len(world.watched_from()) == 2)
    assert world.timeline.pauses == [7, 7]
    assert len(world.server.queries(watch=False)) == 2


@pytest.mark.parametrize(
    ("answer", "want_trouble"),
    [
        pytest.param(status(500, "InternalError"), "server", id="an internal error"),
        pytest.param(status(401, "Unauthorized"), "unauthorized", id="not authenticated"),
        pytest.param(status(403, "Forbidden", "pods is forbidden"), "forbidden", id="not allowed"),
        pytest.param(status(404, "NotFound"), "not_found", id="no such type"),
        pytest.param(status(422, "Invalid"), "refused", id="another refusal"),
        pytest.param(body(b"<html>", headers={"Content-Type": "text/html"}), "malformed", id="a page of a proxy"),
        pytest.param(body(b'{"metadata": {}, "items": []}'), "malformed", id="a list without a version"),
        pytest.param(hang_up(), "unreachable", id="no answer"),
    ],
)
def test_a_list_that_fails_is_tried_again_and_counted(world, answer, want_trouble, caplog):
    has_second_try = want_trouble in {"unreachable", "unauthorized"}  # by the client, before the reflector hears of it
    world.server.lists = [*([answer] * (1 + has_second_try)), page(100, pod("p1", 90, memory=1))]

    world.start()

    eventually(lambda: world.books.used == 1)
    assert world.errors == {want_trouble: 1}
    assert world.timeline.pauses == [0.75]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_failed_list_after_an_expired_watch_is_followed_by_a_list(world):
    world.server.lists = [page(100), status(500, "InternalError"), page(180)]
    world.server.watches = [status(410, "Expired"), silence()]

    world.start()

    eventually(lambda: world.watched_from() == ["100", "180"])
    assert len(world.server.queries(watch=False)) == 3


def test_a_watch_that_fails_resumes_without_a_list(world):
    world.server.lists = [page(100)]
    world.server.watches = [status(403, "Forbidden"), hang_up(), hang_up(), stream(bookmark(101), end="open")]

    world.start()

    eventually(lambda: world.reflector.statistics().bookmarks == 1)
    assert len(world.server.queries(watch=False)) == 1
    assert world.errors == {"forbidden": 1, "unreachable": 1}


def test_a_list_comes_in_pages(world):
    world.server.lists = [
        page(100, pod("p1", 90, memory=1), token="1/2 &"),
        page(100, pod("p2", 91, memory=2), token="3"),
        page(100, pod("p3", 92, memory=4)),
    ]

    world.start()

    eventually(lambda: world.books.used == 7)
    queries = world.server.queries(watch=False)
    assert [query.get("continue") for query in queries] == [None, "1/2 &", "3"]
    assert world.reflector.statistics().lists == 1


def test_a_continue_token_that_expires_begins_the_list_anew_and_at_last_in_one_piece(world):
    expired = status(410, "Expired", "The provided continue parameter is too old")
    world.server.lists = [
        *(page(100, pod("p1", 90, memory=1), token="t"), expired),
        *(page(110, pod("p1", 90, memory=1), token="t"), expired),
        page(120, pod("p2", 91, memory=2)),
    ]

    world.start()

    eventually(lambda: world.watched_from() == ["120"])
    assert world.books.used == 2
    queries = world.server.queries(watch=False)
    assert [query.get("limit") for query in queries] == ["500", "500", "500", "500", None]
    assert [call for call in world.books.calls if call[0] == "replaced"] == [("replaced", "120")]
    assert world.timeline.pauses == [0.75, 1.5]


def test_an_odd_object_in_a_list_leaves_the_others_and_what_was_known_of_it(world):
    world.server.lists = [
        page(100, pod("p1", 90, memory=4000), pod("p2", 91, memory=2000)),
        page(180, pod("p1", 170, memory=None), pod("p2", 171, memory=1000)),
    ]
    world.server.watches = [status(410, "Expired"), silence()]

    world.start()

    eventually(lambda: world.watched_from() == ["100", "180"])
    assert world.books.used == 5000
    assert world.errors == {"expired": 1, "odd_object": 1}


def test_a_sink_that_cannot_take_a_list_is_given_another(world, caplog):
    world.books.fail_on = {("replaced", "100")}
    world.server.lists = [page(100), page(101, pod("p1", 90, memory=1))]

    world.start()

    eventually(lambda: world.books.used == 1)
    assert world.errors == {"internal": 1}
    assert "replaced 100 cannot be taken" in caplog.text


def test_a_renewed_token_is_picked_up_without_a_restart(world, tmp_path):
    world.server.accepted_tokens = {"t1"}
    world.client = KubeClient.from_kubeconfig(kubeconfig(tmp_path, world.server.port, "t1"))
    world.server.lists = [page(100)]
    world.server.watches = [stream(bookmark(101)), stream(bookmark(102)), silence()]

    def changes_tokens(handler, query):
        world.server.accepted_tokens = {"t2"}
        kubeconfig(tmp_path, world.server.port, "t2")
        stream(bookmark(101))(handler, query)

    world.server.watches[0] = changes_tokens
    with world.client:
        world.start()

        eventually(lambda: world.watched_from() == ["100", "101", "101", "102"])
        assert world.errors == {}
        assert world.reflector.stop()


def test_stop_ends_an_open_watch_at_once(world):
    world.server.lists = [page(100)]
    world.start()
    eventually(world.watched_from)
    assert world.reflector.is_running

    started = time.monotonic()

    assert world.reflector.stop()
    assert not world.reflector.is_running
    assert time.monotonic() - started < 1
    assert world.errors == {}


def test_stop_during_a_list_applies_nothing(world):
    asked, held = threading.Event(), threading.Event()

    def held_back(handler, query):
        asked.set()
        held.wait(10)
        page(100, pod("p1", 90, memory=1))(handler, query)

    world.server.lists = [held_back]
    world.start()
    asked.wait(10)

    assert not world.reflector.stop(timeout_s=0.01)
    held.set()
    assert world.reflector.stop()
    assert world.books.calls == []
    assert world.errors == {}


def test_stop_ends_a_pause_at_once(world):
    world.server.lists = [status(500, "InternalError", headers={"Retry-After": "30"})]
    world.start(sleep=None)
    eventually(lambda: world.errors)

    started = time.monotonic()

    assert world.reflector.stop()
    assert time.monotonic() - started < 1


def test_stop_between_opening_and_holding_a_watch_is_not_missed(world):
    reflector = offline(Books())
    interrupted = []

    class Endless:
        def __iter__(self):
            if interrupted:
                raise ApiServerError(0, "interrupted")
            raise AssertionError("nobody interrupted the stream")

        def interrupt(self):
            interrupted.append(True)

    class Server:
        def get(self, path, params, timeout_s):
            return b'{"metadata": {"resourceVersion": "100"}, "items": []}'

        @contextmanager
        def stream(self, path, params, read_timeout_s):
            reflector.stop()
            yield Endless()

    reflector._api_server = Server()
    reflector.run()

    assert interrupted


def test_a_thousand_reconnects_leave_the_threads_as_they_were(world):
    def next_bookmark(handler, query):
        version = int(query["resourceVersion"]) + 1
        end = "clean" if version % 2 else "cut"
        stream(bookmark(version), end="open" if version >= 1100 else end)(handler, query)

    world.server.lists = [page(100)]
    world.server.watches = [next_bookmark]
    world.start()
    eventually(lambda: world.reflector.statistics().watches >= 50)

    def ours():
        return [thread.name for thread in threading.enumerate() if "process_request_thread" not in thread.name]

    before = ours()
    eventually(lambda: world.reflector.statistics().watches >= 1000, 60)

    assert ours() == before
    assert world.reflector.statistics().relists == 0

"""Where the cluster's objects come from: the API server, or a directory of manifests. Both fill the same sinks."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from webhook.api.node import decode_namespace, decode_node
from webhook.api.pod import decode_pod
from webhook.api.resource_quota import decode_resource_quota
from webhook.errors import SettingsError
from webhook.informers.handlers import NamespaceSink, NodeSink, PodSink, QuotaSink
from webhook.informers.reflector import SILENCE_S, Reflector
from webhook.metrics import InformerFigures
from webhook.server.readers import LedgerReaders
from webhook.state_directory import POLL_INTERVAL_S, StateDirectory

if TYPE_CHECKING:
    from webhook.admission import Rules
    from webhook.kube import KubeClient
    from webhook.ledger import QuotaLedger

_log = logging.getLogger(__name__)

# A watch says something once a minute at least (bookmarks). A view older than this decides nothing.
STALE_AFTER_S = 90.0


@dataclass(frozen=True, slots=True)
class Sinks:
    """The four sinks that keep the ledger current."""

    namespaces: NamespaceSink
    quotas: QuotaSink
    nodes: NodeSink
    pods: PodSink

    @classmethod
    def over(cls, ledger: QuotaLedger, rules: Rules) -> Sinks:
        """Return sinks that fill a ledger."""
        pods = PodSink(ledger, rules)
        return cls(
            namespaces=NamespaceSink(ledger),
            quotas=QuotaSink(ledger, rules),
            nodes=NodeSink(ledger, rules, pods),
            pods=pods,
        )


class Source(Protocol):
    """What the rest of the server asks of a source."""

    def load(self) -> None:
        """Fill the sinks once, in the caller's thread; raise HamiQuotaError. A source that is loaded is not started."""

    def start(self) -> None:
        """Begin to fill the sinks, in threads of its own."""

    def stop(self) -> None:
        """End every thread."""

    def not_ready(self) -> str:
        """Return why the sinks cannot be trusted now; "" when they can."""

    def not_live(self) -> str:
        """Return why only a restart can help; "" while none is needed."""

    def figures(self) -> Iterable[InformerFigures]:
        """Return the state of each informer."""

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        """Return the UID of the pod that is stored under a name, None when none is; raise ApiServerError."""

    def not_a_reader(self, token: str) -> str:
        """Return why the bearer of a token may not read the ledger; "" when it may."""


class ClusterSource:
    """The objects of an API server, kept current by one list-and-watch a resource type.

    Args:
        client: Where to ask.
        sinks: Who is told.
        stale_after_s: Age from which a view decides nothing. A silent watch is given up sooner, so that the list which
            follows it has a sixth of this time before the view is stale.
        namespace: The only namespace whose quotas and pods are wanted; "" for all.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        sinks: Sinks,
        *,
        namespace: str = "",
        stale_after_s: float = STALE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._readers = LedgerReaders(client, clock)
        self._stale_after_s = stale_after_s
        self._clock = clock

        within = f"/api/v1/namespaces/{quote(namespace, safe='')}" if namespace else "/api/v1"
        only = {"fieldSelector": f"metadata.name={namespace}"} if namespace else {}

        def reflector(
            name: str, path: str, decode: Callable[..., Any], sink: Any, params: Mapping[str, str] | None = None
        ) -> Reflector[Any]:
            return Reflector(
                name=name,
                api_server=client,
                path=path,
                decode=decode,
                version_of=lambda item: item.metadata.resource_version,
                sink=sink,
                params=params,
                silence_s=SILENCE_S * stale_after_s / STALE_AFTER_S,
                clock=clock,
            )

        # Namespaces and nodes first: modes and sizes should be known when the first pods are recorded.
        self._reflectors = (
            reflector("namespaces", "/api/v1/namespaces", decode_namespace, sinks.namespaces, only),
            reflector("nodes", "/api/v1/nodes", decode_node, sinks.nodes),
            reflector("resourcequotas", f"{within}/resourcequotas", decode_resource_quota, sinks.quotas),
            reflector("pods", f"{within}/pods", sinks.pods.decode, sinks.pods),
        )

    def load(self) -> None:
        """List every resource type once.

        Raises:
            ApiServerError: A list failed.
        """
        for reflector in self._reflectors:
            reflector.load()

    def start(self) -> None:
        """Start every reflector."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """Stop every reflector."""
        for reflector in self._reflectors:
            reflector.stop()

    def not_ready(self) -> str:
        """Return what is missing or stale."""
        waiting = [reflector.name for reflector in self._reflectors if not reflector.has_synced]
        if waiting:
            return f"waiting for the first list of {', '.join(waiting)}"
        now = self._clock()
        for reflector in self._reflectors:
            heard_at = reflector.last_contact
            if heard_at is None or now - heard_at > self._stale_after_s:
                silent_s = 0 if heard_at is None else now - heard_at
                return f"no word of {reflector.name} from the API server for {silent_s:.0f} s"
        return ""

    def not_live(self) -> str:
        """Return which reflector's thread has ended: nothing but a restart brings it back."""
        dead = [reflector.name for reflector in self._reflectors if not reflector.is_running]
        return f"the informer of {', '.join(dead)} has ended" if dead else ""

    def figures(self) -> Iterable[InformerFigures]:
        """Return the state of each reflector."""
        now = self._clock()
        for reflector in self._reflectors:
            state = reflector.statistics()
            yield InformerFigures(
                resource=state.name,
                age_s=None if state.last_contact is None else now - state.last_contact,
                lists=state.lists,
                errors={str(kind): count for kind, count in state.errors.items()},
                resource_version=state.resource_version,
            )

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:
        """Ask the API server."""
        return self._client.pod_uid(namespace, name, timeout_s)

    def not_a_reader(self, token: str) -> str:
        """Ask the API server who it is, and what RBAC lets it do."""
        return self._readers.refusal(token)


class StateSource:
    """The objects in a directory of manifests, in place of an API server.

    Nothing creates pods there but people: an admitted pod that nobody writes down is looked up and forgotten as one
    that never appeared.
    """

    def __init__(self, directory: Path, sinks: Sinks) -> None:
        self._stopping = threading.Event()
        self._state = StateDirectory(
            directory,
            {
                "Namespace": _handing(decode_namespace, sinks.namespaces),
                "Node": _handing(decode_node, sinks.nodes),
                "ResourceQuota": _handing(decode_resource_quota, sinks.quotas),
                "Pod": _handing(decode_pod, sinks.pods),
            },
        )

    def load(self) -> None:
        """Read everything.

        Raises:
            DecodeError: A file is broken; the error names file and line.
        """
        self._state.load()

    def start(self) -> None:
        """Read everything, and follow changes in a thread.

        Raises:
            DecodeError: A file is broken; the error names file and line.
        """
        self.load()
        threading.Thread(target=self._follow, name="state-directory", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def not_ready(self) -> str:
        """Return "" once the directory was read."""
        return "" if self._state.has_synced else "waiting for the state directory"

    def not_live(self) -> str:
        """Return "": a directory cannot be lost the way a connection can."""
        return ""

    def figures(self) -> Iterable[InformerFigures]:
        """Return nothing: there are no informers."""
        return ()

    def pod_uid(self, namespace: str, name: str, timeout_s: float) -> str | None:  # noqa: ARG002 - nothing is waited for
        """Look into the files."""
        return self._state.pod_uid(namespace, name)

    def not_a_reader(self, token: str) -> str:  # noqa: ARG002 - whoever it is
        """Refuse: nobody is there who would know the token."""
        return "a state directory knows no users: only callers on the same machine may read the ledger"

    def _follow(self) -> None:
        while not self._stopping.wait(POLL_INTERVAL_S):
            try:
                self._state.poll()
            except Exception:  # noqa: BLE001 - whatever it is
                # Whatever it is, the next look may find it mended; a thread that ended would never look again.
                _log.exception("the state directory could not be followed")


def _handing(decode: Callable[[bytes], Any], sink: Any) -> Callable[[list[bytes]], None]:
    """Return what decodes a kind's objects, which the directory has checked, and hands them to its sink."""
    return lambda texts: sink.replaced(list(map(decode, texts)), "", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the cluster's objects come from: a directory, a kubeconfig, or else the cluster the process runs in.

    Attributes:
        stale_after_s: How long an API server may be silent until what it said decides nothing.
        namespace: The only namespace whose quotas and pods are asked of an API server; "" for all.
    """

    state: Path | None = None
    kubeconfig: str | None = None
    context: str | None = None
    stale_after_s: float = STALE_AFTER_S
    namespace: str = ""

    def check(self) -> None:
        """See that the origin can be opened, as far as that shows without the client library.

        Raises:
            SettingsError: Two origins are given, or none, or there is no such file.
        """
        if self.state is not None:
            if self.kubeconfig or self.context:
                raise SettingsError("--state and --kubeconfig exclude each other")
        elif self.kubeconfig:
            files = self.kubeconfig.split(os.pathsep)
            if not any(Path(file).expanduser().exists() for file in files):
                raise SettingsError(f"--kubeconfig {self.kubeconfig}: no such file")
        elif not self.context and "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise SettingsError("this is no pod of a cluster: give --kubeconfig, --context or --state")

    def open(self, sinks: Sinks) -> Source:
        """Return the source, not started.

        Raises:
            SettingsError: There is no access to a cluster, or two origins are given.
        """
        self.check()
        if self.state is not None:
            return StateSource(self.state, sinks)
        # The client library takes a third of a second to import; a state directory needs none of it.
        from webhook.kube import KubeClient  # noqa: PLC0415

        in_cluster = not (self.kubeconfig or self.context)
        client = KubeClient.in_cluster() if in_cluster else KubeClient.from_kubeconfig(self.kubeconfig, self.context)
        return ClusterSource(client, sinks, stale_after_s=self.stale_after_s, namespace=self.namespace)

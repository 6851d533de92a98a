"""A directory of manifests in place of an API server: its objects, followed as the files change."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from webhook.api.node import decode_namespace, decode_node
from webhook.api.pod import decode_pod
from webhook.api.resource_quota import decode_resource_quota
from webhook.errors import DecodeError
from webhook.files import Document, Object, manifest_files, read_documents, unreadable

_log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0


class _Identity(NamedTuple):
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def uid(self) -> str:
        """Return a UID that is the same wherever and whenever the object is read."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.kind}/{self.namespace}/{self.name}"))


class _StateObject(NamedTuple):
    identity: _Identity
    origin: str
    content: Object

    @property
    def uid(self) -> str:
        return str(self.content["metadata"]["uid"])

    def with_uid(self, uid: str) -> _StateObject:
        """Return the object under another UID."""
        return self._replace(content={**self.content, "metadata": {**self.content["metadata"], "uid": uid}})


# In the order in which they are handed over: modes, sizes and limits are known before the pods.
_DECODERS: Mapping[str, Callable[[bytes], object]] = {
    "Namespace": decode_namespace,
    "Node": decode_node,
    "ResourceQuota": decode_resource_quota,
    "Pod": decode_pod,
}
_NAMESPACED = frozenset({"ResourceQuota", "Pod"})


def read_state(path: Path) -> list[_StateObject]:
    """Return the objects of one file that a `StateDirectory` hands over; others are skipped.

    Raises:
        DecodeError: As `read_documents`, or an object is none that the API server could have stored.
    """
    return [
        _state_object(document)
        for document in read_documents(path)
        if document.content["kind"] in _DECODERS and document.content.get("apiVersion", "v1") == "v1"
    ]


def _state_object(document: Document) -> _StateObject:
    """Return an object with the namespace and UID that the API server would have given it."""
    kind = document.content["kind"]
    metadata = dict(document.content.get("metadata") or {})
    if not metadata.get("name"):
        raise DecodeError(document.origin, f"the {kind} has no metadata.name")
    if kind in _NAMESPACED:
        metadata["namespace"] = metadata.get("namespace") or "default"
    identity = _Identity(kind, metadata.get("namespace") or "", metadata["name"])
    metadata["uid"] = metadata.get("uid") or identity.uid
    content = {**document.content, "metadata": metadata}
    try:
        _DECODERS[kind](_encoded(content))
    except DecodeError as error:
        raise DecodeError(f"{document.origin}: {error.field}", error.problem) from error
    return _StateObject(identity, document.origin, content)


def _encoded(content: Object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii")


_Signature = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """What was last read of a file.

    Attributes:
        signature: Of what was last looked at, broken or not.
        objects: What it last held while it was whole.
        is_doubted: Whether it was found empty and may be about to be written.
    """

    signature: _Signature
    objects: list[_StateObject]
    is_doubted: bool = False


class StateDirectory:
    """The objects in a directory of manifests, followed as they change.

    A file that breaks while it is followed keeps what it last held, and is complained of once. One that is written in
    place may be read half-way; move a finished file over it where that matters.

    Any thread may call; one at a time is let in, so that the takers below are never called twice at once.

    Args:
        directory: Where the manifests are.
        replaced: By kind (Namespace, Node, ResourceQuota, Pod), who takes the JSON text of every object of that kind.
    """

    def __init__(self, directory: Path, replaced: Mapping[str, Callable[[list[bytes]], None]]) -> None:
        self._directory = directory
        self._replaced = replaced
        self._files: dict[Path, _File] = {}
        self._objects: dict[_Identity, _StateObject] = {}
        self._complaints: dict[object, str] = {}
        self._handed: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.has_synced = False

    def load(self) -> None:
        """Read everything for the first time.

        Raises:
            DecodeError: A file is broken; the error names file and line.
        """
        with self._lock:
            for path in manifest_files(self._directory):
                self._files[path] = _File(_signature(path), read_state(path))
            self._hand_over()
            self.has_synced = True

    def poll(self) -> bool:
        """Read what has changed and hand it over; return whether anything did."""
        with self._lock:
            return self._poll()

    def pod_uid(self, namespace: str, name: str) -> str | None:
        """Return the UID of the pod that stands in the files now under a name, None when none does."""
        with self._lock:
            self._poll()
            found = self._objects.get(_Identity("Pod", namespace, name))
            return found.uid if found else None

    def _poll(self) -> bool:
        before = dict(self._files)
        try:
            paths = manifest_files(self._directory)
        except DecodeError as error:
            self._complain(self._directory, f"{error}; what was read before still counts")
            return False
        self._complaints.pop(self._directory, None)
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
            self._complaints.pop(gone, None)
        for path in paths:
            self._refresh(path)
        return self._files != before and self._hand_over()

    def _refresh(self, path: Path) -> None:
        known = self._files.get(path)
        held = known.objects if known else []
        signature: _Signature = ()
        try:
            signature = _signature(path)
            if known is not None and known.signature == signature and not known.is_doubted:
                return
            objects = read_state(path)
            if _signature(path) != signature:
                # Written while it was read: the next look will tell.
                return
        except DecodeError as error:
            self._complain(path, f"{error}; what was read of it before still counts")
            self._files[path] = _File(signature, held)
            return
        self._complaints.pop(path, None)
        is_doubted = bool(held) and not objects and not (known and known.is_doubted)
        self._files[path] = _File(signature, held if is_doubted else objects, is_doubted)

    def _complain(self, subject: object, problem: str) -> None:
        if self._complaints.get(subject) != problem:
            self._complaints[subject] = problem
            _log.warning("%s", problem)

    def _hand_over(self) -> bool:
        """Tell the takers of every kind that has changed; return whether any has."""
        self._objects = self._current()
        is_changed = False
        for kind in _DECODERS:
            texts = [_encoded(item.content) for identity, item in self._objects.items() if identity.kind == kind]
            digest = hashlib.sha256(b"\0".join(texts)).digest()
            if self._handed.get(kind) != digest:
                self._replaced[kind](texts)
                self._handed[kind] = digest
                is_changed = True
        return is_changed

    def _current(self) -> dict[_Identity, _StateObject]:
        """Return what all files hold together; no two objects have one name, and no two pods one UID."""
        objects: dict[_Identity, _StateObject] = {}
        owners: dict[str, _Identity] = {}
        for path in sorted(self._files):
            for item in self._files[path].objects:
                identity = item.identity
                if identity in objects:
                    self._complain(
                        identity,
                        f"{identity} stands at {objects[identity].origin} and at {item.origin}: the later counts",
                    )
                owner = owners.setdefault(item.uid, identity)
                if owner != identity:
                    self._complain(
                        (identity, "uid"), f"{item.origin}: {identity} has the uid of {owner}, and gets one of its own"
                    )
                objects[identity] = item if owner == identity else item.with_uid(identity.uid)
        return objects


def _signature(path: Path) -> _Signature:
    """Return what tells a changed file; with the inode's own time, as copying may preserve that of the content."""
    try:
        state = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_dev, state.st_ino

"""Kubernetes objects in files: manifests as they are, and a directory of them in place of an API server."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from webhook.api.node import decode_namespace, decode_node
from webhook.api.pod import decode_pod
from webhook.api.resource_quota import decode_resource_quota
from webhook.errors import DecodeError

_log = logging.getLogger(__name__)

_SUFFIXES = (".yaml", ".yml", ".json")

POLL_INTERVAL_S = 1.0

Object = dict[str, Any]


# Manifests.


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object of a file.

    Attributes:
        origin: Where it stands, as `file:line`.
        content: The object, as JSON would have it: keys are texts, nothing is shared.
    """

    origin: str
    content: Object


def manifest_files(path: Path) -> list[Path]:
    """Return the manifests that a path names, sorted: itself, or those in a directory and below, hidden ones left out.

    Links are followed, so that a mounted ConfigMap is read once, by its plain names.

    Raises:
        DecodeError: Nothing is there, or a directory cannot be read.
    """
    try:
        if not path.exists():
            raise DecodeError(str(path), "no such file or directory")
        return list(_manifests_below(path, frozenset())) if path.is_dir() else [path]
    except OSError as error:
        raise _unreadable(Path(error.filename or path), error) from error


def _manifests_below(directory: Path, inside: frozenset[Path]) -> Iterator[Path]:
    """Yield the manifests of a directory; a link to a directory that it is inside of is not followed."""
    inside |= {directory.resolve()}
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if entry.resolve() not in inside:
                yield from _manifests_below(entry, inside)
        elif entry.suffix in _SUFFIXES:
            yield entry


def _unreadable(path: Path, error: OSError) -> DecodeError:
    return DecodeError(str(path), f"cannot be read: {error.strerror or error}")


def read_documents(path: Path) -> list[Document]:
    """Return the objects of one file, those of a `kind: List` one by one; empty documents are skipped.

    Raises:
        DecodeError: The file cannot be read, or holds what is no Kubernetes object; the error names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise DecodeError(_at(str(path), error.object, error.start), "is not UTF-8") from error
    return decode_documents(text, str(path))


def decode_documents(text: str, origin: str) -> list[Document]:
    """Return the objects of a text, as `read_documents` does of a file.

    Args:
        text: YAML of any number of documents, or JSON.
        origin: What the text is called in errors, such as its file.

    Raises:
        DecodeError: The text holds what is no Kubernetes object; the error names origin and line.
    """
    return [
        document for line, content in _values(text, origin) for document in _objects(f"{origin}:{line}", content, "")
    ]


def _values(text: str, origin: str) -> Iterator[tuple[int, Any]]:
    """Yield the value of each document that has one, with the line it begins at."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        # YAML is not quite a superset: it has no surrogate escapes, which JSON writers use for every emoji.
        try:
            yield 1, json.loads(text.removeprefix("\ufeff"))
        except (ValueError, RecursionError):
            pass
        else:
            return
    loader = _LOADER(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            line = node.start_mark.line + 1
            if "*" in text and _expands_too_far(node):
                raise DecodeError(f"{origin}:{line}", "its aliases stand for far more than is written")
            content = loader.construct_document(node)
            if content is not None:
                yield line, _as_json(content, f"{origin}:{line}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DecodeError(f"{origin}:{mark.line + 1 if mark else 1}", f"is not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        where = _at(origin, text.encode("utf-8", "surrogatepass"), error.position)
        raise DecodeError(where, f"is not YAML: {error.reason}") from error
    except RecursionError as error:
        raise DecodeError(origin, "is nested too deeply") from error
    finally:
        loader.dispose()


def _at(origin: str, raw: bytes, position: int) -> str:
    """Return `file:line` of a byte."""
    line = raw.count(b"\n", 0, position) + 1
    return f"{origin}:{line}"


def _as_json(content: Any, origin: str) -> Any:
    """Return a value of YAML as the value of JSON that Kubernetes makes of it."""
    try:
        # Binary values, sets and the like stand in no object that is read here.
        return json.loads(json.dumps(content, allow_nan=False, default=str))
    except (TypeError, ValueError) as error:
        raise DecodeError(origin, f"has no JSON: {error}") from error


def _objects(origin: str, content: Any, kind_in_list: str) -> Iterator[Document]:
    """Yield the objects in a value: one, or those of a list; the API server's own lists leave out their items' kind."""
    if not isinstance(content, dict):
        raise DecodeError(origin, "is no Kubernetes object, which is a mapping")
    kind = content.setdefault("kind", kind_in_list)
    if not isinstance(kind, str) or not kind:
        raise DecodeError(origin, "is no Kubernetes object: it has no kind")
    if not isinstance(content.get("metadata") or {}, dict):
        raise DecodeError(origin, "metadata must be a mapping")
    items = content.get("items")
    if kind == "List" and not isinstance(items or [], list):
        raise DecodeError(origin, "items must be a list")
    if kind == "List" or (kind.endswith("List") and isinstance(items, list)):
        for index, item in enumerate(items or ()):
            yield from _objects(f"{origin}: items[{index}]", item, kind.removesuffix("List"))
        return
    yield Document(origin=origin, content=content)


# YAML, as kubectl reads it.

_TAG = "tag:yaml.org,2002:"


# What is a timestamp, a number of seconds and a default value to YAML 1.1 is a text to kubectl.
_TEXTS = frozenset({_TAG + "timestamp", _TAG + "value"})
_NUMBERS = frozenset({_TAG + "int", _TAG + "float"})
_NO_COLON = "(?!.*:)"


def _loader(base: Any) -> Any:
    """Return a loader of PyYAML's that takes plain scalars for what they are to kubectl."""
    resolvers = {
        first: [
            (tag, re.compile(f"{_NO_COLON}(?:{pattern.pattern})", re.VERBOSE) if tag in _NUMBERS else pattern)
            for tag, pattern in choices
            if tag not in _TEXTS
        ]
        for first, choices in base.yaml_implicit_resolvers.items()
    }
    return type("_Loader", (base,), {"yaml_implicit_resolvers": resolvers})


# libyaml's parser, ten times as fast, where PyYAML has it.
_LOADER = _loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))

# A document may stand for this many values, or for this many times those that are written.
_MOST_VALUES = 1_000_000
_MOST_TIMES = 10


def _expands_too_far(node: yaml.Node) -> bool:
    counts: dict[int, int] = {}
    return _count(node, counts) > max(_MOST_VALUES, _MOST_TIMES * len(counts))


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return how many values a node stands for, its aliases written out; endless ones come to more than is allowed."""
    if id(node) not in counts:
        # Until it is counted: what contains itself has no end.
        counts[id(node)] = 1 << 62
        children = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        below = () if isinstance(node, yaml.ScalarNode) else children
        counts[id(node)] = 1 + sum(_count(child, counts) for child in below)
    return counts[id(node)]


# A directory in place of an API server.


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
        raise _unreadable(path, error) from error
    return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_dev, state.st_ino

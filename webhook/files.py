"""Kubernetes objects in files: manifests as they are, and a directory of them in place of an API server."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from webhook.errors import DecodeError

_log = logging.getLogger(__name__)

_SUFFIXES = (".yaml", ".yml", ".json")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

POLL_INTERVAL_S = 1.0

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object of a file.

    Attributes:
        origin: Where it stands, as `file:line`.
    """

    origin: str
    content: Object


def manifest_files(path: Path) -> list[Path]:
    """Return the manifests that a path names, sorted: itself, or those in a directory and below, hidden ones left out.

    Raises:
        DecodeError: Nothing is there.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DecodeError(str(path), "no such file or directory")
    found: list[Path] = []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            found += manifest_files(entry)
        elif entry.suffix in _SUFFIXES:
            found.append(entry)
    return found


def read_documents(path: Path) -> list[Document]:
    """Return the objects of one file, those of a `kind: List` one by one; empty documents are skipped.

    Raises:
        DecodeError: The file cannot be read, or holds what is no Kubernetes object; the error names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DecodeError(str(path), f"cannot be read: {error}") from error
    documents: list[Document] = []
    for line, content in _load(path, text):
        documents += _objects(f"{path}:{line}", content)
    return documents


def _load(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield each YAML document with the line it begins at; JSON is YAML."""
    loader = _LOADER(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            content = loader.construct_document(node)
            if node is not None and content is not None:
                yield node.start_mark.line + 1, content
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DecodeError(f"{path}:{mark.line + 1 if mark else 1}", f"is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DecodeError(str(path), f"is not YAML: {error}") from error
    finally:
        loader.dispose()


def _objects(origin: str, content: Any) -> Iterator[Document]:
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        raise DecodeError(origin, "is no Kubernetes object: it has no kind")
    if content["kind"].endswith("List") and isinstance(content.get("items"), list):
        for index, item in enumerate(content["items"]):
            yield from _objects(f"{origin}: items[{index}]", item)
        return
    yield Document(origin=origin, content=content)


@dataclass(slots=True)
class _File:
    """What was last read of a file: its signature, and its objects of each kind by (namespace, name)."""

    signature: tuple[int, int, int]
    objects: list[Document] = field(default_factory=list)


_KINDS = ("Namespace", "Node", "ResourceQuota", "Pod")
_NAMESPACED = ("ResourceQuota", "Pod")


class StateDirectory:
    """The objects in a directory of manifests, followed as they change.

    A file that breaks while it is followed keeps what it last held, and is complained of once.

    Args:
        directory: Where the manifests are.
        replaced: By kind (Namespace, Node, ResourceQuota, Pod), who takes the JSON text of every object of that kind.
    """

    def __init__(self, directory: Path, replaced: Mapping[str, Callable[[list[bytes]], None]]) -> None:
        self._directory = directory
        self._replaced = replaced
        self._files: dict[Path, _File] = {}
        self._complaints: dict[Path, str] = {}
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
                self._files[path] = _File(_signature(path), read_documents(path))
            self._hand_over()
            self.has_synced = True

    def poll(self) -> bool:
        """Read what has changed and hand it over; return whether anything did."""
        with self._lock:
            before = dict(self._files)
            try:
                paths = manifest_files(self._directory)
            except (DecodeError, OSError) as error:
                self._complain(self._directory, str(error))
                return False
            for gone in self._files.keys() - set(paths):
                del self._files[gone]
            for path in paths:
                self._refresh(path)
            if self._files == before:
                return False
            self._hand_over()
            return True

    def pod_uid(self, namespace: str, name: str) -> str | None:
        """Return the UID of the pod that stands in the files now under a name, None when none does."""
        self.poll()
        with self._lock:
            for item in self._of_kind("Pod"):
                metadata = item["metadata"]
                if (metadata["namespace"], metadata.get("name")) == (namespace, name):
                    return str(metadata["uid"])
        return None

    def _refresh(self, path: Path) -> None:
        known = self._files.get(path)
        try:
            signature = _signature(path)
            if known is not None and known.signature == signature:
                return
            self._files[path] = _File(signature, read_documents(path))
        except (DecodeError, OSError) as error:
            self._complain(path, str(error))
            return
        self._complaints.pop(path, None)

    def _complain(self, path: Path, problem: str) -> None:
        if self._complaints.get(path) != problem:
            self._complaints[path] = problem
            _log.warning("%s; what was read of it before still counts", problem)

    def _hand_over(self) -> None:
        for kind in _KINDS:
            texts = [msgspec.json.encode(item) for item in self._of_kind(kind)]
            digest = hashlib.sha256(b"\0".join(texts)).digest()
            if self._handed.get(kind) != digest:
                self._handed[kind] = digest
                self._replaced[kind](texts)

    def _of_kind(self, kind: str) -> Iterator[Object]:
        for path in sorted(self._files):
            for document in self._files[path].objects:
                if document.content["kind"] == kind:
                    yield _completed(document.content)


def _completed(content: Object) -> Object:
    """Return an object with the namespace and UID that the API server would have given it."""
    kind = content["kind"]
    metadata = dict(content.get("metadata") or {})
    if kind in _NAMESPACED:
        metadata.setdefault("namespace", "default")
    identity = f"{kind}/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    metadata.setdefault("uid", hashlib.sha256(identity.encode()).hexdigest()[:32])
    # Quoted dates become dates in YAML; the wire has texts.
    plain: Object = json.loads(json.dumps({**content, "metadata": metadata}, default=str))
    return plain


def _signature(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino

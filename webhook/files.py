"""Kubernetes objects in manifests: files, directories and texts of YAML or JSON, read as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from webhook.errors import DecodeError

_SUFFIXES = (".yaml", ".yml", ".json")

Object = dict[str, Any]


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
        raise unreadable(Path(error.filename or path), error) from error


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


def unreadable(path: Path, error: OSError) -> DecodeError:
    """Return the error for a path that the system does not let us read."""
    return DecodeError(str(path), f"cannot be read: {error.strerror or error}")


def read_documents(path: Path) -> list[Document]:
    """Return the objects of one file, those of a `kind: List` one by one; empty documents are skipped.

    Raises:
        DecodeError: The file cannot be read, or holds what is no Kubernetes object; the error names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
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
    yield from _yaml_values(text, origin)


def _yaml_values(text: str, origin: str) -> Iterator[tuple[int, Any]]:
    loader = _LOADER(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            line = node.start_mark.line + 1
            if "*" in text:
                _refuse_expansion(node, f"{origin}:{line}")
            content = loader.construct_document(node)
            if content is not None:
                yield line, _as_json(content, f"{origin}:{line}")
    except DecodeError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DecodeError(f"{origin}:{mark.line + 1 if mark else 1}", f"is not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        where = _at(origin, text.encode("utf-8", "surrogatepass"), error.position)
        raise DecodeError(where, f"is not YAML: {error.reason}") from error
    except RecursionError as error:
        raise DecodeError(origin, "is nested too deeply") from error
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        # What the library makes of numbers and dates that are none, such as `0x_`.
        raise DecodeError(origin, f"holds a value that cannot be read: {error!r:.200}") from error
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


def _refuse_expansion(node: yaml.Node, origin: str) -> None:
    if _expands_too_far(node):
        raise DecodeError(origin, "its aliases stand for far more than is written")


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

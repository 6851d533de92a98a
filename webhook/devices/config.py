"""HAMi's device configuration file, read with the line of every key at hand.

The file decides which resources are counted, so anything in it that cannot be meant stops the start: a wrong type, a
key given twice, a resource name Kubernetes would not accept. A key that HAMi does not read is left alone, as HAMi
leaves it, and told: it may be one that somebody misspelt.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

import yaml

from webhook.errors import DeviceConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAG = "tag:yaml.org,2002:"
_TYPE_NAMES = {
    "str": "a text",
    "int": "an integer",
    "bool": "true or false",
    "null": "null",
    "float": "a number",
}

# Source: k8s.io/apimachinery pkg/util/validation, IsQualifiedName; an optional DNS prefix, then up to 63 characters.
_RESOURCE_NAME = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)


# Of two keys, from 0 to 1: a letter or two may differ, and `zeta` is not `metax`.
_SIMILARITY = 0.75


class UnknownKey(NamedTuple):
    """A key that HAMi does not read.

    Attributes:
        path: Where it stands, such as `nvidia.memoryFactr`.
        meant: The most similar key that HAMi reads there; "" where none is similar, or it is there already.
    """

    line: int
    path: str
    meant: str

    def __str__(self) -> str:
        suggestion = f"; did you mean {self.meant}?" if self.meant else ""
        return f"line {self.line}: {self.path}: HAMi reads no such key{suggestion}"


class ConfigBlock:
    """One mapping of the file. Reading a key checks its type; a missing or null key is the type's zero, as in HAMi.

    The keys that are read, and those that `knows` names, are the ones that are known.
    """

    def __init__(self, path: str, node: yaml.Node) -> None:
        self._path = path
        self._line = node.start_mark.line + 1
        self._values: dict[str, yaml.Node] = {}
        self._key_nodes: dict[str, yaml.Node] = {}
        self._known: set[str] = set()
        self._inner: list[ConfigBlock] = []
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, path, "must be a mapping of keys to values")
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key_node.tag == _TAG + "merge":
                raise self._error(key_node, self._at(key), "merge keys are not read: write the keys out")
            if key in self._values:
                raise self._error(key_node, self._at(key), "is given twice")
            self._values[key] = value_node
            self._key_nodes[key] = key_node

    def keys(self) -> Iterator[str]:
        """Yield the keys in the order written."""
        yield from self._values

    def knows(self, *keys: str) -> None:
        """Declare keys that HAMi reads and admission does not need."""
        self._known.update(keys)

    def unknown_keys(self) -> Iterator[UnknownKey]:
        """Yield the keys of this block, and of the blocks that were read in it, that nobody read or knows."""
        known = {key.lower(): key for key in sorted(self._known)}
        for key, node in self._key_nodes.items():
            if key not in self._known:
                similar = [known[name] for name in get_close_matches(key.lower(), known, n=1, cutoff=_SIMILARITY)]
                # One that is there already was not meant.
                meant = "".join(name for name in similar if name not in self._values)
                yield UnknownKey(node.start_mark.line + 1, self._at(key), meant)
        for block in self._inner:
            yield from block.unknown_keys()

    def block(self, key: str) -> ConfigBlock | None:
        """Return the mapping under `key`; None when it is missing or empty."""
        node = self._present(key)
        if node is None:
            return None
        block = ConfigBlock(self._at(key), node)
        self._inner.append(block)
        return block if block._values else None

    def blocks(self, key: str) -> tuple[ConfigBlock, ...]:
        """Return the mappings in the list under `key`; none when it is missing."""
        node = self._present(key)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, self._at(key), "must be a list")
        found = tuple(ConfigBlock(f"{self._at(key)}[{index}]", item) for index, item in enumerate(node.value))
        self._inner += found
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts in the list under `key`; none when it is missing."""
        node = self._present(key)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode) or any(item.tag != _TAG + "str" for item in node.value):
            raise self._error(node, self._at(key), "must be a list of texts")
        return tuple(str(item.value) for item in node.value)

    def text(self, key: str) -> str:
        """Return a text; "" when missing."""
        node = self._scalar(key, "str")
        return "" if node is None else str(node.value)

    def resource_name(self, key: str) -> str:
        """Return a resource name; "" when missing."""
        name = self.text(key)
        if name and not _RESOURCE_NAME.fullmatch(name):
            raise self._error(
                self._values[key],
                self._at(key),
                f"{name!r} is no resource name: write one such as nvidia.com/gpumem",
            )
        return name

    def integer(self, key: str, *, largest: int) -> int:
        """Return an integer from 0 to `largest`; 0 when missing."""
        node = self._scalar(key, "int")
        if node is None:
            return 0
        number = yaml.safe_load(str(node.value))
        if not isinstance(number, int) or not 0 <= number <= largest:
            raise self._error(node, self._at(key), f"{node.value} must be an integer from 0 to {largest}")
        return number

    def boolean(self, key: str) -> bool:
        """Return true or false; false when missing."""
        node = self._scalar(key, "bool")
        return node is not None and bool(yaml.safe_load(str(node.value)))

    def error(self, key: str, problem: str) -> DeviceConfigError:
        """Return an error about `key`, with its line; with the block's own when the key is missing."""
        if key not in self._values:
            return DeviceConfigError(f"line {self._line}: {self._at(key)}", problem)
        return self._error(self._values[key], self._at(key), problem)

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _present(self, key: str) -> yaml.Node | None:
        self._known.add(key)
        node = self._values.get(key)
        return None if node is None or node.tag == _TAG + "null" else node

    def _scalar(self, key: str, kind: str) -> yaml.Node | None:
        node = self._present(key)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TAG + kind:
            given = _TYPE_NAMES.get(node.tag.removeprefix(_TAG), "something else")
            raise self._error(node, self._at(key), f"must be {_TYPE_NAMES[kind]}, and is {given}")
        return node

    @staticmethod
    def _error(node: yaml.Node, path: str, problem: str) -> DeviceConfigError:
        return DeviceConfigError(f"line {node.start_mark.line + 1}: {path or 'document'}", problem)


def read_config(text: str) -> ConfigBlock:
    """Return the top level of a device configuration.

    Raises:
        DeviceConfigError: The text is not one YAML mapping; the error names the line.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise DeviceConfigError(f"line {line}", f"is not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise DeviceConfigError("document", f"is not YAML: {error}") from error
    if node is None:
        raise DeviceConfigError("document", "is empty: mount HAMi's device-config.yaml")
    return ConfigBlock("", node)

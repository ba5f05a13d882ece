"""YAML as a tree that knows its lines: the part of YAML that a fabric file needs, and nothing that can blow up.

Refused: anchors and aliases (a few bytes could stand for gigabytes), tags, keys twice, nesting past 16 levels, files
past 32 MiB. Numbers are whole decimal numbers; everything else is text, so that `yes`, `1e3` and `0x10` are names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml

MOST_BYTES: Final = 32 * 1024 * 1024
_DEEPEST: Final = 16
_MOST_VALUES: Final = 4_000_000
_INTEGER: Final = re.compile(r"(0|[1-9][0-9]{0,17})\Z", re.ASCII)
_ENDS: Final = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
_NO_TAG: Final = frozenset({None, "!"})
_NOTHING: Final = frozenset({"", "~", "null"})
_DIGITS: Final = frozenset("0123456789")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class FileError(ValueError):
    """A file that cannot be read: which one, at which line, which key, and what was expected there."""

    def __init__(self, file: str, line: int | None, key: str, reason: str) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {reason}" if key else f"{where}: {reason}")
        self.file = file
        self.line = line
        self.key = key
        self.reason = reason


# Not frozen, and not to be changed: making them takes half the time, and a file has hundreds of thousands.
@dataclass(slots=True)
class Scalar:
    """A text or a whole number; None where nothing was written."""

    line: int | None
    value: str | int | None


@dataclass(slots=True)
class Items:
    """A list."""

    line: int | None
    items: list[Value]


@dataclass(slots=True)
class Mapping:
    """Keys and their values, in the order written."""

    line: int | None
    entries: dict[str, Value]
    key_lines: dict[str, int | None]


Value = Scalar | Items | Mapping


def read_yaml(text: bytes | str, file: str) -> Mapping:
    """Read a document whose top is a mapping.

    Raises:
        FileError: it is not that, or uses what is refused.
    """
    top = read_yaml_value(text, file)
    if not isinstance(top, Mapping):
        raise FileError(file, top.line if top else None, "", "expected a mapping with keys at the top")
    return top


def read_yaml_value(text: bytes | str, file: str) -> Value | None:
    """Read a document, whatever it is; None where it is empty.

    Raises:
        FileError: it is not YAML, or uses what is refused.
    """
    try:
        return _Builder(file).build(text_of(text, file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "malformed"
        raise FileError(file, mark.line + 1 if mark else None, "", f"not YAML: {reason}") from None


def text_of(raw: bytes | str, file: str) -> str:
    """The text of a file.

    Raises:
        FileError: it is too large, or not UTF-8.
    """
    if len(raw) > MOST_BYTES:
        raise FileError(file, None, "", f"expected at most {MOST_BYTES} bytes, found {len(raw)}")
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(file, raw.count(b"\n", 0, error.start) + 1, "", "not UTF-8") from None


class _Builder:
    """Builds the tree from the parser's events: nothing here recurses, so nesting costs no stack."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stack: list[Items | Mapping] = []
        self._keys: list[Scalar | None] = []
        self._top: Value | None = None
        self._values = 0

    def build(self, text: str) -> Value | None:
        documents = 0
        # The most frequent first, and no patterns: a file may have a million of these.
        for event in yaml.parse(text, Loader=_LOADER):
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.ScalarEvent):
                self._check(event, line)
                self._put(Scalar(line, _value(event)))
            elif isinstance(event, yaml.MappingStartEvent):
                self._open(event, Mapping(line, {}, {}))
            elif isinstance(event, yaml.SequenceStartEvent):
                self._open(event, Items(line, []))
            elif isinstance(event, _ENDS):
                self._stack.pop()
                self._keys.pop()
            elif isinstance(event, yaml.AliasEvent):
                raise self._error(line, "aliases are not allowed: write it out")
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(line, "expected one document")
        return self._top

    def _open(self, event: yaml.CollectionStartEvent, made: Items | Mapping) -> None:
        self._check(event, made.line)
        self._put(made)
        self._stack.append(made)
        self._keys.append(None)
        if len(self._stack) > _DEEPEST:
            raise self._error(made.line, f"nested deeper than {_DEEPEST} levels")

    def _put(self, value: Value) -> None:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise self._error(value.line, f"more than {_MOST_VALUES} values")
        if not self._stack:
            self._top = value
            return
        inside = self._stack[-1]
        if isinstance(inside, Items):
            inside.items.append(value)
        elif (key := self._keys[-1]) is None:
            self._keys[-1] = self._key(value, inside)
        else:
            inside.entries[str(key.value)] = value
            self._keys[-1] = None

    def _key(self, value: Value, inside: Mapping) -> Scalar:
        if not isinstance(value, Scalar) or value.value is None:
            raise self._error(value.line, "expected a name as key")
        name = str(value.value)
        if name in inside.key_lines:
            raise FileError(self._file, value.line, name, f"written twice, first at line {inside.key_lines[name]}")
        inside.key_lines[name] = value.line
        return value

    def _check(self, event: yaml.NodeEvent, line: int | None) -> None:
        if event.anchor is not None:
            raise self._error(line, "anchors are not allowed: write it out")
        if getattr(event, "tag", None) not in _NO_TAG:
            raise self._error(line, "tags are not allowed")

    def _error(self, line: int | None, reason: str) -> FileError:
        return FileError(self._file, line, "", reason)


def _value(event: yaml.ScalarEvent) -> str | int | None:
    text: str = event.value
    if event.style:
        return text
    if text in _NOTHING:
        return None
    return int(text) if text[0] in _DIGITS and _INTEGER.match(text) else text


class Reader:
    """Takes values out of a mapping, each checked, and then sees that nothing unknown is left."""

    def __init__(self, mapping: Mapping, file: str, path: str = "", key: str = "") -> None:
        self.mapping = mapping
        self._key = key
        self.file = file
        self.path = path
        self._taken: set[str] = set()

    def error(self, key: str, reason: str) -> FileError:
        """An error at a key of this mapping."""
        line = self.mapping.key_lines.get(key, self.mapping.line)
        return FileError(self.file, line, self._path(key), reason)

    def has(self, key: str) -> bool:
        """Whether the key is written and not empty."""
        value = self.mapping.entries.get(key)
        return value is not None and not (isinstance(value, Scalar) and value.value is None)

    def text(self, key: str, default: str | None = None) -> str:
        """A text (a number counts as its digits); raises FileError where it is missing without default."""
        value = self._take(key)
        if value is None:
            if default is None:
                raise self.error(key, "missing")
            return default
        return scalar_text(value, self.file, self._path(key))

    def optional_text(self, key: str) -> str | None:
        """A text, or None where it is not written."""
        self._taken.add(key)
        return self.text(key) if self.has(key) else None

    def integer(self, key: str, default: int | None = None, *, low: int = 0, high: int = 2**31) -> int:
        """A whole number in bounds."""
        value = self._take(key)
        if value is None:
            if default is None:
                raise self.error(key, "missing")
            return default
        if not isinstance(value, Scalar) or not isinstance(value.value, int) or not low <= value.value <= high:
            raise FileError(self.file, value.line, self._path(key), f"expected a whole number from {low} to {high}")
        return value.value

    def texts(self, key: str) -> list[tuple[str, int | None]]:
        """A text or a list of texts, with the line of each; empty where it is not written."""
        value = self._take(key)
        if value is None:
            return []
        items = value.items if isinstance(value, Items) else [value]
        return [(scalar_text(item, self.file, self._path(key)), item.line) for item in items]

    def readers(self, key: str) -> Iterator[Reader]:
        """A list of mappings."""
        for index, item in enumerate(self.items(key)):
            path = f"{self._path(key)}[{index}]"
            if not isinstance(item, Mapping):
                raise FileError(self.file, item.line, path, "expected a mapping")
            yield Reader(item, self.file, path)

    def items(self, key: str) -> list[Value]:
        """A list; empty where it is not written."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, Items):
            raise FileError(self.file, value.line, self._path(key), "expected a list")
        return value.items

    def mapping_at(self, key: str) -> Reader:
        """A mapping; an empty one where it is not written."""
        value = self._take(key)
        if value is None:
            return Reader(Mapping(self.mapping.line, {}, {}), self.file, self._path(key), key)
        if not isinstance(value, Mapping):
            raise FileError(self.file, value.line, self._path(key), "expected a mapping")
        return Reader(value, self.file, self._path(key), key)

    def ignore(self, *keys: str) -> None:
        """Keys that are known and mean nothing here."""
        self._taken.update(keys)

    def each(self) -> Iterator[Reader]:
        """Every value of this mapping, each a mapping too; `Reader.name` tells its key."""
        for key in self.mapping.entries:
            yield self.mapping_at(key)

    @property
    def name(self) -> str:
        """The last part of its path: its key in the mapping that it is in."""
        return self._key

    def finish(self) -> None:
        """Raise FileError where a key is left that nobody asked for."""
        for key in self.mapping.entries:
            if key not in self._taken:
                raise self.error(key, f"unknown key; known here: {', '.join(sorted(self._taken))}")

    def _take(self, key: str) -> Value | None:
        self._taken.add(key)
        return self.mapping.entries[key] if self.has(key) else None

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def scalar_text(value: Value, file: str, path: str) -> str:
    """A scalar as text; raises FileError for anything else."""
    if not isinstance(value, Scalar) or value.value is None:
        raise FileError(file, value.line, path, "expected a text")
    return str(value.value)

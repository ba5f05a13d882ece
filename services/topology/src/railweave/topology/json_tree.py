"""JSON as the tree that yaml_tree.py makes of YAML, without lines: what is read from either is read by one `Reader`.

Refused: keys twice, NaN and infinities, nesting that is deep, files past 32 MiB. Fractions and truth values are texts
here: nothing that a fabric is made of is either.
"""

from __future__ import annotations

import json
from typing import Any, Final, Never

from railweave.topology.yaml_tree import FileError, Items, Mapping, Reader, Scalar, Value, text_of

_DEEPEST: Final = 64


def read_json(text: bytes, file: str) -> Value:
    """Read a document.

    Raises:
        FileError: it is not JSON, or uses what is refused.
    """
    decoded = text_of(text, file)
    try:
        return _value(json.loads(decoded, object_pairs_hook=_mapping, parse_constant=_refuse), 0)
    except json.JSONDecodeError as error:
        raise FileError(file, error.lineno, "", f"not JSON: {error.msg}") from None
    except RecursionError:
        raise FileError(file, None, "", f"nested deeper than {_DEEPEST} levels") from None
    except ValueError as error:
        raise FileError(file, None, "", str(error)) from None


def read_object(text: bytes, file: str) -> Reader:
    """Read a document whose top is an object; raises FileError."""
    return object_of(read_json(text, file), file, "")


def object_of(value: Value, file: str, path: str) -> Reader:
    """A value that is an object; raises FileError for any other."""
    if not isinstance(value, Mapping):
        raise FileError(file, value.line, path, "expected an object with keys")
    return Reader(value, file, path)


def _mapping(pairs: list[tuple[str, Any]]) -> Mapping:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} is written twice in one object")
    return Mapping(None, entries, {})


def _refuse(text: str) -> Never:
    raise ValueError(f"{text} is no number here")


def _value(raw: Any, depth: int) -> Value:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(raw, Mapping):
        for key, value in raw.entries.items():
            raw.entries[key] = _value(value, depth + 1)
        return raw
    if isinstance(raw, list):
        return Items(None, [_value(item, depth + 1) for item in raw])
    if raw is None or (isinstance(raw, int) and not isinstance(raw, bool)):
        return Scalar(None, raw)
    if isinstance(raw, bool):
        return Scalar(None, "true" if raw else "false")
    return Scalar(None, str(raw))

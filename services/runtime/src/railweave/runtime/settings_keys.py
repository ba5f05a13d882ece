"""From flags, environment and YAML to nested values, with every key checked against the known ones."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

PREFIX = "RAILWEAVE_"

Origin = str
"""Where a value came from, in words for an error message."""


class SettingsError(Exception):
    """Settings that cannot be used; `problems` has one line each, naming the key and where it came from."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("settings: " + "; ".join(self.problems))


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The model behind an annotation, through Optional and Annotated; None for plain values."""
    if get_origin(annotation) is Annotated:
        return submodel(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        found = [model for arg in get_args(annotation) if (model := submodel(arg)) is not None]
        return found[0] if len(found) == 1 else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


class KeyTree:
    """The known keys, from the models of the sections.

    Args:
        models: section name to model.
        unread: sections of services that are not loaded: anything may stand in them.
    """

    def __init__(self, models: Mapping[str, type[BaseModel]], unread: frozenset[str]) -> None:
        self._models = models
        self._unread = unread
        self._known = [key for name, model in models.items() for key in _leaves(name, model)]

    def is_unread(self, path: Sequence[str]) -> bool:
        """Whether the key lies in a section nobody here reads."""
        return bool(path) and path[0] in self._unread

    def annotation(self, path: Sequence[str]) -> Any:
        """The type at `path`.

        Raises:
            KeyError: there is no such key; the message names the nearest one.
        """
        model: type[BaseModel] | None = self._models.get(path[0]) if path else None
        if model is None:
            raise KeyError(self._unknown(path))
        annotation: Any = model
        for at, name in enumerate(path[1:], start=1):
            if model is None:
                if _is_mapping(annotation):
                    return str if at == len(path) - 1 else Any
                raise KeyError(self._unknown(path))
            if name not in model.model_fields:
                raise KeyError(self._unknown(path))
            annotation = model.model_fields[name].annotation
            model = submodel(annotation)
        return annotation

    def _unknown(self, path: Sequence[str]) -> str:
        key = ".".join(path)
        sections = sorted({*self._models, *self._unread})
        near = difflib.get_close_matches(key, [*self._known, *sections], n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; sections are {', '.join(sections)}"
        return f"unknown setting {key}{hint}"


def _leaves(prefix: str, model: type[BaseModel]) -> list[str]:
    keys = []
    for name, info in model.model_fields.items():
        inner = submodel(info.annotation)
        keys += [f"{prefix}.{name}"] if inner is None else _leaves(f"{prefix}.{name}", inner)
    return keys


def _args_of(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _args_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [inner for arg in get_args(annotation) for inner in _args_of(arg)]
    return [annotation]


def _origin_in(annotation: Any, wanted: tuple[type, ...]) -> bool:
    return any((get_origin(arg) or arg) in wanted for arg in _args_of(annotation))


def _is_mapping(annotation: Any) -> bool:
    return _origin_in(annotation, (dict, Mapping))


def read_flags(flags: Sequence[str], tree: KeyTree, origins: dict[str, Origin]) -> dict[str, Any]:
    """Nested values of `section.key=value` flags; a later flag wins.

    Raises:
        SettingsError: malformed or unknown ones.
    """
    pairs = []
    problems = []
    for flag in flags:
        key, equals, text = flag.partition("=")
        if not equals:
            problems.append(f"--set {key}: write it as key=value")
            continue
        pairs.append((key.strip().lower().split("."), text, f"--set {key}"))
    return _assemble(pairs, tree, origins, problems)


def read_environment(environ: Mapping[str, str], tree: KeyTree, origins: dict[str, Origin]) -> dict[str, Any]:
    """Nested values of `RAILWEAVE_SECTION__KEY` variables; others of that prefix are not settings.

    Raises:
        SettingsError: unknown keys.
    """
    pairs = [
        (name[len(PREFIX) :].lower().split("__"), text, f"environment {name}")
        for name, text in sorted(environ.items())
        if name.upper().startswith(PREFIX) and "__" in name[len(PREFIX) :]
    ]
    return _assemble(pairs, tree, origins, [])


def _assemble(
    pairs: Sequence[tuple[list[str], str, Origin]], tree: KeyTree, origins: dict[str, Origin], problems: list[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path, text, origin in pairs:
        if tree.is_unread(path):
            continue
        try:
            annotation = tree.annotation(path)
            if len(path) == 1 or submodel(annotation) is not None:
                problems.append(f"{'.'.join(path)} is a section, name a setting in it (from {origin})")
                continue
            value = _decode(annotation, text)
        except KeyError as unknown:
            problems.append(f"{unknown.args[0]} (from {origin})")
            continue
        except ValueError:
            problems.append(f"{'.'.join(path)}: not valid JSON (from {origin})")
            continue
        at = values
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = value
        origins.setdefault(".".join(path), origin)
    if problems:
        raise SettingsError(problems)
    return values


def _decode(annotation: Any, text: str) -> Any:
    """A list may be JSON or comma-separated, a mapping is JSON, empty means none where none is allowed."""
    if text == "" and type(None) in _args_of(annotation):
        return None
    if _is_mapping(annotation):
        return json.loads(text)
    if _origin_in(annotation, (list, tuple, set, frozenset)):
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [item.strip() for item in text.split(",") if item.strip()]
    return text


def read_file(path: Path, tree: KeyTree, origins: dict[str, Origin]) -> dict[str, Any]:
    """Nested values of a YAML file.

    Raises:
        SettingsError: not readable, not YAML, not a mapping, a key twice, unknown keys.
    """
    try:
        document = yaml.load(path.read_text("utf-8"), Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError([f"cannot read {path}: {reason}"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        # The parser's own text may quote the line, and the line may hold a password.
        raise SettingsError(
            [f"{path} is not valid YAML{where}: {getattr(error, 'problem', None) or 'malformed'}"]
        ) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError([f"{path} must be a mapping of sections"])
    problems: list[str] = []
    values = {str(name): value for name, value in document.items() if not tree.is_unread([str(name)])}
    _check_keys(values, (), tree, problems, path, origins)
    if problems:
        raise SettingsError(problems)
    # `nats:` with nothing under it is YAML's null, and means "all defaults".
    return {name: {} if value is None else value for name, value in values.items()}


def _check_keys(
    values: Mapping[Any, Any],
    above: tuple[str, ...],
    tree: KeyTree,
    problems: list[str],
    path: Path,
    origins: dict[str, Origin],
) -> None:
    for name, value in values.items():
        key = (*above, str(name))
        try:
            annotation = tree.annotation(key)
        except KeyError as unknown:
            problems.append(f"{unknown.args[0]} (from file {path})")
            continue
        if submodel(annotation) is not None and isinstance(value, dict):
            _check_keys(value, key, tree, problems, path, origins)
        else:
            origins.setdefault(".".join(key), f"file {path}")


class _StrictLoader(yaml.SafeLoader):
    """A key written twice is a mistake, which YAML's own loader resolves in silence."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, "a key that is not text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key} twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)

"""Settings of a process: flags over environment over file over defaults; unknown keys are errors.

One document, in sections. `nats`, `redis`, `service` and `log` belong to the runtime; each service registers a
model for its own (`register_section("cache", CacheSettings)`), so the runtime knows none of them. A section of a
known service that this process does not run may stand in a shared file and is left alone.

Keys are written `nats.servers` in flags, `RAILWEAVE_NATS__SERVERS` in the environment, and nested in YAML.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, SecretStr, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from railweave.runtime.redaction import REDACTED
from railweave.runtime.settings_keys import (
    KeyTree,
    Origin,
    SettingsError,
    read_environment,
    read_file,
    read_flags,
    submodel,
)
from railweave.runtime.settings_models import (
    LogSettings,
    NatsSettings,
    RedisSettings,
    Seconds,
    Section,
    ServiceSettings,
    TlsSettings,
)

__all__ = [
    "SECTIONS_OF_SERVICES",
    "LogSettings",
    "NatsSettings",
    "RedisSettings",
    "Seconds",
    "Section",
    "SectionRegistry",
    "ServiceSettings",
    "SettingRow",
    "Settings",
    "SettingsError",
    "TlsSettings",
    "load_settings",
    "register_section",
]

CONFIG_VARIABLE = "RAILWEAVE_CONFIG"

SECTIONS_OF_SERVICES = frozenset({"jobs", "topology", "nic", "gpu", "cache", "agent"})
"""Sections that services own; accepted unread where the service is not loaded."""

_CORE: dict[str, type[BaseModel]] = {
    "nats": NatsSettings,
    "redis": RedisSettings,
    "service": ServiceSettings,
    "log": LogSettings,
}

M = TypeVar("M", bound=BaseModel)


class SectionRegistry:
    """Which section is read by which model."""

    def __init__(self) -> None:
        self._models: dict[str, type[BaseModel]] = dict(_CORE)

    def register(self, name: str, model: type[BaseModel]) -> None:
        """Say that section `name` is read by `model`; the same again is fine.

        Raises:
            ValueError: the section belongs to another model, or a required field makes defaults impossible.
        """
        if self._models.setdefault(name, model) is not model:
            msg = f"settings section {name!r} is already read by {self._models[name].__qualname__}"
            raise ValueError(msg)
        if required := [key for key, info in model.model_fields.items() if info.is_required()]:
            del self._models[name]
            msg = f"settings section {name!r} needs defaults for {', '.join(required)}: every setting has one"
            raise ValueError(msg)

    @property
    def models(self) -> Mapping[str, type[BaseModel]]:
        """Section names and models, the runtime's first."""
        return self._models


_registry = SectionRegistry()


def register_section(name: str, model: type[BaseModel]) -> None:
    """Register a service's section for this process; call it where the model is defined."""
    _registry.register(name, model)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of the reference table."""

    key: str
    kind: str
    default: str
    variable: str
    description: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The validated settings of a process."""

    nats: NatsSettings = field(default_factory=NatsSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    log: LogSettings = field(default_factory=LogSettings)
    sections: Mapping[str, BaseModel] = field(default_factory=dict)
    """The sections of services, by name."""
    is_loaded: bool = field(default=False, repr=False, compare=False)
    """Whether sources were read; false for settings that are all defaults, as in tests."""

    def section(self, model: type[M]) -> M:
        """The section read by `model`; its defaults where no sources were read.

        Raises:
            LookupError: the sources were read before the model was registered, so what they say of it was passed over.
        """
        for found in self.sections.values():
            if isinstance(found, model):
                return found
        if self.is_loaded:
            msg = f"{model.__qualname__} was registered after the settings were loaded; find services first, then load"
            raise LookupError(msg)
        return model()

    @staticmethod
    def describe(registry: SectionRegistry | None = None) -> list[SettingRow]:
        """Every setting with type, default, environment variable and meaning, for a generated reference."""
        rows: list[SettingRow] = []
        for name, model in (registry or _registry).models.items():
            _describe(name, model, rows)
        return rows


def load_settings(
    *,
    config: Path | str | None = None,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    registry: SectionRegistry | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Read the settings of this process.

    Args:
        config: YAML file; else the one named by RAILWEAVE_CONFIG; else none.
        flags: `section.key=value`, strongest; a later one wins.
        environ: the environment; the process's own unless given.
        registry: the sections known; the process's own unless given.
        defaults: values by section that a program prefers to the models' own defaults; everything else is stronger.

    Raises:
        SettingsError: a file that cannot be read, unknown keys (with the nearest known one), values that do not
            fit. Names keys and where they came from, never the value.
    """
    environ = os.environ if environ is None else environ
    models = dict((registry or _registry).models)
    tree = KeyTree(models, unread=SECTIONS_OF_SERVICES - models.keys())
    path = config if config is not None else environ.get(CONFIG_VARIABLE) or None
    origins: dict[str, Origin] = {}
    layers = [
        read_flags(flags, tree, origins),
        read_environment(environ, tree, origins),
        read_file(Path(path), tree, origins) if path is not None else {},
        {section: dict(values) for section, values in (defaults or {}).items()},
    ]
    document = _document_model(models, layers)
    try:
        loaded = document()
    except ValidationError as error:
        raise SettingsError(_say(error, origins)) from None
    values = {name: cast("BaseModel", getattr(loaded, name)) for name in models}
    return Settings(
        nats=cast("NatsSettings", values["nats"]),
        redis=cast("RedisSettings", values["redis"]),
        service=cast("ServiceSettings", values["service"]),
        log=cast("LogSettings", values["log"]),
        sections={name: value for name, value in values.items() if name not in _CORE},
        is_loaded=True,
    )


class _Layer(PydanticBaseSettingsSource):
    """One source of values, already read; pydantic-settings lays them over each other."""

    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _document_model(models: Mapping[str, type[BaseModel]], layers: Sequence[dict[str, Any]]) -> type[BaseSettings]:
    class Document(BaseSettings):
        model_config = SettingsConfigDict(extra="forbid", hide_input_in_errors=True)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            *_args: PydanticBaseSettingsSource,
            **_sources: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_Layer(settings_cls, values) for values in layers)

    fields: dict[str, Any] = {name: (model, FieldInfo(default_factory=model)) for name, model in models.items()}
    return create_model("SettingsDocument", __base__=Document, **fields)


def _say(error: ValidationError, origins: Mapping[str, Origin]) -> list[str]:
    problems = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        key = ".".join(str(part) for part in item["loc"])
        known = next((k for k in _prefixes(key) if k in origins), None)
        source = f" (from {origins[known]})" if known else ""
        problems.append(f"{key}: {item['msg']}{source}")
    return problems


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _describe(prefix: str, model: type[BaseModel], rows: list[SettingRow]) -> None:
    for name, info in model.model_fields.items():
        key = f"{prefix}.{name}"
        inner = submodel(info.annotation)
        if inner is not None:
            _describe(key, inner, rows)
            continue
        variable = "RAILWEAVE_" + key.upper().replace(".", "__")
        rows.append(SettingRow(key, _kind(info), _default(info), variable, info.description or ""))


def _kind(info: FieldInfo) -> str:
    kind = getattr(info.annotation, "__name__", None) if isinstance(info.annotation, type) else str(info.annotation)
    return (kind or str(info.annotation)).replace("typing.", "").replace("pathlib.", "").replace("pydantic.types.", "")


def _default(info: FieldInfo) -> str:
    if info.default_factory is not None:
        return "(computed)"
    if info.default is PydanticUndefined or info.default is None:
        return ""
    if isinstance(info.default, SecretStr):
        return REDACTED
    if isinstance(info.default, tuple | list):
        return ",".join(str(item) for item in info.default)
    return str(info.default).lower() if isinstance(info.default, bool) else str(info.default)

"""JSON Schema 2020-12 of every event as it is on the wire, envelope and all, and of the query documents."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from railweave.contracts.catalogue.entries import EVENTS, QUERIES, EventEntry
from railweave.contracts.envelope import frame_of
from railweave.contracts.types import Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def field_docs(model: type[Any]) -> dict[str, str]:
    """What a model and its bases say below each field, read from their source."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        # A frame is no document: it is made, not written, and has no source.
        if issubclass(base, Document):
            found |= _docs_in(base.__module__, base.__qualname__)
    return found


@cache
def _docs_in(module: str, name: str) -> dict[str, str]:
    source = inspect.getsource(getattr(import_module(module), name))
    found = {}
    for above, below in pairwise(getattr(ast.parse(source).body[0], "body", ())):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
            case _:
                continue
    return found


class _Plain(GenerateJsonSchema):
    """Without a title on every field that repeats its name; with the docstring below it."""

    schema_dialect = DIALECT

    def field_title_should_be_set(
        self,
        schema: core_schema.CoreSchema
        | core_schema.ModelField
        | core_schema.DataclassField
        | core_schema.TypedDictField,
    ) -> bool:
        return False

    def get_title_from_name(self, name: str) -> str:
        return name

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        docs = field_docs(schema["cls"])
        for name, field in schema["cls"].model_fields.items():
            if name in docs:
                made["properties"][field.alias or name]["description"] = docs[name]
        return made

    def generate(self, schema: core_schema.CoreSchema, mode: Any = "validation") -> dict[str, Any]:
        return {"$schema": self.schema_dialect, **super().generate(schema, mode=mode)}


def event_schema(entry: EventEntry) -> dict[str, Any]:
    """The schema of the whole CloudEvents document of a type."""
    schema = frame_of(entry.name).model_json_schema(schema_generator=_Plain)
    schema["title"] = entry.name
    schema["description"] = (entry.event.__doc__ or "").strip()
    return {
        "$schema": schema.pop("$schema"),
        "$id": f"urn:railweave:{entry.name}",
        **schema,
        "x-subject": entry.subject,
        "x-id": entry.id,
        "x-jetstream-stream": entry.stream,
    }


def query_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a question or an answer."""
    schema = model.model_json_schema(schema_generator=_Plain)
    return {"$schema": schema.pop("$schema"), "$id": f"urn:railweave:query:{model.__name__}", **schema}


def query_file(model: type[BaseModel]) -> str:
    """The file name of a query document's schema."""
    return f"query.{model.__name__}.json"


def all_schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its file name."""
    found = {f"{entry.name}.json": event_schema(entry) for entry in EVENTS}
    for entry in QUERIES:
        for model in (entry.question, entry.answer):
            found[query_file(model)] = query_schema(model)
    return found

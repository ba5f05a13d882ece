"""JSON Schema 2020-12 of every event as it is on the wire, envelope and all, and of the query documents."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from railweave.contracts.catalogue.entries import EVENTS, QUERIES, EventEntry
from railweave.contracts.envelope import frame_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Plain(GenerateJsonSchema):
    """Without a title on every field that repeats its name."""

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

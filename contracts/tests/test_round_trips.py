"""Whatever the published schema of an event allows, the model reads; and what it reads it writes back, equal.

The documents are drawn from the JSON Schemas, so that the schemas, which other languages rely on, and the models agree.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railweave.contracts import decode_event, encode_event, registered_types
from railweave.contracts.catalogue.entries import EVENTS
from railweave.contracts.catalogue.schemas import event_schema
from railweave.contracts.job import PlacedWorker
from railweave.contracts.types import NodeName, build

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
TIMES = st.datetimes(
    datetime(2020, 1, 1),  # noqa: DTZ001 - the bounds of a strategy are naive
    datetime(2040, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]),
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000).isoformat())
FORMATS = {
    "date-time": TIMES,
    "ip": st.ip_addresses().map(str),
    "ip-with-prefix": st.ip_addresses().map(lambda address: f"{address}/{24 if address.version == 4 else 64}"),
    "ip-network": st.sampled_from(["10.64.0.0/22", "10.0.0.0/8", "fd00:64::/64"]),
}


def one_of_both(worker: dict[str, Any]) -> dict[str, Any]:
    return {**worker, "netns": "/run/netns/a" if worker.get("pid") is None else None}


def fraction_of_a_gpu(group: dict[str, Any]) -> dict[str, Any]:
    return group if group.get("gpus") else {**group, "gpu_fraction_milli": None}


def without_node_list(job: dict[str, Any]) -> dict[str, Any]:
    """Its length follows from the workers, and datasets have different names: what a schema cannot say."""
    fitted = dict(job)
    if "datasets" in job:
        fitted["datasets"] = [{**wanted, "name": f"{at}{wanted['name']}"} for at, wanted in enumerate(job["datasets"])]
    if job.get("nodes"):
        fitted["nodes"] = {**job["nodes"], "node_list": None}
    return fitted


BETWEEN_FIELDS = {
    "StartedWorker": one_of_both,
    "WorkerGroup": fraction_of_a_gpu,
    "JobSpec": without_node_list,
    "JobSubmitted": without_node_list,
}
"""What models ask beyond what a schema can say, by the name of its definition."""


class Documents:
    """Strategies for the documents of one schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})
        self._made: dict[str, st.SearchStrategy[Any]] = {}

    def of(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name not in self._made:
                fit = BETWEEN_FIELDS.get(name, lambda value: value)
                self._made[name] = st.deferred(lambda: self.of(self._definitions[name])).map(fit)
            return self._made[name]
        if "anyOf" in schema:
            return st.one_of(*(self.of(option) for option in schema["anyOf"]))
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        return getattr(self, f"_{schema['type']}")(schema)  # type: ignore[no-any-return]

    def _null(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.none()

    def _boolean(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.booleans()

    def _integer(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        low = schema.get("minimum", -(2**53))
        high = schema.get("maximum", schema.get("exclusiveMaximum", 2**53) - 1)
        return st.integers(low, high)

    def _string(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "format" in schema:
            return FORMATS[schema["format"]]
        if "pattern" in schema and "\\ud800" not in schema["pattern"]:
            # Without `$`, which Python's regular expressions also match before a last line break.
            short = st.from_regex(schema["pattern"].removeprefix("^").removesuffix("$"), fullmatch=True)
            return short.filter(lambda text: len(text) <= schema.get("maxLength", 1000))
        if "pattern" in schema:
            return NAMES if " " not in schema["pattern"] and "\\x20" not in schema["pattern"] else st.just("gpu-001")
        return NAMES.filter(lambda text: len(text) <= schema.get("maxLength", 1000))

    def _array(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "prefixItems" in schema:
            return st.tuples(*(self.of(item) for item in schema["prefixItems"])).map(list)
        least = schema.get("minItems", 0)
        return st.lists(self.of(schema["items"]), min_size=least, max_size=least + 2)

    def _object(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "properties" in schema:
            required = set(schema.get("required", ()))
            fields = {name: self.of(field) for name, field in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: field for name, field in fields.items() if name in required},
                optional={name: field for name, field in fields.items() if name not in required},
            )
        names = {"type": "string", **schema.get("propertyNames", {})}
        values = schema.get("additionalProperties")
        for pattern, matching in schema.get("patternProperties", {}).items():
            names["pattern"], values = pattern, matching
        return st.dictionaries(self.of(names), self.of(values), max_size=2)


def bodies_of(type_name: str) -> st.SearchStrategy[dict[str, Any]]:
    schema = event_schema(next(entry for entry in EVENTS if entry.name == type_name))
    body: st.SearchStrategy[dict[str, Any]] = Documents(schema).of(schema["properties"]["data"])
    return body


@pytest.mark.parametrize("type_name", sorted(registered_types()))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(choice=st.data())
def test_every_event_that_its_schema_allows_is_read_written_and_read_equal(
    type_name: str, choice: st.DataObject
) -> None:
    data = choice.draw(bodies_of(type_name))
    event = registered_types()[type_name].model_validate_json(json.dumps(data))
    written = encode_event(event, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    read = decode_event(written)
    assert read.data == event
    assert (read.id, read.source) == (event.event_id(), event.source())
    assert encode_event(read.data, time=read.time, traceparent=read.traceparent) == written


def test_what_is_built_unchecked_is_written_in_the_models_order_and_lacks_nothing() -> None:
    fields = {"worker": 1, "node": NodeName("n1"), "gpus": ("GPU-1",)}
    built = build(PlacedWorker, **dict(reversed(fields.items())))
    assert built.model_dump_json() == PlacedWorker(**fields).model_dump_json()
    with pytest.raises(TypeError, match="node"):
        build(PlacedWorker, worker=1)

"""Every strict type takes what is right and nothing else, in Python and in JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from railweave.contracts import types
from railweave.contracts.types import IntegerAmount, Text

TEXTS: dict[type[Text], tuple[list[str], list[str]]] = {
    types.ClusterName: (
        ["lab", "slurm-a", "a", "k8s.b_1", "x" * 64],
        ["", "-a", "a-", "a b", "ü", "a/b", "x" * 65, "a\n"],
    ),
    types.JobName: (
        ["88121", 'Schüler "70B" 100%', "k8s/ns/job", " ", "x" * 256],
        ["", "a\nb", "\x7f", "\x00", "x" * 257],
    ),
    types.RunUid: (["s9K2D7Q1"], ["", "a\tb"]),
    types.NodeName: (["gpu-001", "node1.rack2", "узел"], ["", "a b", "a/b", "a\n", "x" * 254]),
    types.LeafName: (["leaf-r0-p1"], ["", "leaf 1"]),
    types.TenantName: (["default", "nlp team"], ["", "x" * 129]),
    types.DatasetName: (["fineweb-edu", "org/name", "../x"], ["", "a\x00"]),
    types.DatasetVersion: (["latest", "2026-10"], ["", "x" * 129]),
    types.Label: (["h100"], ["", "\x1b[31m"]),
    types.PciAddress: (
        ["0000:3b:00.0", "ffff:ff:1f.7"],
        ["", "0000:3B:00.0", "3b:00.0", "0000:3b:20.0", "0000:3b:00.8", "0000:3b:00.0\n"],
    ),
    types.MacAddress: (
        ["02:00:00:01:00:03", "b8:3f:d2:00:10:02"],
        ["", "01:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "02-00-00-01-00-03", "02:00:00:01:00", "B8:3F:D2:00:10:02"],
    ),
    types.InterfaceName: (
        ["rail0", "ens1f0np0", "eth0.100", "x" * 15, "a=b@c", "..."],
        ["", ".", "..", "x" * 16, "a b", "a/b", "ü", "rail0\n"],
    ),
    types.GpuUuid: (
        ["GPU-1b2c0c5e-7a11-4d53-9b0e-0a4d6f6d1a01", "MIG-0"],
        ["", "gpu-1", "GPU-", "GPU-x y", "1b2c0c5e"],
    ),
    types.BootId: (["1f6c1c2e-8a0b-4f7e-9a51-3f1b5f2f7f10"], ["", "x" * 65]),
}

AMOUNTS: dict[type[IntegerAmount], tuple[list[int], list[int]]] = {
    types.Bytes: ([0, 2**63 - 1], [-1, 2**63]),
    types.Mib: ([0, 81559], [-1, 2**40 + 1]),
    types.Milli: ([1, 1000], [0, 1001, -5]),
    types.VlanId: ([1, 4094], [0, 4095, 4096]),
    types.Rail: ([0, 255], [-1, 256]),
    types.VfIndex: ([0, 255], [-1, 256]),
    types.Slot: ([0, 65535], [-1, 65536]),
    types.Attempt: ([1, 2**31 - 1], [0, 2**31]),
    types.Round: ([1], [0]),
}

ADDRESSES: dict[Any, tuple[list[str], list[str]]] = {
    types.IpInterface: (
        ["10.64.0.18/26", "fd00::1/64"],
        ["10.64.0.18", "10.64.0.300/26", "10.64.0.1/33", "fe80::1%eth0/64", ""],
    ),
    types.IpAddress: (["10.64.0.18", "fd00::1"], ["10.64.0", "10.64.0.1/24", "fe80::1%a b", "host", ""]),
    types.IpNetwork: (["10.64.0.0/26", "fd00::/64"], ["10.64.0.1/26", "10.64.0.0/40", "x", ""]),
    types.SourceUri: (
        ["file:/data/c4", "https://host/x?y=1", "hf:org/name"],
        ["ftp://host/x", "/data/c4", "file:", "file:/a\nb", "javascript:1"],
    ),
    types.UtcTime: (
        ["2026-12-01T10:00:00Z", "2026-12-01T12:00:00.250+02:00"],
        ["2026-12-01T10:00:00", "2026-13-01T10:00:00Z", "yesterday", ""],
    ),
}


def pairs(table: dict[Any, tuple[list[Any], list[Any]]], index: int) -> list[Any]:
    return [
        pytest.param(kind, value, id=f"{getattr(kind, '__name__', '')}-{value!r:.40}")
        for kind, both in table.items()
        for value in both[index]
    ]


def test_no_strict_type_is_left_out() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(found for child in kind.__subclasses__() for found in below(child))}

    assert below(Text) - {Text} == set(TEXTS)
    assert below(IntegerAmount) - {IntegerAmount} == set(AMOUNTS)


@pytest.mark.parametrize(("kind", "value"), pairs(TEXTS, 0) + pairs(AMOUNTS, 0))
def test_right_values_become_the_type_and_print_as_themselves(kind: type[Any], value: Any) -> None:
    made = kind(value)
    assert made == value
    assert type(made) is kind
    assert str(made) == str(value)
    adapter = TypeAdapter(kind)
    assert type(adapter.validate_json(json.dumps(value))) is kind
    assert json.loads(adapter.dump_json(made)) == value


@pytest.mark.parametrize(("kind", "value"), pairs(TEXTS, 1) + pairs(AMOUNTS, 1))
def test_wrong_values_are_refused_with_what_was_expected(kind: type[Any], value: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        kind(value)
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(json.dumps(value))


@pytest.mark.parametrize("kind", list(AMOUNTS))
@pytest.mark.parametrize("text", ["1.0", "1e2", '"1"', "true", "null", "[1]", "NaN", "1" + "0" * 400])
def test_an_amount_is_a_whole_number_of_json_and_nothing_else(kind: type[IntegerAmount], text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(text)


@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_an_amount_is_never_made_of_another_type(value: Any) -> None:
    with pytest.raises(ValueError, match="whole number"):
        types.Bytes(value)


@pytest.mark.parametrize("kind", list(TEXTS))
@pytest.mark.parametrize("text", ["1", "null", "true", '["a"]', '{"a": 1}'])
def test_a_text_is_a_string_of_json_and_nothing_else(kind: type[Text], text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(text)


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_no_text(value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        types.JobName(value)


@pytest.mark.parametrize(("kind", "value"), pairs(ADDRESSES, 0))
def test_right_addresses_sources_and_times_are_taken(kind: Any, value: str) -> None:
    TypeAdapter(kind).validate_json(json.dumps(value))


@pytest.mark.parametrize(("kind", "value"), pairs(ADDRESSES, 1))
def test_wrong_addresses_sources_and_times_are_refused(kind: Any, value: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(json.dumps(value))


def test_times_are_written_in_utc_to_the_millisecond() -> None:
    adapter = TypeAdapter(types.UtcTime)
    for text, written in [
        ("2026-12-01T12:00:00+02:00", "2026-12-01T10:00:00Z"),
        ("2026-12-01T10:00:00.25Z", "2026-12-01T10:00:00.250Z"),
        # Read again and written again it must be the same text.
        ("2026-12-01T10:00:00.000250Z", "2026-12-01T10:00:00Z"),
    ]:
        assert json.loads(adapter.dump_json(adapter.validate_json(json.dumps(text)))) == written

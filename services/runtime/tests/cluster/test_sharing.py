"""Sharing parts changes nothing that can be seen."""

from __future__ import annotations

from datetime import UTC, datetime

from railweave.contracts import decode_event, encode_event
from railweave.contracts.inventory import NodeHardware
from railweave.runtime.sharing import share_parts, shared


def hardware(name: str) -> NodeHardware:
    document = {
        "node": name,
        "revision": 1,
        "boot_id": "b",
        "agent_version": "1",
        "pfs": [{"pci": f"0000:1{rail}:00.0", "rail": rail, "netdev": f"r{rail}", "vfs": 8} for rail in range(4)],
    }
    return NodeHardware.model_validate(document, strict=False)


def test_a_model_is_equal_to_itself_before_and_is_written_alike() -> None:
    before, after = hardware("n1"), share_parts(hardware("n1"))
    assert after == before
    assert after.model_fields_set == before.model_fields_set
    now = datetime(2026, 12, 1, tzinfo=UTC)
    assert encode_event(after, time=now).body == encode_event(before, time=now).body
    assert type(after.pfs[0].pci) is type(before.pfs[0].pci)
    assert decode_event(encode_event(after)).data == before


def test_equal_parts_of_two_models_are_one() -> None:
    one, other = share_parts(hardware("n1")), share_parts(hardware("n2"))
    assert one.pfs[2].pci is other.pfs[2].pci
    assert one.pfs[0].__pydantic_fields_set__ is other.pfs[3].__pydantic_fields_set__


def test_equal_texts_of_different_types_are_kept_apart() -> None:
    pci = hardware("n1").pfs[0].pci
    assert type(shared(str(pci))) is str
    assert type(shared(pci)) is type(pci)

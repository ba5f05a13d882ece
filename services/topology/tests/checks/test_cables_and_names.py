"""Names and cables one by one: every fault is found, with its device, its port and what was expected there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.topology.cabling import Cable, Cabling, CablingBuilder, Device, End, Kind, Where
from railweave.topology.checks import Finding, FindingKind, check
from railweave.topology.model import Role
from railweave.topology.providers.base import Found

Ends = tuple[str, str]
"""`leaf1:Ethernet0`, `n1:eth0`; a port may be left out."""


def end(text: str) -> End:
    device, colon, port = text.partition(":")
    return End(device, port if colon else None)


def cabling(
    switches: Iterable[str] = (),
    hosts: Iterable[str] = (),
    cables: Iterable[Ends] = (),
    *,
    told: Iterable[tuple[str, str, str]] = (),
    reporters: Iterable[str] = (),
    role: Role = Role.COMPUTE,
) -> Cabling:
    """Devices and cables, a line each; `told` are (who told, one end, other end)."""
    found = CablingBuilder()
    lines = iter(range(1, 10_000))
    for name in switches:
        found.declare(Device(name, Kind.SWITCH, Where("f", next(lines))))
    for name in hosts:
        found.declare(Device(name, Kind.HOST, Where("f", next(lines))))
    for name in reporters:
        found.report(name)
    for a, b in cables:
        found.cable(Cable(end(a), end(b), Where("f", next(lines)), role=role))
    for who, a, b in told:
        found.cable(Cable(end(a), end(b), Where("f", next(lines)), frozenset({who})))
    return found.built()


def findings(made: Cabling, *kinds: FindingKind) -> list[Finding]:
    return [finding for finding in check(Found(made)) if not kinds or finding.kind in kinds]


def only(made: Cabling) -> Finding:
    (finding,) = findings(made)
    return finding


SMALL = (("n1:eth0", "leaf1:Ethernet0"), ("n2:eth0", "leaf1:Ethernet1"))


def test_a_sound_fabric_has_no_findings() -> None:
    assert findings(cabling(["leaf1"], ["n1", "n2"], SMALL)) == []


class TestNames:
    def test_a_name_used_twice_says_where_it_was_first(self) -> None:
        finding = only(cabling(["leaf1"], ["n1", "n2", "n1"], SMALL))
        assert (finding.kind, finding.device, finding.port) == (FindingKind.DUPLICATE_NAME, "n1", None)
        assert finding.text == "host n1: the name is used twice, first at f:2"
        assert finding.expected == "a name of its own: it is the name at f:2"
        assert str(finding.where) == "f:4"

    def test_a_host_named_as_a_switch_says_so(self) -> None:
        finding = only(cabling(["leaf1"], ["n1", "n2", "leaf1"], SMALL))
        assert finding.text == "host leaf1: the name is used twice, first of a switch at f:1"

    @pytest.mark.parametrize(("one", "other"), [("N1", "n1"), ("leaf1", "LEAF1"), ("straße", "STRASSE")])
    def test_names_alike_but_for_case_are_one_name_spelt_twice(self, one: str, other: str) -> None:
        made = cabling(["l"], [one, other], [(f"{one}:a", "l:0"), (f"{other}:a", "l:1")])
        finding = only(made)
        assert (finding.kind, finding.device, finding.is_error) == (FindingKind.DUPLICATE_NAME, other, True)
        assert finding.expected == f"one spelling: {one} or {other}"

    @pytest.mark.parametrize("name", ["", " ", "\t"])
    def test_no_name_is_an_error(self, name: str) -> None:
        finding = only(cabling(["l"], [name], [(f"{name}:a", "l:0")]))
        assert (finding.kind, finding.device, finding.is_error) == (FindingKind.MISSING_NAME, name, True)

    @pytest.mark.parametrize(
        "name",
        [
            *("e09d730300858d88", "0xe09d730300858d88", "H-e09d730300858d88", "ca-e09d730300858d88"),
            *("08:c0:eb:12:34:56", "08c0eb123456", "localhost"),
        ],
    )
    def test_a_device_known_by_its_number_only_works_and_is_told_of(self, name: str) -> None:
        made = CablingBuilder()
        made.declare(Device("l", Kind.SWITCH, Where("f", 1)))
        made.declare(Device(name, Kind.HOST, Where("f", 2)))
        made.cable(Cable(End(name, "1"), End("l", "1"), Where("f", 2)))
        finding = only(made.built())
        assert (finding.kind, finding.device, finding.is_error) == (FindingKind.MISSING_NAME, name, False)

    @pytest.mark.parametrize("name", ["deadbeef", "rack-0a", "gpu-node-000000000001", "c0ffee"])
    def test_a_name_that_looks_a_little_like_a_number_is_a_name(self, name: str) -> None:
        assert findings(cabling(["l"], [name], [(f"{name}:a", "l:0")])) == []

    @pytest.mark.parametrize("name", ["a/b", "n 1", "n\x00", "x" * 300, "../../etc", "n\n1", "n\ud800"])
    @pytest.mark.parametrize("kind", list(Kind))
    def test_a_name_that_cannot_be_is_told_on_one_line(self, name: str, kind: Kind) -> None:
        made = CablingBuilder()
        made.declare(Device(name, kind, Where("f", 3)))
        other = Kind.HOST if kind is Kind.SWITCH else Kind.SWITCH
        made.declare(Device("l", other, Where("f", 1)))
        made.cable(Cable(End(name, "1"), End("l", "1"), Where("f", 3)))
        finding = only(made.built())
        assert (finding.kind, finding.device) == (FindingKind.BAD_NAME, name)
        assert finding.text.isprintable()
        assert len(finding.text) < 500


class TestCables:
    def test_a_link_that_the_other_end_does_not_tell_of_is_half(self) -> None:
        made = cabling(
            ["leaf1", "spine1"],
            ["n1"],
            [("n1:eth0", "leaf1:Ethernet0"), ("leaf1:Ethernet9", "spine1:Ethernet9")],
            told=[("leaf1", "leaf1:Ethernet8", "spine1:Ethernet0")],
            reporters=["leaf1", "spine1"],
        )
        half = [finding for finding in findings(made, FindingKind.HALF_LINK) if finding.port == "Ethernet0"]
        assert [(one.device, one.expected) for one in half] == [("spine1", "a link to leaf1:Ethernet8")]
        assert half[0].text == "spine1:Ethernet0: leaf1:Ethernet8 tells of a link to it, and it tells of nothing there"
        assert half[0].is_error

    def test_ends_that_disagree_say_what_each_tells(self) -> None:
        made = cabling(
            ["leaf1", "spine1", "spine2"],
            told=[
                ("leaf1", "leaf1:p1", "spine1:p7"),
                ("spine1", "spine1:p7", "leaf1:p2"),
                ("spine2", "spine2:p1", "leaf1:p2"),
            ],
            reporters=["leaf1", "spine1"],
        )
        half = findings(made, FindingKind.HALF_LINK)
        assert [finding.text for finding in half] == [
            "leaf1:p2: spine1:p7 tells of a link to it, and it tells of spine2:p1 there",
            "spine1:p7: leaf1:p1 tells of a link to it, and it tells of leaf1:p2 there",
        ]

    def test_a_link_to_a_device_that_was_not_asked_is_whole(self) -> None:
        made = cabling(["leaf1"], ["n1"], told=[("leaf1", "leaf1:Ethernet0", "n1:eth0")], reporters=["leaf1"])
        assert findings(made) == []

    def test_a_link_that_both_tell_of_is_whole(self) -> None:
        made = cabling(
            ["leaf1"],
            ["n1"],
            told=[("leaf1", "leaf1:Ethernet0", "n1:eth0"), ("n1", "n1:eth0", "leaf1:Ethernet0")],
            reporters=["leaf1", "n1"],
        )
        assert findings(made) == []

    def test_two_cables_in_one_port_are_found_at_either_end(self) -> None:
        made = cabling(
            ["leaf1", "leaf2"],
            ["n1", "n2", "n3"],
            [*SMALL, ("n3:eth0", "leaf1:Ethernet1"), ("n3:eth0", "leaf2:Ethernet0"), ("n3:eth0", "leaf2:Ethernet5")],
        )
        twice = findings(made, FindingKind.PORT_USED_TWICE)
        assert [(one.device, one.port) for one in twice] == [("leaf1", "Ethernet1"), ("n3", "eth0")]
        assert twice[0].text == "leaf1:Ethernet1: used 2 times, by cables to n2:eth0, n3:eth0"
        assert twice[1].text.startswith("n3:eth0: used 3 times")
        assert str(twice[0].where) == "f:8"

    def test_a_rail_with_two_nics_is_a_port_used_twice(self) -> None:
        found = CablingBuilder()
        found.declare(Device("l", Kind.SWITCH, Where("f", 1)))
        found.declare(Device("n1", Kind.HOST, Where("f", 2)))
        for role in (Role.COMPUTE, Role.STORAGE, Role.COMPUTE):
            found.cable(Cable(End("n1"), End("l"), Where("f", 3), rail=2, role=role))
        finding = only(found.built())
        assert (finding.kind, finding.device, finding.port) == (FindingKind.PORT_USED_TWICE, "n1", "rail 2")

    @pytest.mark.parametrize("rail", [-1, 256])
    def test_a_rail_that_cannot_be_is_found(self, rail: int) -> None:
        found = CablingBuilder()
        found.declare(Device("l", Kind.SWITCH, Where("f", 1)))
        found.declare(Device("n1", Kind.HOST, Where("f", 2)))
        found.cable(Cable(End("n1"), End("l"), Where("f", 3), rail=rail))
        assert only(found.built()).kind is FindingKind.BAD_RAIL

    def test_a_host_as_uplink_of_a_leaf_has_no_rail_there_and_is_found(self) -> None:
        """Import counted it as the next rail, which was taken; check saw nothing."""
        found = CablingBuilder()
        for name, kind in (("l1", Kind.SWITCH), ("l2", Kind.SWITCH), ("n1", Kind.HOST)):
            found.declare(Device(name, kind, Where("f", 1)))
        for rail in (0, 1):
            found.cable(Cable(End("n1"), End(f"l{rail + 1}", f"p{rail}"), Where("f", 2), rail=rail))
        found.cable(Cable(End("l1"), End("n1"), Where("f", 3)))
        finding = only(found.built())
        assert (finding.kind, finding.device, finding.port) == (FindingKind.BAD_RAIL, "n1", None)
        assert finding.text == "n1: its cable to l1 has no rail, and others of the host have"
        assert str(finding.where) == "f:3"

    def test_a_cable_to_nowhere_names_both_ends(self) -> None:
        finding = only(cabling(["leaf1"], ["n1"], [("n1:eth0", "leaf1:1"), ("leaf1:Ethernet4", "ghost:7")]))
        assert (finding.kind, finding.device, finding.port) == (FindingKind.UNKNOWN_DEVICE, "leaf1", "Ethernet4")
        assert finding.expected == "a device named ghost"

    def test_a_cable_that_leads_back_is_a_loop(self) -> None:
        finding = only(cabling(["leaf1"], ["n1"], [("n1:eth0", "leaf1:1"), ("leaf1:4", "leaf1:5")]))
        assert (finding.kind, finding.device, finding.port) == (FindingKind.LOOP, "leaf1", "4")

    def test_a_cable_between_hosts_is_told_of(self) -> None:
        finding = only(cabling(["leaf1"], ["n1", "n2"], [*SMALL, ("n1:eth7", "n2:eth7")]))
        assert (finding.kind, finding.device, finding.port) == (FindingKind.HOST_TO_HOST, "n1", "eth7")
        assert not finding.is_error

    @pytest.mark.parametrize("role", list(Role))
    def test_a_host_on_a_spine_is_an_error_unless_it_manages(self, role: Role) -> None:
        found = CablingBuilder()
        for name, tier in (("leaf1", 1), ("spine1", 2)):
            found.declare(Device(name, Kind.SWITCH, Where("f", 1), tier))
        for name in ("n1", "odd"):
            found.declare(Device(name, Kind.HOST, Where("f", 2)))
        found.cable(Cable(End("leaf1", "9"), End("spine1", "1"), Where("f", 3)))
        found.cable(Cable(End("n1", "a"), End("leaf1", "1"), Where("f", 4)))
        found.cable(Cable(End("odd", "a"), End("spine1", "2"), Where("f", 5), role=role))
        finding = only(found.built())
        assert (finding.kind, finding.device, finding.port) == (FindingKind.HOST_ON_SPINE, "odd", "a")
        assert finding.expected == "a leaf"
        assert finding.is_error == (role is not Role.MANAGEMENT)

    def test_a_node_without_links_is_an_error_and_a_spare_switch_is_none(self) -> None:
        made = cabling(["leaf1", "spare"], ["n1", "n2", "n3"], SMALL)
        assert [(one.kind, one.device, one.is_error) for one in findings(made)] == [
            (FindingKind.NO_LINKS, "n3", True),
            (FindingKind.NO_LINKS, "spare", False),
        ]

    def test_a_node_with_half_a_link_only_says_that_no_link_is_agreed_on(self) -> None:
        made = cabling(
            ["leaf1"],
            ["n1", "n2", "n3"],
            SMALL,
            told=[("leaf1", "leaf1:Ethernet5", "n3:eth0")],
            reporters=["leaf1", "n3"],
        )
        (finding,) = findings(made, FindingKind.NO_LINKS)
        assert finding.text == "node n3: no link that both ends tell of"


def test_an_odd_name_of_a_port_is_told_on_one_line() -> None:
    port = "e\n\x1b[2J\u2028" + "9" * 100_000
    found = findings(cabling(["leaf1"], ["n1", "n2"], [("n1:a", f"leaf1:{port}"), ("n2:a", f"leaf1:{port}")]))
    assert [(one.kind, one.port) for one in found] == [(FindingKind.PORT_USED_TWICE, port)]
    assert found[0].text.startswith("leaf1:e\\n\\x1b[2J\\u2028999")
    assert len(found[0].text) < 600


NAMES = st.sampled_from(["n1", "n2", "n3", "N1", "leaf1", "leaf2", "spine1", "ghost", "a/b", "n\n1", ""])
PORTS = st.sampled_from([None, "1", "2", "3"])
ENDS = st.builds(End, NAMES, PORTS)
PLACES = st.builds(Where, st.just("f"), st.integers(1, 9))
DEVICES = st.builds(Device, NAMES, st.sampled_from(Kind), PLACES, st.sampled_from([None, 1, 2]))
CABLES = st.builds(
    Cable,
    ENDS,
    ENDS,
    st.just(Where("f", 1)),
    st.frozensets(NAMES, max_size=2),
    st.sampled_from([None, None, 0, 1, 256]),
    st.sampled_from(Role),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(DEVICES, max_size=8), st.lists(CABLES, max_size=10), st.frozensets(NAMES), st.booleans())
def test_what_has_no_error_has_a_graph(
    devices: list[Device], cables: list[Cable], reporters: frozenset[str], with_all: bool
) -> None:
    """The other way round: a graph that is refused has at least one error that says why."""
    found = CablingBuilder()
    for name in ("n1", "n2", "leaf1", "spine1") if with_all else ():
        found.declare(Device(name, Kind.HOST if name.startswith("n") else Kind.SWITCH, Where("f", 1)))
    for device in devices:
        found.declare(device)
    for name in reporters:
        found.report(name)
    for cable in cables:
        found.cable(cable)
    made = Found(found.built())
    result = check(made)
    assert result == check(made)
    assert all(finding.text.isprintable() and finding.expected.isprintable() for finding in result)
    if not any(finding.is_error for finding in result):
        made.imported()

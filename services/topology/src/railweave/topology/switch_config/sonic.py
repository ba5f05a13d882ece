"""SONiC: `config_db` tables, and the JSON patch that brings a running configuration to them without an unsafe step.

The patch is RFC 6902, as `config apply-patch` takes it. Order matters to the daemons behind the tables: what goes, goes
from the leaves of the dependency to its root (addresses, interfaces, members, VLANs, VRFs), what comes, the other way.
Objects that exist are changed field by field, never replaced: other features keep fields of their own in them. No table
is left empty, which SONiC refuses. The `members` list of old versions is neither written nor touched.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from railweave.topology.json_tree import read_json
from railweave.topology.switch_config.model import SwitchIntent
from railweave.topology.yaml_tree import FileError

ConfigTables = dict[str, dict[str, dict[str, Any]]]
"""Rows by table and key, as in a nested config_db.json."""

Op = dict[str, Any]

_OUR_VRF: Final = re.compile(r"Vrf-s\d+", re.ASCII)
_VLAN: Final = re.compile(r"Vlan(\d{1,4})", re.ASCII)
_ROUTED: Final = ("VLAN_INTERFACE", "INTERFACE", "PORTCHANNEL_INTERFACE", "LOOPBACK_INTERFACE", "MGMT_INTERFACE")
_OURS: Final = ("VRF", "VLAN", "VLAN_MEMBER", "VLAN_INTERFACE")


@dataclass(frozen=True, slots=True)
class SonicPatch:
    """What would change on a switch."""

    operations: tuple[Op, ...]
    conflicts: tuple[str, ...]
    """What stands in the way on the switch; the operations leave it out. One line each, with what to do."""

    def describe(self) -> list[str]:
        """The operations as lines for people."""
        signs = {"add": "+", "remove": "-", "replace": "~"}
        return [
            f"{signs[op['op']]} {_unescaped(op['path'])}" + (f" {json.dumps(op['value'])}" if "value" in op else "")
            for op in self.operations
        ]


def read_tables(content: bytes, file: str) -> ConfigTables:
    """Read a config_db.json, nested or a flat dump.

    Raises:
        FileError: it is none.
    """
    read_json(content, file)  # size, depth and keys written twice are refused there
    top = json.loads(content.decode("utf-8-sig"))
    if not isinstance(top, dict):
        raise FileError(file, None, "", "expected an object with tables")
    tables: ConfigTables = {}
    for key, value in top.items():
        table, bar, row = key.partition("|")
        rows = {row: value} if bar else value
        if not isinstance(rows, dict) or not all(isinstance(fields, dict) for fields in rows.values()):
            raise FileError(file, None, key[:80], "expected rows with fields")
        tables.setdefault(table, {}).update(rows)
    return tables


def tables_of(intent: SwitchIntent) -> ConfigTables:
    """The rows that Railweave wants on a switch; tables without rows are left out."""
    tables: ConfigTables = {table: {} for table in _OURS}
    tables["VRF"] = {vrf: {} for vrf in intent.vrfs}
    for vlan in intent.vlans:
        name = f"Vlan{vlan.vlan}"
        tables["VLAN"][name] = {"vlanid": str(vlan.vlan), "mtu": str(vlan.mtu)}
        for port in vlan.members:
            tables["VLAN_MEMBER"][f"{name}|{port}"] = {"tagging_mode": "tagged"}
        tables["VLAN_INTERFACE"][name] = {"vrf_name": vlan.vrf} if vlan.vrf is not None else {}
        for gateway in vlan.gateways:
            tables["VLAN_INTERFACE"][f"{name}|{gateway}"] = {}
    return {table: rows for table, rows in tables.items() if rows}


def patch_of(running: ConfigTables, intent: SwitchIntent, is_owned: Callable[[int], bool]) -> SonicPatch:
    """What brings a running configuration to the intent.

    Args:
        running: the switch's configuration.
        intent: what is wanted of it.
        is_owned: whether a VLAN id is Railweave's to take away; those of the intent are.
    """
    return _Patcher(running, intent, is_owned).patch()


class _Patcher:
    def __init__(self, running: ConfigTables, intent: SwitchIntent, is_owned: Callable[[int], bool]) -> None:
        self._now = copy.deepcopy(running)
        self._wanted = tables_of(intent)
        self._owned = {vlan.vlan for vlan in intent.vlans}
        self._is_owned = is_owned
        self._operations: list[Op] = []
        self._conflicts: list[str] = []
        self._others: dict[tuple[str, str], dict[str, Any]] = {}
        """What other features keep in rows that have to be taken away and put back."""

    def patch(self) -> SonicPatch:
        self._leave_out_conflicts()
        for table, key in self._gone():
            self._remove(table, key)
        for table in _OURS:
            # An address needs its interface: the shorter key comes first.
            for key in sorted(self._wanted.get(table, {}), key=lambda key: "|" in key and table == "VLAN_INTERFACE"):
                self._put(table, key, self._wanted[table][key])
        return SonicPatch(tuple(self._operations), tuple(self._conflicts))

    # -- what stands in the way --------------------------------------------------------------------------------

    def _leave_out_conflicts(self) -> None:
        ports = self._now.get("PORT", {}).keys() | self._now.get("PORTCHANNEL", {}).keys()
        routed = {key.partition("|")[0] for key in self._now.get("INTERFACE", {})}
        bundled = {key.partition("|")[2]: key.partition("|")[0] for key in self._now.get("PORTCHANNEL_MEMBER", {})}
        members = self._wanted.get("VLAN_MEMBER", {})
        said: set[str] = set()
        for key in list(members):
            port = key.partition("|")[2]
            reason = None
            if ports and port not in ports:
                reason = "is not in PORT; name the ports in the fabric file as the switch does"
            elif port in routed:
                reason = "has an address of its own (INTERFACE), which a VLAN member must not have; take it away first"
            elif port in bundled:
                reason = f"is a member of {bundled[port]}; name the port channel in the fabric file"
            if reason is not None:
                del members[key]
                if port not in said:
                    self._conflicts.append(f"{port} {reason}")
                said.add(port)
        self._leave_out_overlaps()

    def _leave_out_overlaps(self) -> None:
        """A gateway inside a network that the switch has elsewhere would cut that off."""
        others = [
            (ipaddress.ip_interface(address).network, f"{table} {name}")
            for table in _ROUTED
            for name, address in _addresses(self._now.get(table, {}))
            if table != "VLAN_INTERFACE" or not self._is_ours(name)
        ]
        interfaces = self._wanted.get("VLAN_INTERFACE", {})
        for name, address in list(_addresses(interfaces)):
            network = ipaddress.ip_interface(address).network
            other = next((who for net, who in others if net.version == network.version and net.overlaps(network)), None)
            if other is not None:
                del interfaces[f"{name}|{address}"]
                self._conflicts.append(f"{name}: {network} overlaps what {other} has; reserve it and plan again")

    # -- what goes ---------------------------------------------------------------------------------------------

    def _is_ours(self, vlan_name: str) -> bool:
        found = _VLAN.fullmatch(vlan_name)
        return found is not None and (int(found[1]) in self._owned or self._is_owned(int(found[1])))

    def _gone(self) -> Iterator[tuple[str, str]]:
        """The rows to take away, in an order that leaves nothing that refers to what is gone."""
        interfaces = self._now.get("VLAN_INTERFACE", {})
        wanted = self._wanted.get("VLAN_INTERFACE", {})
        rebound = {
            key
            for key, row in interfaces.items()
            if key in wanted and "|" not in key and row.get("vrf_name") != wanted[key].get("vrf_name")
        }
        for key in rebound:
            kept = {name: value for name, value in interfaces[key].items() if name not in {"vrf_name", "NULL"}}
            self._others["VLAN_INTERFACE", key] = kept
        for is_base in (False, True):
            for key in list(interfaces):
                name, bar, _ = key.partition("|")
                if (not bar) is is_base and self._is_ours(name) and (key not in wanted or name in rebound):
                    # Of an interface that stays it is another VRF only: SONiC takes that on a bare interface alone.
                    yield "VLAN_INTERFACE", key
        for key in list(self._now.get("VLAN_MEMBER", {})):
            if self._is_ours(key.partition("|")[0]) and key not in self._wanted.get("VLAN_MEMBER", {}):
                yield "VLAN_MEMBER", key
        for table, is_ours in (("VLAN", self._is_ours), ("VRF", lambda name: bool(_OUR_VRF.fullmatch(name)))):
            for key in list(self._now.get(table, {})):
                if is_ours(key) and key not in self._wanted.get(table, {}):
                    user = self._user_of(key)
                    if user is None:
                        yield table, key
                    else:
                        self._conflicts.append(f"{key} is not wanted any more and {user} refers to it; end that first")

    def _user_of(self, name: str) -> str | None:
        """A row of another feature, or of a VLAN that is not ours, that refers to a VLAN or VRF."""
        for key, row in self._now.get("VLAN_INTERFACE", {}).items():
            if row.get("vrf_name") == name:
                return f"VLAN_INTERFACE {key}"
        for table, rows in self._now.items():
            if table in _OURS:
                continue
            for key, fields in rows.items():
                if name in key.split("|") or any(name in _words(value) for value in fields.values()):
                    return f"{table} {key}"
        return None

    # -- steps -------------------------------------------------------------------------------------------------

    def _remove(self, table: str, key: str) -> None:
        rows = self._now[table]
        del rows[key]
        if rows:
            self._operations.append({"op": "remove", "path": _pointer(table, key)})
        else:
            del self._now[table]
            self._operations.append({"op": "remove", "path": _pointer(table)})

    def _put(self, table: str, key: str, wanted: Mapping[str, Any]) -> None:
        fields = self._others.get((table, key), {}) | dict(wanted)
        if table not in self._now:
            self._now[table] = {key: dict(fields)}
            self._operations.append({"op": "add", "path": _pointer(table), "value": {key: dict(fields)}})
            return
        there = self._now[table].get(key)
        if there is None:
            self._now[table][key] = dict(fields)
            self._operations.append({"op": "add", "path": _pointer(table, key), "value": dict(fields)})
            return
        for name, value in fields.items():
            if there.get(name) != value:
                op = "replace" if name in there else "add"
                there[name] = value
                self._operations.append({"op": op, "path": _pointer(table, key, name), "value": value})


def _addresses(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Interface and address of each row that has one."""
    for key in rows:
        name, _, address = key.partition("|")
        if address:
            try:
                ipaddress.ip_interface(address)
            except ValueError:
                continue
            yield name, address


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value).split(",")


def _pointer(*parts: str) -> str:
    """RFC 6901."""
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in parts)


def _unescaped(pointer: str) -> str:
    return " ".join(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])

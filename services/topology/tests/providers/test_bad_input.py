"""Whatever a file holds, every format answers with a graph or with an error that names the file; never with more.

Formats come from `PROVIDERS`: one that is added is tested with the rest. `SAMPLES` says what to spoil of each.
"""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railweave.topology import cabling
from railweave.topology.checks import check
from railweave.topology.model import Graph
from railweave.topology.providers import PROVIDERS
from railweave.topology.providers.base import ImportOptions
from railweave.topology.yaml_tree import MOST_BYTES, FileError

REAL = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[5] / "shared")) / "data" / "topology"
MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """A file of a format, and what in it may be spoiled."""

    provider: str
    content: str = ""
    real: str = ""
    """A real file instead."""
    name: str = ""
    """A device's name in it."""
    hostlist: str = ""
    """A hostlist in it."""
    vlan: str = ""
    """A VLAN id in it."""
    is_json: bool = False

    def whole(self) -> bytes:
        if not self.real:
            return self.content.encode()
        path = REAL / self.real
        if not path.exists():
            pytest.skip(f"no real fabric files at {REAL}")
        return path.read_bytes()

    def small(self) -> bytes:
        """The sample, or as much of it as can be read many times."""
        content = self.whole()
        return content if len(content) < 80_000 else content[: content.rindex(b"\n\n", 0, 30_000)]


FABRIC = """\
version: 1
spines:
  - name: spine[1-2]
leaves:
  - name: leaf[1-2]
    pod: pod-a
    uplinks: spine[1-2]
nodes:
  - name: n[01-02]
    rails: 0-1
    leaves: leaf[1-2]
    leaf_ports: Ethernet[0-1]
  - name: lonely
    ports:
      - {rail: 0, leaf: leaf2, port: Ethernet63}
links:
  - [leaf1:Ethernet48, spine1:Ethernet0]
"""

SLURM_YAML = """\
- topology: tree
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[1-2]
      - switch: s1
        nodes: node[01-16]
      - switch: s2
        nodes: node[17-32]
- topology: blocks
  block:
    block_sizes: [4, 16]
    blocks:
      - block: b1
        nodes: node[01-04]
"""

LLDP = {
    "lldp": [
        {
            "interface": [
                {
                    "name": "eth0",
                    "chassis": [{"id": [{"type": "mac", "value": "00:00:00:00:00:01"}], "name": [{"value": "lonely"}]}],
                    "port": [{"id": [{"type": "ifname", "value": "Ethernet0"}]}],
                }
            ]
        }
    ]
}

SONIC = {
    "DEVICE_METADATA": {"localhost": {"hostname": "leaf1", "type": "ToRRouter"}},
    "PORT": {"Ethernet0": {"admin_status": "up"}, "Ethernet4": {"admin_status": "up"}, "Ethernet8": {}},
    "DEVICE_NEIGHBOR": {
        "Ethernet0": {"name": "lonely", "port": "eth0"},
        "Ethernet8": {"name": "spine1", "port": "Ethernet0"},
    },
    "DEVICE_NEIGHBOR_METADATA": {"lonely": {"type": "Server"}, "spine1": {"type": "LeafRouter"}},
    "VLAN": {"Vlan1234": {"vlanid": "1234", "dhcp_servers": ["192.0.2.1"]}},
    "VLAN_MEMBER": {"Vlan1234|Ethernet0": {"tagging_mode": "untagged"}},
    "VLAN_INTERFACE": {"Vlan1234": {}, "Vlan1234|10.0.0.1/24": {}},
}

NETBOX = {
    "devices": [
        {"id": 1, "name": "leaf1", "device_type": {"model": "x"}, "role": {"slug": "leaf"}},
        {"id": 2, "name": "lonely", "device_type": {"model": "x"}, "role": {"slug": "gpu-server"}},
    ],
    "interfaces": [
        {"id": 2, "device": {"name": "leaf1"}, "name": "Ethernet0", "untagged_vlan": {"vid": 1234}},
    ],
    "cables": [
        {
            "id": 1,
            "status": {"value": "connected"},
            "a_terminations": [
                {"object_type": "dcim.interface", "object": {"device": {"name": "lonely"}, "name": "eth0"}}
            ],
            "b_terminations": [
                {"object_type": "dcim.interface", "object": {"device": {"name": "leaf1"}, "name": "Ethernet0"}}
            ],
        }
    ],
}

CUMULUS = """\
- header: {model: vx}
- set:
    bridge: {domain: {br_default: {vlan: {"1234": {}}}}}
    interface:
      swp1-2,4: {type: swp, bridge: {domain: {br_default: {access: 1234}}}}
      vlan1234: {type: svi, vlan: 1234, ip: {address: {10.0.0.1/24: {}}}}
    system: {hostname: lonely}
"""

SAMPLES = {
    "railweave": Sample("railweave", FABRIC, name="lonely", hostlist="n[01-02]"),
    "topograph": Sample("topograph", real="topograph_large.yaml", name="spine-3", hostlist="srv21[01-08]"),
    "slurm": Sample("slurm", real="slurm_disconnected.topology.conf", name="leafA1", hostlist="node[17-24]"),
    "slurm-yaml": Sample("slurm-yaml", SLURM_YAML, name="s1", hostlist="node[17-32]"),
    "ibnetdiscover": Sample("ibnetdiscover", real="ibnetdiscover_h100.txt", name="a08-p1-dgx-04-c01"),
    "netq": Sample("netq", real="netq_topology_graph.json", name="node1", is_json=True),
    "containerlab": Sample("containerlab", real="containerlab_clos02.clab.yml", name="client1"),
    "links-csv": Sample("links-csv", real="sonic_lab_links.csv", name="str-7260-10"),
    "sonic": Sample("sonic", json.dumps(SONIC, indent=1), name="lonely", vlan="1234", is_json=True),
    "sonic, real": Sample("sonic", real="sonic_config_db_small.json", is_json=True),
    "lldp": Sample("lldp", json.dumps(LLDP, indent=1), name="lonely", is_json=True),
    "lldp, real": Sample("lldp", real="eos_lldp_neighbors_detail.json", is_json=True),
    "netbox": Sample("netbox", json.dumps(NETBOX, indent=1), name="lonely", vlan="1234", is_json=True),
    "cumulus": Sample("cumulus", CUMULUS, name="lonely", vlan="1234"),
}

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{this}: &{this} [{','.join(['*' + last] * 9)}]\n" for last, this in zip("abcdefgh", "bcdefghi", strict=True)
)
GARBAGE = {
    "nothing": b"",
    "blanks": b" \t\r\n\n \n",
    "a byte order mark": b"\xef\xbb\xbf",
    "NULs": bytes(4096),
    "random bytes": random.Random(7).randbytes(4096),
    "a gzip": b"\x1f\x8b\x08\x00" + random.Random(8).randbytes(500),
    "UTF-16": "version: 1\n".encode("utf-16"),
    "Latin-1": "SwitchName=caf\xe9 Nodes=n1\n".encode("latin-1"),
    "lone surrogates in JSON": b'{"nodes": "\\ud800", "\\udfff": [{"a": "\\ud83d"}]}',
    "an empty object": b"{}",
    "an empty list": b"[]",
    "null": b"null",
    "a number": b"17",
    "a text": b'"leaf1"',
    "a list of nulls": b"[null, null]",
    "objects of nulls": b'{"nodes": null, "links": null, "topology": null, "VLAN": null, "PORT": null}',
    "texts for tables": b'{"nodes": "x", "links": "x", "topology": "x", "VLAN": "x", "PORT": "x", "lldp": "x"}',
    "numbers no float holds": b'{"nodes": 1e999, "links": NaN, "VLAN": -Infinity}',
    "a number of 5000 digits": b'{"version": ' + b"9" * 5000 + b"}",
    "keys twice": b'{"nodes": [], "nodes": []}',
    "JSON nested deeply": b"[" * 200_000,
    "objects nested deeply": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "YAML nested deeply": b"".join(b" " * depth + b"a:\n" for depth in range(2_000)),
    "a YAML bomb": BOMB.encode(),
    "a YAML tag": b"nodes: !!python/object/apply:os.system ['true']\n",
    "a YAML merge": b"base: &b {a: 1}\nnodes:\n  <<: *b\n",
    "two documents": b"version: 1\n---\nversion: 1\n",
    "a line of 1 MB": b"a" * 1_000_000,
    "a word of 1 MB behind a key": b"SwitchName=s1 Nodes=" + b"n" * 1_000_000 + b"\n",
    "only line ends": b"\n" * 200_000,
    "only commas": b"," * 200_000,
    "a quote that is never closed": b'StartDevice,StartPort,EndDevice,EndPort\n"' + b"x,\n" * 100_000,
    "lines that go on for ever": b"\\\n" * 20_000,
}
EVERY_FORMAT = pytest.mark.parametrize("provider", PROVIDERS)


def every_sample(what: str = "provider") -> pytest.MarkDecorator:
    """Every sample that has a `name`, a `hostlist` or a `vlan` to spoil."""
    having = {key: sample for key, sample in SAMPLES.items() if getattr(sample, what)}
    return pytest.mark.parametrize("sample", having.values(), ids=having)


def outcome(provider: str, content: bytes, file: str = "dir/some-file") -> Graph | FileError:
    """What an importer makes of a file; anything but a graph or a FileError that names the file comes through."""
    result = _read(provider, content, file)
    if isinstance(result, FileError):
        assert result.file == file
        assert result.reason
        assert str(result).startswith(file)
        assert len(str(result)) < 2_000
        assert result.line is None or 1 <= result.line <= content.count(b"\n") + content.count(b"\r") + 2
    return result


def _read(provider: str, content: bytes, file: str) -> Graph | FileError:
    try:
        found = PROVIDERS[provider].read({file: content}, ImportOptions(rails=2))
        for finding in check(found):
            assert "\n" not in finding.text
        return found.imported().graph
    except FileError as error:
        return error


@contextmanager
def bounded(seconds: float, mib: int) -> Iterator[None]:
    """Fails what takes too long, or more memory than a file of the size that is allowed may take."""
    tracemalloc.start(1)
    start = time.process_time()
    try:
        yield
        took, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()
    assert took < seconds
    assert peak < mib


@EVERY_FORMAT
@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_a_graph_or_an_error(provider: str, content: bytes) -> None:
    with bounded(20, 400):
        outcome(provider, content)


@EVERY_FORMAT
@pytest.mark.parametrize(
    "name",
    ["nothing", "blanks", "NULs", "random bytes", "a gzip", "UTF-16", "JSON nested deeply", "a YAML bomb", "null"],
)
def test_what_tells_nothing_is_refused(provider: str, name: str) -> None:
    assert isinstance(outcome(provider, GARBAGE[name]), FileError)


@EVERY_FORMAT
def test_a_file_of_100_mb_is_refused_unread(provider: str) -> None:
    content = bytes(100 * MIB)
    with bounded(1, 10):
        error = outcome(provider, content)
    assert isinstance(error, FileError)
    assert error.reason == f"expected at most {MOST_BYTES} bytes, found {100 * MIB}"


@EVERY_FORMAT
def test_every_format_has_a_sample(provider: str) -> None:
    assert provider in {sample.provider for sample in SAMPLES.values()}


@every_sample()
def test_samples_are_fabrics_before_they_are_spoilt(sample: Sample) -> None:
    assert isinstance(outcome(sample.provider, sample.whole()), Graph)


@every_sample()
def test_a_truncated_file_is_a_smaller_graph_or_an_error(sample: Sample) -> None:
    content = sample.whole()
    cuts = {len(content) * part // 30 for part in range(30)} | {len(content) - left for left in range(1, 8)}
    for cut in sorted(cuts):
        result = outcome(sample.provider, content[:cut])
        if isinstance(result, FileError) and cut > len(content) // 2:
            assert result.line is not None, str(result)


@every_sample("name")
@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "../../etc/passwd",
        "caf\u00e9",
        "\u7bc0\u70b9-1",
        "x" * 300,
        "n\0",
        "n\x1b[31m",
        "n\u2028",
        "\ufeff",
        "-",
        "[",
        "]",
        "a:b",
        "#",
        "\U0001f680",
    ],
    ids=ascii,
)
def test_an_odd_name_is_kept_as_it_is_or_refused(sample: Sample, name: str) -> None:
    result = outcome(sample.provider, sample.whole().replace(sample.name.encode(), name.encode()))
    if isinstance(result, Graph):
        names = {*(x.name for x in result.leaves), *(x.name for x in result.spines), *(x.name for x in result.nodes)}
        assert not any("/" in one or "\0" in one or len(one) > 253 for one in names)


@every_sample("hostlist")
@pytest.mark.parametrize(
    "hostlist",
    ["n[0-99999999]", "n[0-9999][0-9999]", "n[0-1][0-1]" + "[0-9]" * 30, "n[0-999999999999999]", "n[9-0]", "n[", "n[]"],
)
def test_a_hostlist_of_millions_is_refused_before_it_is_made(sample: Sample, hostlist: str) -> None:
    with bounded(5, 100):
        result = outcome(sample.provider, sample.whole().replace(sample.hostlist.encode(), hostlist.encode()))
    assert isinstance(result, FileError)
    assert result.line is not None


@every_sample("vlan")
@pytest.mark.parametrize("number", ["0", "4095", "4096", "-1", "99999999999999999999", "x", ""])
def test_a_vlan_that_cannot_be_is_refused(sample: Sample, number: str) -> None:
    result = outcome(sample.provider, sample.whole().replace(sample.vlan.encode(), number.encode()))
    assert isinstance(result, FileError)


MANY = {
    "slurm": "".join(f"SwitchName=s{i} Nodes=n{i}x[0-199999]\n" for i in range(50)),
    "railweave": "version: 1\nspines:\n  - name: s[0-9999]\nleaves:\n  - {name: 'l[0-9999]', uplinks: 's[0-9999]'}\n",
    "topograph": "blocks:\n" + "".join(f"- {{switch: s, nodes: 'n{i}x[0-199999]'}}\n" for i in range(50)),
    "slurm-yaml": "- tree:\n    switches:\n"
    + "".join(f"    - {{switch: s{i}, nodes: 'n[0-199999]'}}\n" for i in range(50)),
}


@pytest.mark.parametrize("provider", MANY)
def test_hostlists_within_bounds_that_are_billions_together_are_refused(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cabling, "MOST_CABLES", 50_000)
    result = outcome(provider, MANY[provider].encode())
    assert isinstance(result, FileError)
    assert "more than" in result.reason
    assert result.line is not None


TOKENS = [
    *(b"", b"\0", b"\n", b"\r\n", b"\t", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"#", b"&a", b"*a", b"!!x"),
    *(b"---\n", b"null", b"-1", b"0", b"4095", b"1e9", b"9" * 30, b"a/b", b"\xff", b"\xc3\xa9", b"x" * 300),
    *(b"[0-999]", b"true", b"=", b"|", b"\\", b"\\u0000", b"\\ud800"),
]


@every_sample()
def test_a_spoilt_file_is_a_graph_or_an_error(sample: Sample) -> None:
    """Bytes replaced, cut out, doubled and moved; in JSON also values put in each other's place."""
    content = sample.small()

    @settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def law(data: st.DataObject) -> None:
        outcome(sample.provider, spoilt(content, data))

    law()


def spoilt(content: bytes, data: st.DataObject) -> bytes:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        until = min(len(content), at + data.draw(st.sampled_from([0, 1, 2, 5, 20, 200, 2000])))
        to = data.draw(st.integers(0, len(content)))
        match data.draw(st.integers(0, 4)):
            case 0:
                content = content[:at] + data.draw(st.sampled_from(TOKENS)) + content[until:]
            case 1:
                content = content[:at] + content[until:]
            case 2:
                content = content[:to] + content[at:until] + content[to:]
            case 3:
                lines = content.splitlines(keepends=True)
                data.draw(st.randoms(use_true_random=False)).shuffle(lines)
                content = b"".join(lines)
            case _:
                words = content.split(b" ")
                word = data.draw(st.integers(0, len(words) - 1))
                words[word] = data.draw(st.sampled_from([*TOKENS, *words[:50]]))
                content = b" ".join(words)
    return content


@every_sample("is_json")
def test_json_with_values_of_other_kinds_is_a_graph_or_an_error(sample: Sample) -> None:
    whole = json.loads(sample.whole())

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def law(data: st.DataObject) -> None:
        tree = json.loads(json.dumps(whole))
        for _ in range(data.draw(st.integers(1, 3))):
            replace_one(tree, data)
        outcome(sample.provider, json.dumps(tree).encode())

    law()


VALUES = st.sampled_from(
    [
        *("null", "true", "0", "-1", "4095", "1" + "0" * 30, "1.5", '""', '"x"', '"a/b"', '"10.0.0.1/99"'),
        *("[]", "{}", "[null]", '{"": null}', "[[]]", '["x", 1]'),
    ]
).map(json.loads)


def replace_one(tree: object, data: st.DataObject) -> None:
    """Put a value of another kind somewhere in a tree."""
    while isinstance(tree, dict | list) and tree:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = data.draw(st.sampled_from(keys))
        below = tree[key]
        if not isinstance(below, dict | list) or not below or data.draw(st.integers(0, 3)) == 0:
            tree[key] = data.draw(VALUES)
            return
        tree = below

"""From ids to everything a node needs: what is computed can be computed by hand, what is stale is a reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from desk import make

from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.fabric import Attachment, FabricLeaf, FabricNode, LeafVlan
from railweave.contracts.inventory import NodeHardware, Pf
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import ROUTE_TABLE_BASE, Placement
from railweave.contracts.proposal import (
    Concern,
    DataProposal,
    FabricProposal,
    GpuProposal,
    GpuShare,
    NicProposal,
    NodeData,
    NodesProposal,
    Proposal,
    VfRef,
    WorkerGpus,
    WorkerVfs,
    concerns_of,
)
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.contracts.types import Milli, NodeName, VfIndex
from railweave.jobs.render import render
from railweave.jobs.render_network import RenderError
from railweave_testing.clusters import CLUSTER, ClusterBuilder, spec

ABOUT: dict[str, Any] = {"cluster": CLUSTER, "job": "j", "attempt": 1, "round": 1}
SLOT = 5
"""Of n0 on every leaf; n1 has the next."""


def fabric(builder: ClusterBuilder, *, subnet: str = "10.{rail}.0.0/24", **vlan: Any) -> None:
    """A leaf with two rails, an extra VLAN of segment 7 each, and two nodes on it."""
    vlans = [
        {
            "rail": rail,
            "segment": segment,
            "vlan": (100 if segment is None else 200) + rail,
            "subnet": subnet.format(rail=rail if segment is None else 100 + rail),
            "gateway": f"10.{rail if segment is None else 100 + rail}.0.1",
        }
        | vlan
        for rail in range(2)
        for segment in (None, 7)
    ]
    told = make(
        FabricLeaf, leaf="leaf-1", revision=1, island="i", pod="p", vlans=[make(LeafVlan, **item) for item in vlans]
    )
    builder.tell(told, "FABRIC")
    for number in range(2):
        attachments = [
            make(Attachment, rail=rail, leaf="leaf-1", port=f"p{number}", slot=SLOT + number) for rail in range(2)
        ]
        node = make(
            FabricNode, node=f"n{number}", revision=1, ordinal=number, island="i", pod="p", attachments=attachments
        )
        builder.tell(node, "FABRIC")


def plant(*, vfs: int = 4, **vlan: Any) -> ClusterBuilder:
    builder = ClusterBuilder()
    fabric(builder, **vlan)
    for number in range(2):
        builder.node(f"n{number}", in_fabric=False, rails=2, vfs=vfs, gpus=2, memory_mib=1000)
    return builder


def proposals(
    wanted: JobSpec,
    *,
    nodes: Sequence[str] = ("n0", "n1"),
    vf: int = 2,
    gpus: Sequence[tuple[int, int]] = ((0, 1000),),
    segment: int | None = None,
    data: Sequence[dict[str, Any]] = (),
    refs: Sequence[tuple[int, int]] | None = None,
) -> dict[Concern, Proposal]:
    """The same for every worker."""
    refs = refs if refs is not None else [(0, vf), (1, vf)]
    workers = range(sum(group.count for group in wanted.workers))
    shares = tuple(GpuShare(index, Milli(milli)) for index, milli in gpus)
    vfs = tuple(VfRef(pf, VfIndex(index)) for pf, index in refs)
    found: dict[Concern, Proposal] = {
        Concern.NODES: make(NodesProposal, **ABOUT, nodes=[NodeName(name) for name in nodes]),
        Concern.GPU: GpuProposal(**ABOUT, workers=tuple(WorkerGpus(worker=w, gpus=shares) for w in workers)),
        Concern.NIC: NicProposal(**ABOUT, workers=tuple(WorkerVfs(worker=w, group="g2", vfs=vfs) for w in workers)),
        Concern.FABRIC: FabricProposal(**ABOUT, mode="rail" if segment is None else "tenant", segment=segment),
        Concern.DATA: make(DataProposal, **ABOUT, nodes=[make(NodeData, **item) for item in data]),
    }
    return {concern: found[concern] for concern in concerns_of(wanted)}


def rendered(builder: ClusterBuilder | None = None, wanted: JobSpec | None = None, **given: Any) -> list[Placement]:
    builder, wanted = builder or plant(), wanted or spec(workers=2, gpus=1, network={})
    return list(render(wanted, 3, "c-1", 4, proposals(wanted, **given), builder.state))


def test_addresses_and_macs_follow_from_slot_ordinal_rail_and_index() -> None:
    first, second = rendered()[0], rendered()[1]
    interfaces = [item.workers[0].network.interfaces for item in (first, second)]
    # subnet + 4 + slot * 16 + vf: 4 + 5 * 16 + 2 = 86, and the next slot's 16 further on.
    assert [[item.addresses for item in of_node] for of_node in interfaces] == [
        [("10.0.0.86/24",), ("10.1.0.86/24",)],
        [("10.0.0.102/24",), ("10.1.0.102/24",)],
    ]
    assert [[item.mac for item in of_node] for of_node in interfaces] == [
        ["02:00:00:00:00:02", "02:00:00:00:01:02"],
        ["02:00:00:01:00:02", "02:00:00:01:01:02"],
    ]
    assert [(item.vlan, item.leaf, item.port) for item in interfaces[1]] == [
        (100, "leaf-1", "p1"),
        (101, "leaf-1", "p1"),
    ]


def test_every_address_has_a_rule_to_its_rails_table_and_a_gateway() -> None:
    for item in rendered(plant(subnet6="fd00::/64", gateway6="fd00::1"))[0].workers[0].network.interfaces:
        table = ROUTE_TABLE_BASE + item.rail
        assert [(rule.table, rule.priority) for rule in item.rules] == [(table, table)] * 2
        assert [rule.source for rule in item.rules] == [f"10.{item.rail}.0.86/32", "fd00::56/128"]
        assert item.gateways == (f"10.{item.rail}.0.1", "fd00::1")


def test_two_vfs_of_one_rail_have_names_tables_and_addresses_of_their_own() -> None:
    interfaces = rendered(refs=[(0, 0), (0, 1), (1, 0)])[0].workers[0].network.interfaces
    assert [item.name for item in interfaces] == ["rail0", "rail0x1", "rail1"]
    assert [item.rules[0].table for item in interfaces] == [1000, 1256, 1001]
    assert len({item.addresses for item in interfaces}) == 3
    assert len({item.mac for item in interfaces}) == 3


@pytest.mark.parametrize(
    ("asked", "fabric_mtu", "pf_mtu", "given"),
    [(None, 9000, 9000, 9000), (4200, 9000, 9000, 4200), (None, 9000, 1500, 1500), (9000, 4000, 1500, 1500)],
)
def test_the_mtu_is_what_the_job_asks_or_the_fabric_has_and_never_more_than_the_nic(
    asked: int | None, fabric_mtu: int, pf_mtu: int, given: int
) -> None:
    builder = plant(mtu=fabric_mtu)
    hardware = builder.state.nodes[NodeName("n0")].hardware
    pfs = tuple(pf.model_copy(update={"mtu": pf_mtu}) for pf in hardware.pfs)
    for node in ("n0", "n1"):
        builder.tell(hardware.model_copy(update={"pfs": pfs, "node": NodeName(node), "revision": 9}), "NODES")
    network = {} if asked is None else {"mtu": asked}
    found = rendered(builder, spec(workers=2, gpus=1, network=network))
    assert [item.mtu for item in found[0].workers[0].network.interfaces] == [given, given]


def test_a_segment_puts_every_vf_on_its_own_vlan() -> None:
    network = rendered(segment=7)[0].workers[0].network
    assert network.isolation.model_dump(exclude_none=True) == {"mode": "tenant", "segment": 7, "vrf": "Vrf-s7"}
    assert [(item.vlan, item.addresses) for item in network.interfaces] == [
        (200, ("10.100.0.86/24",)),
        (201, ("10.101.0.86/24",)),
    ]


def test_the_workers_environment_says_who_is_where() -> None:
    first, second = rendered()
    assert first.workers[0].env == {
        "NODE_RANK": "0",
        "NNODES": "2",
        "MASTER_ADDR": "10.0.0.86",
        "MASTER_PORT": "29500",
        "NCCL_SOCKET_IFNAME": "=rail0,rail1",
        "CUDA_VISIBLE_DEVICES": "GPU-n0-0",
    }
    assert (second.workers[0].env["NODE_RANK"], second.workers[0].env["MASTER_ADDR"]) == ("1", "10.0.0.86")
    assert first.rendezvous == second.rendezvous


def test_a_job_without_a_network_has_no_rendezvous() -> None:
    placement = rendered(wanted=spec(workers=2, gpus=1))[0]
    assert placement.rendezvous is None
    assert "MASTER_ADDR" not in placement.workers[0].env


def test_rdma_devices_come_only_with_who_asks_for_them() -> None:
    builder = plant()
    hardware = builder.state.nodes[NodeName("n0")].hardware
    pfs = tuple(pf.model_copy(update={"rdma": f"mlx5_{pf.rail}"}) for pf in hardware.pfs)
    builder.tell(hardware.model_copy(update={"pfs": pfs, "revision": 9}), "NODES")
    wanted = spec(workers=1, gpus=1, network={"rdma": True})
    worker = rendered(builder, wanted, nodes=["n0"])[0].workers[0]
    assert worker.env["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    without = rendered(builder, spec(workers=1, gpus=1, network={}), nodes=["n0"])[0].workers[0]
    assert "NCCL_IB_HCA" not in without.env
    assert [item.rdma for item in without.network.interfaces] == [None, None]


@pytest.mark.parametrize(("milli", "mib"), [(1000, 1000), (400, 400), (333, 333), (1, 1)])
def test_a_fraction_of_a_gpu_has_its_share_of_the_memory(milli: int, mib: int) -> None:
    wanted = spec(workers=1, gpus=1, gpu_fraction_milli=milli)
    gpu = rendered(wanted=wanted, nodes=["n0"], gpus=[(1, milli)])[0].workers[0].gpus[0]
    assert (gpu.uuid, gpu.fraction_milli, gpu.memory_mib) == ("GPU-n0-1", milli, mib)


def test_workers_of_one_node_share_its_placement_in_rank_order() -> None:
    wanted = spec(workers=[{"count": 3, "per_node": 2}, {"count": 1, "name": "head", "scratch_bytes": 7}])
    found = rendered(nodes_named(("n0", "n1", "n2")), wanted, nodes=["n2", "n0", "n1"])
    assert [(item.node, item.node_rank, [worker.worker for worker in item.workers]) for item in found] == [
        ("n2", 0, [0, 1]),
        ("n0", 1, [2]),
        ("n1", 2, [3]),
    ]
    assert [item.scratch.bytes if item.scratch else None for item in found] == [None, None, 7]


def nodes_named(names: Sequence[str]) -> ClusterBuilder:
    builder = ClusterBuilder()
    for name in names:
        builder.node(name)
    return builder


def test_datasets_are_used_or_fetched_as_the_data_proposal_says() -> None:
    builder = plant()
    builder.dataset("c4", source_uri="file:/registered/c4", digest="sha256:" + "0" * 64)
    wanted = spec(workers=1, datasets=["!c4=50", "pile=60"])
    evict = [{"dataset": "x@1", "bytes": 9, "reason": "Obsolete"}]
    plan = {"node": "n0", "use": ["pile@1"], "fetch": {"c4@1": 55}, "evict": evict}
    placement = rendered(builder, wanted, nodes=["n0"], data=[plan])[0]
    assert [(item.dataset, item.action, item.bytes, item.source) for item in placement.datasets] == [
        ("c4@1", "fetch", 55, "file:/registered/c4"),
        ("pile@1", "use", 60, "file:/sources/pile"),
    ]
    assert placement.datasets[0].digest == "sha256:" + "0" * 64
    assert [item.dataset for item in placement.evict] == ["x@1"]


def test_what_is_rendered_can_be_read_back() -> None:
    for placement in rendered(plant(subnet6="fd00::/64", gateway6="fd00::1"), segment=7):
        assert decode_event(encode_event(placement)).data == placement
        assert (placement.round, placement.commit, placement.epoch) == (3, "c-1", 4)


def link_down(builder: ClusterBuilder) -> None:
    _pfs(builder, lambda pf: pf.model_copy(update={"link_up": False}))


def fewer_vfs(builder: ClusterBuilder) -> None:
    _pfs(builder, lambda pf: pf.model_copy(update={"vfs": 1}))


def no_vlan(builder: ClusterBuilder) -> None:
    builder.tell(make(FabricLeaf, leaf="leaf-1", revision=2, island="i", pod="p", vlans=[]), "FABRIC")


def no_port(builder: ClusterBuilder) -> None:
    told = builder.state.nodes[NodeName("n0")].fabric
    builder.tell(told.model_copy(update={"attachments": (), "revision": 2}), "FABRIC")


def sick_gpu(builder: ClusterBuilder) -> None:
    hardware = builder.state.nodes[NodeName("n0")].hardware
    gpus = tuple(gpu.model_copy(update={"healthy": False}) for gpu in hardware.gpus)
    builder.tell(hardware.model_copy(update={"gpus": gpus, "revision": 9}), "NODES")


def no_gpu(builder: ClusterBuilder) -> None:
    hardware = builder.state.nodes[NodeName("n0")].hardware
    builder.tell(hardware.model_copy(update={"gpus": (), "revision": 9}), "NODES")


def _pfs(builder: ClusterBuilder, change: Any) -> None:
    hardware: NodeHardware = builder.state.nodes[NodeName("n0")].hardware
    pfs: list[Pf] = [change(pf) for pf in hardware.pfs]
    builder.tell(hardware.model_copy(update={"pfs": tuple(pfs), "revision": 9}), "NODES")


STALE = [
    ("a link went down", link_down, {}, ReasonCode.VF_GROUPS_EXHAUSTED, Lack.VF, "link is down"),
    ("a NIC has fewer VFs", fewer_vfs, {}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "VF 2 of PF 0 of n0 is gone"),
    ("a leaf lost its VLAN", no_vlan, {}, ReasonCode.FABRIC_UNKNOWN, Lack.FABRIC, "carries no VLAN for rail 0"),
    ("a cable was pulled", no_port, {}, ReasonCode.FABRIC_UNKNOWN, Lack.FABRIC, "no fabric port on rail 0"),
    ("a GPU is not healthy", sick_gpu, {}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "GPU 0 of n0 is gone or not healthy"),
    ("a GPU is gone", no_gpu, {}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "GPU 0 of n0 is gone"),
    ("a PF is gone", None, {"refs": [(5, 0)]}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "VF 0 of PF 5"),
    ("a node is unknown", None, {"nodes": ["n0", "n9"]}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "n9 has no inventory"),
    ("a node is missing", None, {"nodes": ["n0"]}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "1 nodes proposed for 2"),
    ("a node comes twice", None, {"nodes": ["n0", "n0"]}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "for two slots"),
    ("a GPU is missing", None, {"gpus": []}, ReasonCode.CLAIM_CONFLICT, Lack.NODE, "0 GPUs proposed for a worker of 1"),
    ("a VF is past the slot", None, {"vf": 3, "vf_stride": 2}, ReasonCode.FABRIC_UNKNOWN, Lack.FABRIC, "past the 2"),
    ("a slot is past the subnet", None, {"subnet": "10.{rail}.0.0/26"}, ReasonCode.FABRIC_UNKNOWN, Lack.FABRIC, "fit"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "given", "code", "lack", "text"), [s[1:] for s in STALE], ids=[s[0] for s in STALE])
def test_a_proposal_that_is_stale_is_a_reason_for_another_round(
    change: Any, given: dict[str, Any], code: ReasonCode, lack: Lack, text: str
) -> None:
    builder = plant(**{key: value for key, value in given.items() if key in {"vf_stride", "subnet"}})
    if change is not None:
        change(builder)
    with pytest.raises(RenderError) as raised:
        rendered(builder, **{key: value for key, value in given.items() if key not in {"vf_stride", "subnet"}})
    reason = raised.value.reason
    assert (reason.code, reason.lacks) == (code, (lack,))
    assert text in reason.text


@pytest.mark.parametrize("concern", [Concern.NODES, Concern.GPU, Concern.FABRIC, Concern.NIC])
def test_a_concern_that_is_missing_is_named(concern: Concern) -> None:
    wanted = spec(workers=2, gpus=1, network={})
    found = proposals(wanted)
    del found[concern]
    with pytest.raises(RenderError, match=f"the {concern} proposal is missing"):
        render(wanted, 1, "c", 1, found, plant().state)


def test_a_dataset_that_nobody_speaks_of_is_a_reason() -> None:
    with pytest.raises(RenderError, match="says nothing of c4@1 on n0"):
        rendered(wanted=spec(workers=1, datasets=["c4=5"]), nodes=["n0"])


def test_a_worker_without_a_vf_group_is_a_reason() -> None:
    wanted = spec(workers=2, gpus=1, network={})
    found = proposals(wanted)
    nic = found[Concern.NIC]
    found[Concern.NIC] = nic.model_copy(update={"workers": nic.workers[:1]})
    with pytest.raises(RenderError, match="no VF group proposed for worker 1"):
        render(wanted, 1, "c", 1, found, plant().state)

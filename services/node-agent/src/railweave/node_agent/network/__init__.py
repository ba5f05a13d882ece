"""The agent's network half: VFs of a placement prepared on their PFs, attached into a worker's namespace, and put back.

Start at `driver.NetworkDriver`. `MemoryKernel` is a kernel in memory, for simulated agents and tests.
"""

from railweave.node_agent.network.driver import NetworkDriver, VethNetwork
from railweave.node_agent.network.errors import NetworkRefused, StepFailed, UndoFailed
from railweave.node_agent.network.memory import MemoryKernel
from railweave.node_agent.network.model import Observed, Phase, Step, StepKind, VfState, VfWant, WorkerState
from railweave.node_agent.network.planning import plan_attach, plan_prepare
from railweave.node_agent.network.session import NodePort, NodePorts

__all__ = [
    "MemoryKernel",
    "NetworkDriver",
    "NetworkRefused",
    "NodePort",
    "NodePorts",
    "Observed",
    "Phase",
    "Step",
    "StepFailed",
    "StepKind",
    "UndoFailed",
    "VethNetwork",
    "VfState",
    "VfWant",
    "WorkerState",
    "plan_attach",
    "plan_prepare",
]

"""The agent's data half: datasets fetched into this node's cache, shown to jobs, evicted; and jobs' private
scratch.

`DataSpace` is the interface; `DiskSpace` does it on a real disk, `MemorySpace` for simulated nodes; one suite of
contract tests holds both.
"""

from railweave.node_agent.data.applier import DataApplier, DataStep
from railweave.node_agent.data.disk import DiskSpace
from railweave.node_agent.data.memory import MemorySpace
from railweave.node_agent.data.model import Cached, DataFailed, DataSpace, JobSpace

__all__ = ["Cached", "DataApplier", "DataFailed", "DataSpace", "DataStep", "DiskSpace", "JobSpace", "MemorySpace"]

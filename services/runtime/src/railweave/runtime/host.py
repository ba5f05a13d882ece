"""The public face of hosting: what a service is written against, and what runs it.

`python -m railweave.jobs` is a module with two lines: `from railweave.runtime.host import main` and
`raise SystemExit(main("jobs"))`.
"""

from __future__ import annotations

from railweave.runtime.launch import loop_factory, main
from railweave.runtime.process import run_services
from railweave.runtime.service import (
    ClusterSlot,
    Service,
    ServiceContext,
    ServiceFactory,
    ServiceNotFound,
    find_service,
)

__all__ = [
    "ClusterSlot",
    "Service",
    "ServiceContext",
    "ServiceFactory",
    "ServiceNotFound",
    "find_service",
    "loop_factory",
    "main",
    "run_services",
]

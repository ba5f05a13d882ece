"""The hosting program with a lease that lies: whoever runs it believes that it is the active one, whatever is stored.

python rig/liar.py --config FILE --nats URL --redis URL --announce FILE jobs
"""

from __future__ import annotations

import sys

from railweave.cli.stack.hosting import main
from railweave.runtime.lease import LeaderLease


async def _at_once(self: LeaderLease) -> None:
    return None


async def _never_runs(self: LeaderLease) -> None:
    # Neither watches nor renews: what others wrote is not looked at.
    return None


LeaderLease.is_held = property(lambda self: True)  # type: ignore[assignment,method-assign]
LeaderLease.wait_acquired = _at_once  # type: ignore[method-assign]
LeaderLease.run = _never_runs  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())

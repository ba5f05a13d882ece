"""The hosting program with a small memory of messages: it is full within seconds instead of minutes.

What a process has said or read lately is kept up to a bound (contracts/memo.py); until that is reached, growth says
nothing of leaks.

python rig/forgetful.py --config FILE --nats URL --redis URL --announce FILE nic
"""

from __future__ import annotations

import sys

from railweave.cli.stack.hosting import main
from railweave.contracts import envelope

envelope.memo = type(envelope.memo)(most_entries=128)

if __name__ == "__main__":
    sys.exit(main())

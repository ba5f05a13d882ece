"""`python -m railweave.node_agent`."""

from railweave.runtime.host import main

raise SystemExit(main("agent"))

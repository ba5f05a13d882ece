"""`python -m railweave.jobs`."""

from railweave.runtime.host import main

raise SystemExit(main("jobs"))

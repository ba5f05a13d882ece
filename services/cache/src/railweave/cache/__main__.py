"""`python -m railweave.cache`."""

from railweave.runtime.host import main

raise SystemExit(main("cache"))

"""`python -m railweave.gpu`."""

from railweave.runtime.host import main

raise SystemExit(main("gpu"))

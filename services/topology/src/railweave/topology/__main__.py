"""`python -m railweave.topology`."""

from __future__ import annotations

from railweave.runtime.host import main

if __name__ == "__main__":
    raise SystemExit(main("topology"))

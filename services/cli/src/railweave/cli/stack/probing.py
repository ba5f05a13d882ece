"""What the services of a local stack say of themselves over HTTP: whether they are ready, and their metrics."""

from __future__ import annotations

import urllib.error
import urllib.request


def is_ready(health: str) -> bool:
    """Whether /readyz says yes."""
    return readiness(health) is None


def readiness(health: str) -> str | None:
    """None where /readyz says yes, else what it says is missing."""
    try:
        # The address is one that a child of ours announced, on loopback.
        with urllib.request.urlopen(f"{health}/readyz", timeout=2.0):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        return error.read(2000).decode(errors="replace")
    except OSError as error:
        return str(error)


def metrics(health: str) -> str:
    """What /metrics says; empty where nobody answers."""
    try:
        with urllib.request.urlopen(f"{health}/metrics", timeout=5.0) as answer:  # noqa: S310 - as above
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""

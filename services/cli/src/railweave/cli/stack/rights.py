"""What this user may do on this machine."""

from __future__ import annotations

import os


def may_make_namespaces() -> bool:
    """Whether this user may make network namespaces: root."""
    return os.geteuid() == 0

"""Libraries warn about reconnects and the like; a command says what matters itself."""

from __future__ import annotations

import logging


def keep_quiet() -> None:
    """Let no library write into what a command says. Parts of services need `keep_services_quiet` too."""
    root = logging.getLogger()
    root.setLevel(logging.CRITICAL)
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    logging.captureWarnings(capture=True)


def keep_services_quiet() -> None:
    """Let no service write either: call it before what of them a command runs; structlog's default writes to stdout."""
    from railweave.runtime.logs import configure_logging

    configure_logging(level="critical", log_format="console")

"""From a command line to a running process: `python -m railweave.<service>`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from railweave.runtime.logs import configure_logging
from railweave.runtime.process import run_services
from railweave.runtime.service import ServiceNotFound, find_service
from railweave.runtime.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings

EXIT_USAGE = 2
"""Unknown service, settings that cannot be used."""


def version() -> str:
    """The version of the runtime, `unknown` when it runs from a tree that was never installed."""
    try:
        return metadata.version("railweave-runtime")
    except metadata.PackageNotFoundError:
        return "unknown"


def main(*names: str, argv: Sequence[str] | None = None) -> int:
    """Run the named services as this process; its exit status.

    0 after an orderly stop, 1 when a service failed, 2 for arguments and settings that cannot be used.
    """
    arguments = _parser(names).parse_args(argv)
    try:
        factories = [find_service(name) for name in names]
        flags = [*arguments.set]
        if arguments.json_logs:
            flags.append("log.format=json")
        settings = load_settings(config=arguments.config, flags=flags, defaults={"service": {"name": "+".join(names)}})
        configure_logging(
            level=settings.log.level,
            log_format=settings.log.format,
            repeat_interval_s=settings.log.repeat_interval_s,
        )
        with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
            return runner.run(run_services(factories, settings))
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"settings: {problem}\n")
        return EXIT_USAGE
    except ServiceNotFound as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE


def loop_factory(settings: Settings) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed and wanted; else asyncio's own."""
    if not settings.service.uvloop:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="railweave-" + "-".join(names) if names else "railweave",
        description=f"Railweave: {', '.join(names)}. Runs until SIGTERM or SIGINT.",
        epilog="Exit status: 0 stopped as asked, 1 failed, 2 arguments or settings that cannot be used.",
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"settings in YAML; default: the file named by {CONFIG_VARIABLE}"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting, such as nats.servers=nats://10.0.0.1:4222; stronger than environment and file; repeatable",
    )
    parser.add_argument("--json-logs", action="store_true", help="log JSON lines whatever the settings say")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    return parser

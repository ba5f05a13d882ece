"""Running services for a local stack: in this process, or as the program of a child process.

python -m railweave.cli.stack.hosting --config FILE --nats URL --redis URL --announce FILE jobs nic ...
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from railweave.runtime.health import HealthServer
from railweave.runtime.host import run_services
from railweave.runtime.launch import loop_factory
from railweave.runtime.logs import configure_logging
from railweave.runtime.service import find_service
from railweave.runtime.settings import Settings, load_settings


def stack_settings(names: Sequence[str], config: Path, nats: str, redis: str) -> Settings:
    """The settings of services of a local stack.

    The servers are flags: a NATS that the environment names for other commands is not this stack's.

    Raises:
        SettingsError: they cannot be used.
        ServiceNotFound: a part is not installed.
    """
    for name in names:
        find_service(name)  # registers its section
    flags = [f"nats.servers={nats}", f"redis.url={redis}"]
    return load_settings(config=config, flags=flags, defaults={"service": {"name": "+".join(names)}})


async def host(
    names: Sequence[str],
    settings: Settings,
    *,
    stop: asyncio.Event | None,
    on_started: Callable[[HealthServer], None],
) -> int:
    """Run services until `stop` is set, or until a signal where there is none; the exit status."""
    return await run_services(names, settings, stop=stop, handle_signals=stop is None, on_started=on_started)


def main(argv: Sequence[str] | None = None) -> int:
    """The program of a child process; its exit status."""
    parser = argparse.ArgumentParser(prog="railweave-stack-host")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--announce", type=Path, required=True, help="file to write the health address into")
    given = parser.parse_args(argv)
    settings = stack_settings(given.names, given.config, given.nats, given.redis)
    configure_logging(level=settings.log.level, log_format="json")

    def announce(server: HealthServer) -> None:
        fresh = given.announce.with_suffix(".new")
        fresh.write_text(server.url)
        fresh.replace(given.announce)

    with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
        return runner.run(host(given.names, settings, stop=None, on_started=announce))


if __name__ == "__main__":
    sys.exit(main())

"""`railweave-agent`: run the agent, or ask one that runs over its local socket.

Exit status: 0 done, 1 the agent said no, 2 arguments or settings that cannot be used, 3 no agent listens there.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

DEFAULT_SOCKET = "/var/lib/railweave/agent.sock"
SOCKET_VARIABLE = "RAILWEAVE_AGENT__SOCKET"
_PATIENCE_S = 130.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    arguments, rest = _parser().parse_known_args(argv)
    if arguments.command == "run":
        from railweave.runtime.host import main as run  # a query must start in milliseconds, without a bus

        return run("agent", argv=rest)
    if rest:
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        answer = ask(Path(arguments.socket), _request(arguments))
    except OSError as error:
        sys.stderr.write(f"no agent answers on {arguments.socket}: {error.strerror or error}\n")
        return EXIT_UNREACHABLE
    except ValueError as error:
        sys.stderr.write(f"what listens on {arguments.socket} is no agent: {error}\n")
        return EXIT_UNREACHABLE
    if not answer.get("ok"):
        sys.stderr.write(f"{answer.get('error')}: {answer.get('text')}\n")
        return EXIT_REFUSED
    if arguments.json:
        print(json.dumps(answer, ensure_ascii=False, indent=1))
    else:
        print("\n".join(_SHOW[arguments.command](answer)))
    return 0


def ask(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a running agent.

    Raises:
        OSError: nobody listens there, or it went away.
        ValueError: what it answered is not an answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(json.dumps(request, ensure_ascii=False).encode() + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline()
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error for all that is no answer
    return answer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="railweave-agent",
        description="The agent of a Railweave node.",
        epilog="Exit status: 0 done, 1 the agent said no, 2 bad arguments or settings, 3 no agent listens there.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run the agent until SIGTERM; --help after it shows its options", add_help=False)
    status = commands.add_parser("status", help="what the agent's nodes hold and have")
    journal = commands.add_parser("journal", help="the journal: what was done for each job, and what was there before")
    plan = commands.add_parser("plan", help="the steps that would be taken for a job, and their undo; touches nothing")
    journal.add_argument("job", nargs="?", metavar="CLUSTER/JOB", help="this job alone")
    plan.add_argument("job", metavar="CLUSTER/JOB", help="whose placement")
    plan.add_argument("--attempt", type=int, metavar="N", help="which attempt; default the newest known")
    for command in (status, journal, plan):
        command.add_argument("--json", action="store_true", help="the whole answer as JSON")
        command.add_argument(
            "--socket",
            default=os.environ.get(SOCKET_VARIABLE, DEFAULT_SOCKET),
            metavar="PATH",
            help=f"the agent's socket; default ${SOCKET_VARIABLE} or {DEFAULT_SOCKET}",
        )
    for command in (journal, plan):
        command.add_argument("--node", metavar="NAME", help="which node, where the agent has several")
    return parser


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    request = {"do": arguments.command}
    for name in ("job", "attempt", "node"):
        value = getattr(arguments, name, None)
        if value is not None:
            request[name] = value
    return request


def _show_status(answer: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for node in answer["nodes"]:
        epoch, sequence = node["fence_seen"]
        follows = "follows the record" if node["sees_record"] else "does not see the record yet"
        lines.append(f"{node['node']}  {follows}, seen up to {epoch}/{sequence}; mended {node['mended']}")
        for name in ("cache", "scratch"):
            space = node[name]
            lines.append(f"  {name:8} {_size(space['used_bytes'])} of {_size(space['total_bytes'])} used")
        lines += [f"  dataset  {dataset}" for dataset in node["datasets"]]
        for placement in node["placements"]:
            lines.append(f"  {placement['state']:10} {placement['job']} attempt {placement['attempt']}")
            if placement["failure"] is not None:
                failure = placement["failure"]
                lines.append(f"             {failure['step']}: {failure['error']}: {failure['text']}")
    return lines


def _show_journal(answer: Mapping[str, Any]) -> list[str]:
    lines = [] if answer["entries"] else [f"{answer['node']}  the journal holds nothing"]
    for entry in answer["entries"]:
        placement = entry["placement"]
        epoch, sequence = entry["fence"]
        name = f"{placement['cluster']}/{placement['job']}"
        lines.append(f"{name} attempt {placement['attempt']}  {entry['state']}  fence {epoch}/{sequence}")
        lines += [f"  {step['phase']:8} {step['concern']:8} {_step(step['body'])}" for step in entry["steps"]]
        lines += [f"  {timing['milliseconds']:6} ms  {timing['name']}" for timing in entry["timings"]]
        if entry["failure"] is not None:
            failure = entry["failure"]
            lines.append(f"  failed: {failure['step']}: {failure['error']}: {failure['text']}")
    return lines


def _show_plan(answer: Mapping[str, Any]) -> list[str]:
    if not answer["steps"]:
        return [f"{answer['node']}  nothing to do"]
    return [f"{step['phase']:8} {step['concern']:8} {step['text']}" for step in answer["steps"]]


def _step(body: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in body.items() if key != "phase")


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


_SHOW = {"status": _show_status, "journal": _show_journal, "plan": _show_plan}


if __name__ == "__main__":
    raise SystemExit(main())

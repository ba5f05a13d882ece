"""docs/reference/commands.md, out of the commands themselves.

python -m railweave.cli.reference [--check] [--out FILE]
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer

from railweave.cli.exits import MEANINGS
from railweave.cli.later import Later
from railweave.cli.main import app

DEFAULT = Path("docs/reference/commands.md")
_HEAD = """# Commands

Generated from the code by `python -m railweave.cli.reference`; `make check` fails where they differ.

Every command takes `--help`. Tables fit 80 columns and use more where there are more; `--json` prints the documents of
`railweave.contracts.query` and of the events, and its form is stable. `railweave --install-completion` completes
commands and options in your shell.

## Which Railweave

In this order: `--nats URL`; `RAILWEAVE_NATS__SERVERS` and the other `RAILWEAVE_*` settings; the settings file
(`--config`, `RAILWEAVE_CONFIG`); the running local stack whose `.railweave/` is nearest above the working directory;
`nats://127.0.0.1:4222`.

## Exit codes

| code | meaning |
| --- | --- |
"""


def text() -> str:
    """The whole page."""
    parts = [_HEAD]
    parts += [f"| {int(code)} | {meaning} |\n" for code, meaning in MEANINGS.items()]
    parts.append(
        "\nAn error is one line on standard error with the field and a remedy; with `--json` a JSON document:\n"
    )
    parts.append('`{"error": {"message": ..., "code": ..., "field": ..., "remedy": ...}}`.\n')
    root = typer.main.get_command(app)
    for path, command in _commands(root, ("railweave",)):
        parts.append(_section(path, command))
    return "".join(parts)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child.entry.load() if isinstance(child, Later) else child, (*path, name))


def _section(path: tuple[str, ...], command: Any) -> str:
    lines = [f"\n## `{' '.join(path)}`\n" if len(path) > 1 else "\n## Global options\n"]
    if command.help and len(path) > 1:
        lines.append(inspect.cleandoc(command.help))
        lines.append("")
    if len(path) > 1:
        lines += [f"    {_usage(path, command)}", ""]
    rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
    if rows:
        lines += ["| | default | |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _usage(path: tuple[str, ...], command: Any) -> str:
    arguments = [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    rest = "COMMAND" if getattr(command, "commands", None) else ""
    return " ".join(part for part in (*path, "[OPTIONS]", *arguments, rest) if part)


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).strip("[]")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str | None:
    if parameter.name in {"help", "install_completion", "show_completion"}:
        return None
    if parameter.param_type_name == "argument":
        name = f"`{_argument(parameter)}`".replace("|", "\\|")
    else:
        name = f"`{', '.join(parameter.opts)}{_value(parameter)}`"
    default = parameter.default
    is_shown = default is not None and not callable(default) and default is not False and default != []
    shown = f"`{getattr(default, 'value', default)}`" if is_shown else ""
    return f"| {name} | {shown} | {parameter.help or ''} |"


def _value(parameter: Any) -> str:
    if parameter.is_flag:
        return ""
    kind = _plain(parameter.type_descriptor.annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " " + "\\|".join(str(member.value) for member in kind)
    names = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}
    return f" {parameter.metavar or names.get(kind, 'VALUE')}"


def _plain(annotation: Any) -> Any:
    """The type behind Optional and list."""
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    return _plain(inner[0]) if inner else annotation


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check say where it differs (1)."""
    parser = argparse.ArgumentParser(prog="python -m railweave.cli.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the file differs")
    parser.add_argument("--out", type=Path, default=DEFAULT)
    given = parser.parse_args(argv)
    return bring_about(given.out, text(), is_check=given.check)


def bring_about(path: Path, wanted: str, *, is_check: bool) -> int:
    """Write a generated page, or say where it differs; the exit status."""
    found = path.read_text() if path.exists() else ""
    if not is_check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted)
        return 0
    difference = list(
        difflib.unified_diff(found.splitlines(), wanted.splitlines(), str(path), "generated", lineterm="")
    )
    for line in difference:
        print(line)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())

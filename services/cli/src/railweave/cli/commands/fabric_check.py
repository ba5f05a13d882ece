"""`railweave fabric check`: what is wrong with a fabric, each finding with device, port and what was expected there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from railweave.cli.arguments import Json, leave, target
from railweave.cli.commands.fabric_files import (
    FormatOption,
    Rails,
    Source,
    Switch,
    configured,
    file_errors_named,
    found_of,
)
from railweave.cli.exits import Exit
from railweave.cli.output import console, print_json, show
from railweave.topology.checks import Finding, check

_MOST_SHOWN = 200


def check_fabric(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="The fabric's files, or a directory of them. Default: topology.fabric_file.",
            show_default=False,
        ),
    ] = None,
    format_name: FormatOption = "railweave",
    rails: Rails = None,
    switch: Switch = None,
    as_json: Json = False,
) -> None:
    """Look for what is wrong with a fabric as it is cabled.

    Miscabled NICs, half links, names and ports used twice, loops, nodes without links and more, each with the device,
    the port and what was expected there. Exits with 1 where something must be mended; what is legal and worth a look
    is a warning.
    """
    source = Source.of(format_name, files, rails, switch) if files else configured(target(ctx))
    with file_errors_named():
        findings = check(found_of(source))
    errors = sum(finding.is_error for finding in findings)
    if as_json:
        print_json(
            {
                "errors": errors,
                "warnings": len(findings) - errors,
                "findings": [_document(finding) for finding in findings],
            }
        )
    else:
        _show(findings, errors)
    leave(Exit.FAILED if errors else Exit.DONE)


def _document(finding: Finding) -> dict[str, object]:
    where = finding.where
    return {
        "kind": str(finding.kind),
        "is_error": finding.is_error,
        "device": finding.device,
        "port": finding.port,
        "expected": finding.expected,
        "text": finding.text,
        "file": where.file if where is not None else None,
        "line": where.line if where is not None else None,
    }


def _show(findings: Sequence[Finding], errors: int) -> None:
    """A line each, never wrapped, in the form that editors find their way by."""
    out = console()
    for finding in findings[:_MOST_SHOWN]:
        where = f"{finding.where}: " if finding.where is not None else ""
        severity = ("error", "bold red") if finding.is_error else ("warning", "yellow")
        out.print(Text.assemble(where, severity, f": {finding.text} [{finding.kind}]"), soft_wrap=True)
    if len(findings) > _MOST_SHOWN:
        show(f"and {len(findings) - _MOST_SHOWN} more: --json has them all")
    show(f"{_counted(errors, 'error')}, {_counted(len(findings) - errors, 'warning')}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

"""`railweave doctor`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import typer
from rich.text import Text

from railweave.cli.arguments import Json, leave, target
from railweave.cli.exits import Exit
from railweave.cli.logs import keep_services_quiet
from railweave.cli.output import print_json, show


def doctor(ctx: typer.Context, as_json: Json = False) -> None:
    """Check NATS, streams, Redis, services, agents, clocks and this machine; say what to do about what is wrong."""
    from railweave.cli.diagnosis import Verdict, examine, findings_table

    keep_services_quiet()
    findings = asyncio.run(examine(target(ctx)))
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        show(findings_table(findings))
        remedies = [finding for finding in findings if finding.remedy and finding.verdict is not Verdict.OK]
        for finding in remedies:
            show(Text.assemble((f"{finding.what}: ", "bold"), finding.remedy or ""))
    leave(Exit.FAILED if any(finding.verdict is Verdict.WRONG for finding in findings) else Exit.DONE)

"""docs/reference/settings.md, out of the models that read the settings.

python -m railweave.cli.settings_page [--check] [--out FILE]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from railweave.cli.reference import bring_about
from railweave.runtime.service import find_service
from railweave.runtime.settings import CONFIG_VARIABLE, SettingRow, Settings

DEFAULT = Path("docs/reference/settings.md")
SERVICES = ("jobs", "topology", "nic", "gpu", "cache", "agent")
_SECTIONS = ("nats", "redis", "service", "log", *SERVICES)
_HEAD = f"""# Settings

Generated from the code by `python -m railweave.cli.settings_page`; `make check` fails where they differ.

Every process reads the same document, in sections: `nats`, `redis`, `service` and `log` belong to all, the others to
the service of their name. A section of a service that a process does not run may stand in its file.

From strongest to weakest: `--set KEY=VALUE`; the environment variable; the YAML file given by `--config` or
`{CONFIG_VARIABLE}`; the default. In YAML the parts of a key are nested: `nats.tls.ca_file` is `ca_file` under `tls`
under `nats`. A list is written as one in YAML, and with commas elsewhere; a table only in YAML. Unknown keys and values
that do not fit end the process with status 2 and a line that names the key, where it came from and, for a slip, the
nearest known one. Values are never printed. Durations (`_s`) are seconds, sizes bytes.
"""
_PLAIN = {"str": "text", "float": "number", "int": "number", "bool": "yes or no", "Path": "path", "SecretStr": "secret"}


def text() -> str:
    """The whole page."""
    for name in SERVICES:
        find_service(name)
    rows = sorted(Settings.describe(), key=lambda row: _SECTIONS.index(_section(row)))
    parts = [_HEAD]
    for section, of_section in groupby(rows, _section):
        parts.append(f"\n## {section}\n\n| key | value | default | |\n| --- | --- | --- | --- |\n")
        parts += [_line(row) for row in of_section]
    parts.append("\n## Environment variables\n\nOf each key: `RAILWEAVE_`, the key in capitals, `__` for each dot.\n")
    parts.append(f"`{rows[0].key}` is `{rows[0].variable}`.\n")
    return "".join(parts)


def _section(row: SettingRow) -> str:
    return row.key.partition(".")[0]


def _line(row: SettingRow) -> str:
    default = f"`{row.default}`" if row.default not in {"", "(computed)", "{}"} else ""
    return f"| `{row.key}` | {_kind(row.kind)} | {default} | {row.description} |\n"


def _kind(kind: str) -> str:
    """A type as one would say it to somebody who writes YAML."""
    kind = kind.removesuffix(" | None")
    if choices := re.fullmatch(r"Literal\[(.*)\]", kind):
        return ", ".join(f"`{choice}`" for choice in re.findall(r"'([^']*)'", choices[1]))
    if items := re.fullmatch(r"tuple\[([\w.]+), \.\.\.\]", kind):
        name = items[1].rpartition(".")[2]
        return "list of tables" if name.endswith("Settings") else f"list of {_PLAIN.get(name, 'text')}"
    return "table" if kind.startswith("dict") else _PLAIN.get(kind, kind)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with --check say where it differs (1)."""
    parser = argparse.ArgumentParser(prog="python -m railweave.cli.settings_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the file differs")
    parser.add_argument("--out", type=Path, default=DEFAULT)
    given = parser.parse_args(argv)
    return bring_about(given.out, text(), is_check=given.check)


if __name__ == "__main__":
    sys.exit(main())

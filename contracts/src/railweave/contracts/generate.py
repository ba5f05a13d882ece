"""`python -m railweave.contracts.generate`: write what follows from the models, or check that it is up to date.

contracts/schemas/<type>.json and asyncapi.json, contracts/examples/<type>.json, docs/reference/events.md. The same
models give the same bytes.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railweave.contracts.catalogue.asyncapi import asyncapi_document
from railweave.contracts.catalogue.examples import all_examples
from railweave.contracts.catalogue.reference import events_page
from railweave.contracts.catalogue.schemas import all_schemas

SCHEMAS = Path("contracts/schemas")
EXAMPLES = Path("contracts/examples")
EVENTS_PAGE = Path("docs/reference/events.md")
_DIFF_LINES = 60


def generated_files() -> dict[Path, str]:
    """Every generated file by its path in the tree."""
    files = {SCHEMAS / name: _json(schema) for name, schema in all_schemas().items()}
    files[SCHEMAS / "asyncapi.json"] = _json(asyncapi_document())
    for type_name, examples in all_examples().items():
        files[EXAMPLES / f"{type_name}.json"] = _json([example.document() for example in examples])
    files[EVENTS_PAGE] = events_page()
    return files


def differences(root: Path, files: Mapping[Path, str]) -> list[str]:
    """A diff of every file of the tree that is not what it should be, stale ones included."""
    found: list[str] = []
    for path, text in sorted(files.items()):
        there = (root / path).read_text(encoding="utf-8") if (root / path).exists() else ""
        if there != text:
            lines = list(
                difflib.unified_diff(there.splitlines(), text.splitlines(), str(path), "generated", lineterm="")
            )
            more = [f"... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
            found.append("\n".join(lines[:_DIFF_LINES] + more))
    found += [f"{path}: nothing generates it any more" for path in _stale(root, files)]
    return found


def write(root: Path, files: Mapping[Path, str]) -> None:
    """Make the tree what it should be."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in _stale(root, files):
        (root / path).unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 1 where `--check` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m railweave.contracts.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail with a diff where a file differs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="root of the tree to write into (default: this tree)")
    options = parser.parse_args(arguments)
    root = options.out or _tree()
    if root is None:
        parser.error("this is not a source tree: say where to write with --out DIR")
    files = generated_files()
    if not options.check:
        write(root, files)
        print(f"{len(files)} files")
        return 0
    found = differences(root, files)
    for difference in found:
        print(difference)
    if found:
        print(f"{len(found)} generated files are out of date: run `make schemas`", file=sys.stderr)
    return 1 if found else 0


def _tree() -> Path | None:
    root = Path(__file__).resolve().parents[4]
    return root if (root / "contracts" / "pyproject.toml").exists() else None


def _stale(root: Path, files: Mapping[Path, str]) -> list[Path]:
    there = [path.relative_to(root) for folder in (SCHEMAS, EXAMPLES) for path in (root / folder).glob("*.json")]
    return sorted(set(there) - set(files))


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())

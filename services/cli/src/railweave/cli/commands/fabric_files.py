"""Fabrics in files: read from what a site has, checked, and written in the formats that others read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from railweave.cli.arguments import Json, target
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import Column, print_json, show, table
from railweave.cli.target import Target
from railweave.cli.where import find_context
from railweave.topology.exporting import EXPORTERS, CannotExport
from railweave.topology.fabric_file import read_bytes
from railweave.topology.fabric_writer import write_fabric_file
from railweave.topology.model import Graph
from railweave.topology.providers import PROVIDERS, Found, Imported, ImportOptions
from railweave.topology.settings import TopologySettings
from railweave.topology.yaml_tree import FileError

_MOST_FILES = 10_000
_MOST_BYTES = 512 * 1024 * 1024
_MOST_NOTES = 20

FORMATS_REMEDY = "`railweave fabric formats` says what each format tells"

FormatName = Annotated[str, typer.Argument(metavar="FORMAT", help="`fabric formats` lists them.", show_default=False)]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="The format of FILE; `fabric formats` lists them.")
]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Its files, or a directory of them. Most formats take one; some one a switch.",
        show_default=False,
    ),
]
Rails = Annotated[
    int | None,
    typer.Option(
        "--rails",
        min=1,
        max=256,
        metavar="N",
        help="Rails of every node, where the format knows no NICs. Default: 1.",
        show_default=False,
    ),
]
Switch = Annotated[
    str | None,
    typer.Option(
        "--switch",
        metavar="NAME",
        help="The switch a file is of, where it does not say. Default: the file's name up to its first dot.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


def formats(as_json: Json = False) -> None:
    """List the formats that are imported and exported."""
    if as_json:
        print_json(
            {
                "import": [
                    {"format": provider.name, "about": provider.about, "several_files": provider.takes_several}
                    for provider in PROVIDERS.values()
                ],
                "export": [{"format": exporter.name, "about": exporter.about} for exporter in EXPORTERS.values()],
            }
        )
        return
    columns = [Column("FORMAT", keep=True), Column("FILES", keep=True), Column("TELLS", ratio=1)]
    rows = [(each.name, "several" if each.takes_several else "one", each.about) for each in PROVIDERS.values()]
    show("fabric import:", table(columns, rows))
    show("fabric export:", table([columns[0], columns[2]], [(each.name, each.about) for each in EXPORTERS.values()]))


def import_fabric(
    format_name: Annotated[
        str, typer.Argument(metavar="FORMAT", help="`fabric formats` lists them.", show_default=False)
    ],
    files: Files,
    rails: Rails = None,
    switch: Switch = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Read a fabric from what a site has, as a fabric file.

    Says what was found, left out and guessed. Without --output nothing is written.
    """
    imported = imported_of(Source.of(format_name, files, rails, switch))
    if output is not None:
        write_whole(output, write_fabric_file(imported.graph), force=force)
    found = counts(imported)
    if as_json:
        print_json(found | {"notes": imported.notes, "written": str(output) if output is not None else None})
        return
    show(f"{format_name}: {_in_words(found)}")
    show_notes(imported.notes)
    show(f"written to {output}" if output is not None else "nothing was written: --output FILE writes a fabric file")


def export_fabric(
    ctx: typer.Context,
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help="`railweave` or `slurm`.", show_default=False)],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The fabric. Default: topology.fabric_file.", show_default=False),
    ] = None,
    input_format: FormatOption = "railweave",
    rails: Rails = None,
    output: Output = None,
    force: Force = False,
) -> None:
    """Write a fabric in another format.

    To standard output, unless --output names a file. What the format cannot say is said on standard error.
    """
    exporter = EXPORTERS.get(format_name)
    if exporter is None:
        raise _unknown_format(format_name, EXPORTERS)
    source = configured(target(ctx)) if file is None else Source.of(input_format, [file], rails)
    try:
        exported = exporter.write(imported_of(source).graph)
    except CannotExport as error:
        raise CommandFailed(f"{format_name}: {error}", Exit.USAGE, field="FORMAT") from None
    for note in exported.notes:
        sys.stderr.write(f"note: {note}\n")
    if output is None:
        sys.stdout.write(exported.text)
        return
    write_whole(output, exported.text, force=force)
    show(f"written to {output}")


@dataclass(frozen=True, slots=True)
class Source:
    """Files of a format, and what is known of them besides."""

    format_name: str
    paths: tuple[Path, ...]
    options: ImportOptions

    @classmethod
    def of(cls, format_name: str, paths: Sequence[Path], rails: int | None, switch: str | None = None) -> Source:
        """As the arguments say."""
        return cls(format_name, tuple(paths), ImportOptions(rails=rails if rails is not None else 1, switch=switch))


def configured(where: Target) -> Source:
    """The fabric file that the topology service is told to read: of the settings, else of the local stack.

    Raises:
        CommandFailed: there is none.
    """
    settings = topology_settings(where)
    if settings.fabric_file is None:
        raise CommandFailed(
            "no FILE is given, and topology.fabric_file is not set", Exit.USAGE, field="FILE", remedy="name a file"
        )
    name = "railweave" if settings.importer == "fabric" else settings.importer
    return Source(name, (settings.fabric_file,), ImportOptions(rails=settings.rails))


def topology_settings(where: Target) -> TopologySettings:
    """What the topology service is told, as far as it can be seen from here."""
    settings = where.settings().section(TopologySettings)
    stack = find_context()
    if settings.fabric_file is not None or stack is None or where.nats is not None or where.config is not None:
        return settings
    return Target(config=Path(stack.directory) / "settings.yaml").settings().section(TopologySettings)


def found_of(source: Source) -> Found:
    """Read the files; raises CommandFailed."""
    provider = PROVIDERS.get(source.format_name)
    if provider is None:
        raise _unknown_format(source.format_name, PROVIDERS)
    with file_errors_named():
        files = {str(path): read_bytes(path) for path in _files(source.paths)}
        if len(files) > 1 and not provider.takes_several:
            raise CommandFailed(
                f"{provider.name} takes one file, {len(files)} are given",
                Exit.USAGE,
                field="FILE",
                remedy=FORMATS_REMEDY,
            )
        if (size := sum(map(len, files.values()))) > _MOST_BYTES:
            raise CommandFailed(f"expected at most {_MOST_BYTES} bytes, found {size}", Exit.USAGE, field="FILE")
        return provider.read(files, source.options)


def imported_of(source: Source) -> Imported:
    """Read the files and make their graph; raises CommandFailed."""
    found = found_of(source)
    with file_errors_named():
        return found.imported()


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files: a directory stands for those in it, without the hidden ones."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
            if not inside:
                raise CommandFailed(f"{path} has no files", Exit.USAGE, field="FILE")
            found.update(dict.fromkeys(inside))
        else:
            found[path] = None
        if len(found) > _MOST_FILES:
            raise CommandFailed(f"expected at most {_MOST_FILES} files, found more", Exit.USAGE, field="FILE")
    return list(found)


@contextmanager
def file_errors_named() -> Iterator[None]:
    """A file that cannot be read is an error of the arguments: where it is, and why."""
    try:
        yield
    except FileError as error:
        where = error.file if error.line is None else f"{error.file}:{error.line}"
        reason = f"{error.key}: {error.reason}" if error.key else error.reason
        raise CommandFailed(reason, Exit.USAGE, field=where) from None
    except OSError as error:
        raise CommandFailed(f"cannot be read: {error.strerror}", Exit.USAGE, field=str(error.filename)) from None


def counts(imported: Imported) -> dict[str, int]:
    """What an import found."""
    found = graph_counts(imported.graph)
    if imported.vlans:
        found["vlans"] = len(imported.vlans)
        found["vlan_members"] = sum(len(vlan.members) for vlan in imported.vlans)
    return found


def graph_counts(graph: Graph) -> dict[str, int]:
    """How much of each thing a fabric has."""
    return {
        "switches": len(graph.leaves) + len(graph.spines),
        "leaves": len(graph.leaves),
        "spines": len(graph.spines),
        "nodes": len(graph.nodes),
        "ports": sum(len(node.ports) for node in graph.nodes),
        "links": len(graph.links),
        "islands": graph.island_count,
    }


def _in_words(found: dict[str, int]) -> str:
    singular = {"switches": "switch", "leaves": "leaf", "vlans": "VLAN", "vlan_members": "VLAN member"}
    plural = {"vlans": "VLANs", "vlan_members": "VLAN members"}
    return ", ".join(
        f"{count} {singular.get(name, name[:-1]) if count == 1 else plural.get(name, name)}"
        for name, count in found.items()
    )


def show_notes(notes: Sequence[str]) -> None:
    """What was left out or guessed; the first of many."""
    show(*(f"note: {note}" for note in notes[:_MOST_NOTES]))
    if len(notes) > _MOST_NOTES:
        show(f"and {len(notes) - _MOST_NOTES} notes more: --json has them all")


def write_whole(path: Path, text: str, *, force: bool) -> None:
    """Put a file in place at once, so that nobody ever reads half of it.

    Raises:
        CommandFailed: it is there already, or cannot be written.
    """
    if path.exists() and not force:
        raise CommandFailed(f"{path} is there already", Exit.USAGE, field="--output", remedy="--force writes over it")
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with fresh.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise CommandFailed(f"cannot be written: {error.strerror}", Exit.FAILED, field=str(path)) from None


def _unknown_format(name: str, known: Iterable[str]) -> CommandFailed:
    return CommandFailed(
        f"no format {name[:80]!r}; known: {', '.join(known)}", Exit.USAGE, field="FORMAT", remedy=FORMATS_REMEDY
    )

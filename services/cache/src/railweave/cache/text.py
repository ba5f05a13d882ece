"""Amounts and wishes in words, for reasons. Integers only: what is printed is never rounded up into a lie."""

from __future__ import annotations

from railweave.cache.model import SlotKind

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def amount(size_bytes: int) -> str:
    """Bytes for people: `1.3 TiB`, rounded down to a tenth; `-` in front where negative."""
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    for unit, value in _UNITS:
        if size >= value:
            whole, tenth = divmod(size * 10 // value, 10)
            return f"{sign}{whole}.{tenth} {unit}" if tenth and whole < 100 else f"{sign}{whole} {unit}"
    return f"{sign}{size} B"


def slots_wanted(kind: SlotKind, wanted_bytes: int = 0) -> str:
    """`8 nodes, each with 8 GPUs of model H100, 1 VF group, 300 GiB of datasets`."""
    need = kind.need
    parts: list[str] = []
    gpu = need.gpu
    if gpu is not None:
        share = f"{gpu.fraction_milli}/1000 of " if gpu.is_shared else ""
        each = f"{gpu.workers} x {share}{gpu.gpus}" if gpu.workers > 1 else f"{share}{gpu.gpus}"
        parts.append(f"{each} {'GPU' if gpu.cards == 1 else 'GPUs'}")
        if gpu.model is not None:
            parts[-1] += f" of model {gpu.model}"
        if gpu.memory_mib:
            parts[-1] += f" with {gpu.memory_mib} MiB"
    if need.vf_groups:
        parts.append(f"{need.vf_groups} VF {'group' if need.vf_groups == 1 else 'groups'}")
    elif need.vfs:
        parts.append(f"{need.vfs} {'VF' if need.vfs == 1 else 'VFs'}")
    if wanted_bytes:
        parts.append(f"{amount(wanted_bytes)} of datasets")
    if kind.scratch_bytes:
        parts.append(f"{amount(kind.scratch_bytes)} of scratch")
    if need.exclusive:
        parts.append("to itself")
    if need.selector:
        parts.append("labelled " + " ".join(f"{key}={value}" for key, value in sorted(need.selector)))
    nodes = f"{kind.count} {'node' if kind.count == 1 else 'nodes'}"
    if not parts:
        return nodes
    return f"{nodes} with {', '.join(parts)}" if kind.count == 1 else f"{nodes}, each with {', '.join(parts)}"

"""Amounts, ages and names as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LARGEST_SHOWN = 4


def size(count: int | None) -> str:
    """Bytes: `610 GiB`, `1.3 TiB`; `?` where unknown, which is not zero."""
    if count is None:
        return "?"
    amount = float(count)
    for unit in _BINARY:
        if abs(amount) < 1024 or unit == _BINARY[-1]:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """`40 s`, `14 min`, `3 h`, `2 d`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d}" if whole < 10 * 3600 else f"{whole // 3600} h"
    return f"{whole // 86400} d"


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, `-` where never."""
    if moment is None:
        return "-"
    return duration(((now or datetime.now(UTC)) - moment).total_seconds())


def milliseconds(value: float) -> str:
    """`8.4 ms`, `120 ms`, `3.2 s`."""
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def gpus(milli: int) -> str:
    """Thousandths of GPUs as GPUs: `8`, `0.46`."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli / 1000:.3f}".rstrip("0")


def names(values: tuple[str, ...] | list[str], shown: int = _LARGEST_SHOWN) -> str:
    """A list that may be long: `n1 n2 n3 n4 +60`."""
    head = " ".join(str(value) for value in values[:shown])
    return head if len(values) <= shown else f"{head} +{len(values) - shown}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"

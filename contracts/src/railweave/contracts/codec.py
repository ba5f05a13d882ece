"""Names as subject tokens, and back.

Names come from schedulers and kernels: `0000:3b:00.0`, `node1.rack2`, `schüler "70B"`. A NATS token may hold no dot,
space, `*` or `>`, and a KV key no colon. The rule: letters, digits, `_` and `-` stay; every other byte of the UTF-8
form becomes `=` and two upper-case hex digits. `=` itself is always escaped, so the way back is unique.

    0000:3b:00.0  <->  0000=3A3b=3A00=2E0
    node1.rack2   <->  node1=2Erack2
"""

from __future__ import annotations

import re
from functools import lru_cache

from railweave.contracts.errors import ContractError

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+\Z")


@lru_cache(maxsize=65536)
def encode_token(name: str) -> str:
    """Return the one subject token of a name.

    Raises:
        ContractError: the name is empty or is not encodable as UTF-8.
    """
    if _PLAIN.match(name):
        return name
    if not name:
        raise ContractError("subject", "an empty name has no token")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise ContractError("subject", f"{name!r} is not valid unicode") from error
    return "".join(chr(byte) if byte in _KEPT else f"={byte:02X}" for byte in raw)


@lru_cache(maxsize=65536)
def decode_token(token: str) -> str:
    """Return the name a token stands for.

    Raises:
        ContractError: the token is not one that `encode_token` can have made.
    """
    if _PLAIN.match(token):
        return token
    if not _TOKEN.match(token):
        raise ContractError("subject", f"{token!r} is not a railweave token")
    raw = re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match.group(1), 16)]), token.encode())
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise ContractError("subject", f"{token!r} does not decode to unicode") from error
    if encode_token(name) != token:
        raise ContractError("subject", f"{token!r} escapes what needs no escape; expected {encode_token(name)!r}")
    return name


def encode_id_part(part: str) -> str:
    """Return a name as a part of an event id: only `/`, `%`, white space and control characters are percent-encoded.

    Ids are read by people, so a PCI address or a unicode job name stays as it is. Characters above ASCII are
    percent-encoded too: an id travels in a NATS header.
    """
    if _PLAIN.match(part):
        return part
    return "".join(
        char if "!" <= char <= "~" and char not in "/%" else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in part
    )

"""What must not be written down: secrets by the name they stand under, by their type, and inside URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretBytes, SecretStr

REDACTED = "***"

_SECRET_NAME = re.compile(
    r"(^|_)(password|passwd|secret|token|seed|nkey|credentials?|authorization|api_?key|private_?key)s?($|_)",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/@\s]+@", re.IGNORECASE)
_MAX_DEPTH = 6


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret (`password`, `nkey_seed`, `redis.token`, not `token_count`)."""
    last = name.rsplit(".", 1)[-1]
    # A path to a secret is no secret, and is what one needs to see when it is wrong; nor is a count of tokens.
    return _SECRET_NAME.search(last) is not None and not last.lower().endswith(("_file", "_path", "_count", "_name"))


def redact_text(text: str) -> str:
    """`text` with user and password taken out of every URL in it."""
    return _USERINFO.sub(rf"\g<scheme>{REDACTED}@", text) if "@" in text else text


def redact(value: Any, name: str = "", depth: int = 0) -> Any:
    """`value` as it may be logged under `name`: mappings and sequences are looked into, a few levels deep."""
    if isinstance(value, SecretStr | SecretBytes):
        return REDACTED
    if name and value is not None and is_secret_name(name) and not isinstance(value, bool | int | float):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if depth >= _MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: redact(item, str(key), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item, "", depth + 1) for item in value]
    return value

"""The values the contracts are made of, each a type that cannot be wrong once it exists.

Text types are `str` and amounts are `int`: they cost nothing to use and print as themselves. The check runs once, when
the value is made; a model field of the type accepts the plain JSON value and makes it.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime
from socket import AF_INET, inet_ntop, inet_pton
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


class Document(BaseModel):
    """Base of everything that is written as JSON: immutable, strict (no `"8"` for 8), unknown fields ignored."""

    # Without `use_attribute_docstrings`: reading its own source took a third of the time in which this is imported.
    # The schemas have the docstrings all the same (catalogue/schemas.py).
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


B = TypeVar("B", bound=BaseModel)

_templates: dict[type[BaseModel], tuple[dict[str, Any], frozenset[str]]] = {}
_set = object.__setattr__


def build(model: type[B], **fields: Any) -> B:
    """Return a model of values that are right already: made by this program out of checked ones.

    As `model_construct`, without aliases and extras, in a quarter of its time: rendering a commit makes hundreds.

    Raises:
        TypeError: a field without a default is missing.
    """
    known = _templates.get(model)
    if known is None:
        known = _templates[model] = _template_of(model)
    template, required = known
    if not fields.keys() >= required:
        raise TypeError(f"{model.__name__} needs {', '.join(sorted(required - fields.keys()))}")
    made = model.__new__(model)
    _set(made, "__dict__", template | fields)
    _set(made, "__pydantic_fields_set__", set(fields))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def _template_of(model: type[BaseModel]) -> tuple[dict[str, Any], frozenset[str]]:
    """All fields in the model's order, which is that of its JSON, with their defaults; and those that have none."""
    infos = model.model_fields
    required = frozenset(name for name, info in infos.items() if info.is_required())
    defaults = {
        name: None if name in required else info.get_default(call_default_factory=True) for name, info in infos.items()
    }
    return defaults, required


class Text(str):
    """A string that matches `PATTERN` and is at most `MAX_LENGTH` characters."""

    PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
    MAX_LENGTH: ClassVar[int] = 256
    MEANING: ClassVar[str] = "text without control characters"
    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if type(value) is cls:
            return value
        if len(value) > cls.MAX_LENGTH:
            raise ValueError(f"expected at most {cls.MAX_LENGTH} characters, found {len(value)}")
        if not cls.PATTERN.fullmatch(value):
            raise ValueError(f"expected {cls.MEANING}, found {value!r}")
        return super().__new__(cls, value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema(strict=True))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "type": "string",
            "minLength": 1,
            "maxLength": cls.MAX_LENGTH,
            "pattern": f"^({cls.PATTERN.pattern})$",
            "description": cls.MEANING,
        }


class ClusterName(Text):
    """Name of one scheduler's domain."""

    MAX_LENGTH = 64
    PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
    MEANING = "letters, digits, '.', '_' or '-', starting and ending with a letter or digit"
    __slots__ = ()


class JobName(Text):
    """The scheduler's name of a job, unique in its cluster while the job lives."""

    __slots__ = ()


class RunUid(Text):
    """The scheduler's own unique identity of one run (Slurm SLUID, Kubernetes metadata.uid)."""

    __slots__ = ()


class NodeName(Text):
    """A host's name, unique over all clusters of the fabric."""

    MAX_LENGTH = 253
    PATTERN = re.compile(r"[^\x00-\x20\x7f-\x9f/\ud800-\udfff]+")
    MEANING = "a host name without spaces, slashes or control characters"
    __slots__ = ()


class LeafName(NodeName):
    """A leaf switch's name."""

    __slots__ = ()


class TenantName(Text):
    """A tenant's name."""

    MAX_LENGTH = 128
    __slots__ = ()


class DatasetName(Text):
    """A dataset's readable name. Never a path: directories are named by content."""

    __slots__ = ()


class DatasetVersion(Text):
    """A dataset's version as its source names it."""

    MAX_LENGTH = 128
    __slots__ = ()


class Label(Text):
    """A label's value, or another short text of the scheduler's."""

    __slots__ = ()


class PciAddress(Text):
    """A PCI function, `0000:3b:00.0`, lower case."""

    MAX_LENGTH = 12
    PATTERN = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
    MEANING = "a PCI address such as 0000:3b:00.0 (lower case)"
    __slots__ = ()


class MacAddress(Text):
    """A unicast MAC address, lower case with colons."""

    MAX_LENGTH = 17
    # The second digit is even: the group bit is clear. The kernel refuses a multicast MAC with a bare EINVAL.
    PATTERN = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")
    MEANING = "a unicast MAC address such as 02:00:00:01:00:03 (lower case)"
    __slots__ = ()


class InterfaceName(Text):
    """A network interface's name as the kernel takes it: at most 15 bytes."""

    MAX_LENGTH = 15
    PATTERN = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.=@-]+")
    MEANING = "an interface name of at most 15 letters, digits, '_', '.', '=', '@' or '-'"
    __slots__ = ()


class GpuUuid(Text):
    """A GPU's or MIG instance's UUID as NVML prints it."""

    MAX_LENGTH = 96
    PATTERN = re.compile(r"(GPU|MIG)-[A-Za-z0-9-]+")
    MEANING = "a GPU UUID such as GPU-1b2c0c5e-7a11-4d53-9b0e-0a4d6f6d1a01"
    __slots__ = ()


class BootId(Text):
    """The kernel's boot id: a new one means that kernel state is gone."""

    MAX_LENGTH = 64
    __slots__ = ()


class IntegerAmount(int):
    """An integer in `MINIMUM`..`MAXIMUM`; never a float or a bool."""

    MINIMUM: ClassVar[int] = 0
    MAXIMUM: ClassVar[int] = 2**63 - 1
    UNIT: ClassVar[str] = "count"
    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if type(value) is cls:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            # Only a ValueError becomes an error that names the field.
            raise ValueError(f"expected a whole number ({cls.UNIT}), found {value!r}")  # noqa: TRY004
        if not cls.MINIMUM <= value <= cls.MAXIMUM:
            raise ValueError(f"expected {cls.MINIMUM} to {cls.MAXIMUM} ({cls.UNIT}), found {int(value)}")
        return super().__new__(cls, value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.int_schema(strict=True))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "integer", "minimum": cls.MINIMUM, "maximum": cls.MAXIMUM, "description": cls.UNIT}


class Bytes(IntegerAmount):
    """Bytes."""

    UNIT = "bytes"
    __slots__ = ()


class Mib(IntegerAmount):
    """Mebibytes of GPU memory."""

    UNIT = "MiB"
    MAXIMUM = 2**40
    __slots__ = ()


class Milli(IntegerAmount):
    """Thousandths of one GPU: 1000 is the whole device."""

    UNIT = "thousandths of a GPU"
    MINIMUM = 1
    MAXIMUM = 1000
    __slots__ = ()


class VlanId(IntegerAmount):
    """An IEEE 802.1Q VLAN id. The kernel takes 4095 without a word; we do not."""

    UNIT = "VLAN id"
    MINIMUM = 1
    MAXIMUM = 4094
    __slots__ = ()


class Rail(IntegerAmount):
    """The k-th NIC position of every host, from 0."""

    UNIT = "rail"
    MAXIMUM = 255
    __slots__ = ()


class VfIndex(IntegerAmount):
    """Index of a VF on its PF, from 0."""

    UNIT = "VF index"
    MAXIMUM = 255
    __slots__ = ()


class Slot(IntegerAmount):
    """A node's lasting index on a (leaf, rail)."""

    UNIT = "slot"
    MAXIMUM = 65535
    __slots__ = ()


class Attempt(IntegerAmount):
    """Counts a run's starts, from 1."""

    UNIT = "attempt"
    MINIMUM = 1
    MAXIMUM = 2**31 - 1
    __slots__ = ()


class Round(IntegerAmount):
    """Counts the rounds of proposals of a job, from 1."""

    UNIT = "round"
    MINIMUM = 1
    __slots__ = ()


def _to_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("expected a time with an offset, such as 2026-12-01T10:00:00Z")
    return value.astimezone(UTC)


def format_time(value: datetime) -> str:
    """Return a time as RFC 3339 in UTC, to the millisecond where it has any."""
    text = value.astimezone(UTC).isoformat(timespec="milliseconds" if value.microsecond >= 1000 else "seconds")
    return text.replace("+00:00", "Z")


UtcTime = Annotated[datetime, AfterValidator(_to_utc), PlainSerializer(format_time, return_type=str, when_used="json")]
"""A moment, RFC 3339 in UTC on the wire."""


def _without_zone(value: str) -> str:
    # ipaddress takes any text behind `%`, spaces and all; a zone means nothing on another host.
    if "%" in value:
        raise ValueError(f"expected an address without a zone, found {value!r}")
    return value


_PREFIX_LENGTHS = frozenset(str(length) for length in range(33))


def _is_plain_ipv4(value: str) -> bool:
    """Whether it is an IPv4 address as `ipaddress` would print it: ten times cheaper to tell than to parse.

    A placement of eight NICs has 24 addresses; parsing them was most of the cost of reading it.
    """
    try:
        return inet_ntop(AF_INET, inet_pton(AF_INET, value)) == value
    except (OSError, ValueError):
        return False


def _address_with_prefix(value: str) -> str:
    text, slash, length = value.partition("/")
    if length in _PREFIX_LENGTHS and _is_plain_ipv4(text):
        return value
    _without_zone(value)
    address = ipaddress.ip_interface(value)
    if not slash:
        raise ValueError(f"expected an address with its prefix length such as 10.64.0.18/26, found {value!r}")
    return str(address)


def _address(value: str) -> str:
    if _is_plain_ipv4(value):
        return value
    return str(ipaddress.ip_address(_without_zone(value)))


def _network(value: str) -> str:
    return str(ipaddress.ip_network(_without_zone(value)))


def _text_format(name: str) -> WithJsonSchema:
    # JSON Schema has no format for "IPv4 or IPv6" nor for prefixes: these names are ours, and say what is meant.
    return WithJsonSchema({"type": "string", "format": name})


IpInterface = Annotated[str, AfterValidator(_address_with_prefix), _text_format("ip-with-prefix")]
"""An address with its prefix length, `10.64.0.18/26`."""
IpAddress = Annotated[str, AfterValidator(_address), _text_format("ip")]
"""An address, IPv4 or IPv6."""
IpNetwork = Annotated[str, AfterValidator(_network), _text_format("ip-network")]
"""A network without host bits, `10.64.0.0/26`."""
SourceUri = Annotated[str, Field(pattern=r"^(file|http|https|s3|hf|path):[^\x00-\x1f\x7f]+$", max_length=2048)]
"""Where a dataset comes from: `file:`, `http:`, `https:`, `s3:`, `hf:` or `path:`."""

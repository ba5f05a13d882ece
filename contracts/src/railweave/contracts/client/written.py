"""What callers write, read strictly: a field that does not exist is an error here, because it is misspelt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from railweave.contracts.codec import encode_token
from railweave.contracts.envelope import contract_error
from railweave.contracts.errors import ContractError
from railweave.contracts.job import JobSpec, JobSubmitted

M = TypeVar("M", bound=BaseModel)


def submitted(spec: JobSpec | Mapping[str, Any]) -> JobSubmitted:
    """The event that submits a job; raises ContractError."""
    return JobSubmitted.of(spec) if isinstance(spec, JobSpec) else parsed(JobSubmitted, spec)


def parsed(model: type[M], value: M | Mapping[str, Any]) -> M:
    """Read what a caller wrote. Unlike a reader, a writer is told of fields that do not exist: they are misspelt."""
    if isinstance(value, model):
        return value
    try:
        return model.model_validate_json(to_json(value, inf_nan_mode="constants"), extra="forbid")
    except ValidationError as error:
        raise contract_error(error) from error
    except (PydanticSerializationError, UnicodeError, ValueError) as error:
        raise ContractError("body", f"not writable as JSON: {error}") from error


def subject_filter(prefix: str, *names: str | None) -> str:
    """The filter for subjects that go on with these names; None matches any."""
    return ".".join([prefix, *(encode_token(name) if name is not None else "*" for name in names)])

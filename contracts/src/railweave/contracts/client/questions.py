"""Asking Railweave's services: request and reply, for answers that are not events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from railweave.contracts.client.errors import NotAnswered, QueryFailed
from railweave.contracts.client.link import Link
from railweave.contracts.client.written import submitted
from railweave.contracts.envelope import contract_error
from railweave.contracts.job import JobSpec
from railweave.contracts.query import DRY_RUN_SUBJECT, DryRunAnswer, DryRunRequest

M = TypeVar("M", bound=BaseModel)

_SERVICE_ERROR = "Nats-Service-Error"
_SERVICE_ERROR_CODE = "Nats-Service-Error-Code"


async def dry_run(link: Link, spec: JobSpec | Mapping[str, Any], *, timeout: float = 10.0) -> DryRunAnswer:
    """Ask the jobs service where a job would run (see `JobPublisher.dry_run`)."""
    request = DryRunRequest(spec=submitted(spec).spec())
    return await ask(link, DRY_RUN_SUBJECT, request, DryRunAnswer, timeout=timeout)


async def ask(link: Link, subject: str, question: BaseModel, answer: type[M], *, timeout: float = 5.0) -> M:
    """Ask a service a question of `railweave.contracts.query`.

    Raises:
        NotAnswered: nobody answered within `timeout` seconds.
        QueryFailed: the service could not say.
        ContractError: the answer is not what this client understands.
    """
    body = question.model_dump_json(exclude_none=True, by_alias=True).encode()
    try:
        reply = await link.request(subject, body, timeout)
    except NotAnswered as error:
        raise NotAnswered(
            f"{error}: is the service running? `railweave doctor` says", was_sent=error.was_sent
        ) from None
    headers = reply.headers or {}
    if _SERVICE_ERROR in headers:
        code = headers.get(_SERVICE_ERROR_CODE, "")
        raise QueryFailed(subject, int(code) if code.isdigit() else 500, headers[_SERVICE_ERROR])
    try:
        return answer.model_validate_json(reply.data)
    except ValidationError as error:
        raise contract_error(error) from error

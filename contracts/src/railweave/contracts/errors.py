"""What the contracts refuse, and how they say so."""

from __future__ import annotations


class ContractError(ValueError):
    """An event, a subject or a value that does not keep the contract.

    `field` is the path of what is wrong as the sender wrote it (`data.workers[0].gpus`, `subject`, `type`);
    `reason` says what was expected there. Nothing is changed by an input that raises it.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason

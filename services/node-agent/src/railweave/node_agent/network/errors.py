"""Why the agent's network half says no. A refusal is said before anything is changed; a failure names the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from railweave.runtime.netlink import KernelError

if TYPE_CHECKING:
    from railweave.node_agent.network.model import Step

__all__ = ["NetworkRefused", "StepFailed", "UndoFailed"]


class NetworkRefused(Exception):
    """What is wanted cannot be done here; the kernel was not touched.

    Attributes:
        about: the VF ("r1v0"), the interface or the namespace it is about.
        reason: what is wrong, with the numbers.
    """

    def __init__(self, about: str, reason: str) -> None:
        self.about = about
        self.reason = reason
        super().__init__(f"{about}: {reason}")


class StepFailed(Exception):
    """The kernel refused a step. Steps before it, and those of its batch in `done`, are applied: undo all that were
    journaled (undoing what was not applied does nothing)."""

    def __init__(self, step: Step, cause: Exception, done: Sequence[Step]) -> None:
        self.step = step
        self.cause = cause
        self.done = tuple(done)
        super().__init__(f"{step.describe()}: {cause}")

    @property
    def errno_name(self) -> str:
        """The kernel's symbolic errno ("EBUSY") or the cause's class."""
        return self.cause.errno_name if isinstance(self.cause, KernelError) else type(self.cause).__name__


class UndoFailed(Exception):
    """Some steps could not be undone; all others were. Undo again: what is undone already stays so."""

    def __init__(self, failures: Sequence[tuple[Step, Exception]]) -> None:
        self.failures = tuple(failures)
        super().__init__("; ".join(f"undo of {step.describe()}: {cause}" for step, cause in failures))

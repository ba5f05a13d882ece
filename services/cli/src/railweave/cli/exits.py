"""How the command ends: exit codes and the one exception that carries them.

Codes are part of the interface (docs/reference/commands.md): scripts branch on them.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    ANSWER_IS_NO = 5
    TIMED_OUT = 6
    CHANGED_MEANWHILE = 7
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.DONE: "done; of `submit --dry-run`: it would be placed now",
    Exit.FAILED: "failed, or something that was checked is not right (`doctor`, `fabric check`, `demo`, `bench` with "
    "leaks)",
    Exit.USAGE: "arguments, a file or a setting that cannot be used; the message names the field",
    Exit.UNREACHABLE: "NATS or the service that was asked did not answer",
    Exit.NOT_FOUND: "no such job, node, dead letter or local stack",
    Exit.ANSWER_IS_NO: "the job was rejected, was given back, or would not be placed, or the fabric cannot be what the "
    "file says; the reasons are printed",
    Exit.TIMED_OUT: "what was waited for did not come in time; the job goes on",
    Exit.CHANGED_MEANWHILE: "somebody else changed it at the same moment; look, and try again",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
}


class CommandFailed(Exception):
    """A command cannot do what was asked. Says what is wrong, where, and what to do.

    Args:
        message: one line for people.
        code: how the process ends.
        field: the path of what is wrong in what was given, where there is one.
        remedy: what to do about it.
    """

    def __init__(
        self, message: str, code: Exit = Exit.FAILED, *, field: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        self.remedy = remedy

    def document(self) -> dict[str, object]:
        """What `--json` prints for it."""
        return {
            "error": {
                "message": self.message,
                "code": int(self.code),
                "field": self.field,
                "remedy": self.remedy,
            }
        }

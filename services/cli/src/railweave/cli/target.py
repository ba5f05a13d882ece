"""Where a command is to go, as its global options say. Imports nothing: the list of commands needs it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from railweave.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command is to go, as its global options say."""

    nats: str | None = None
    config: Path | None = None
    _settings: list[Settings] = field(default_factory=list)

    def settings(self) -> Settings:
        """The settings, read once; raises CommandFailed."""
        from railweave.cli.where import settings_for

        if not self._settings:
            self._settings.append(settings_for(self.nats, self.config))
        return self._settings[0]

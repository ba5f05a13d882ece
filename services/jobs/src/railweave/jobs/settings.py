"""Settings of the jobs service."""

from __future__ import annotations

from pydantic import Field

from railweave.jobs.model import CommitterConfig
from railweave.runtime.settings import Seconds, Section, register_section


class JobsSettings(Section):
    """The committer, its queue and its deadlines."""

    bootstrap: bool = Field(default=True, description="make streams and consumers that are missing")
    replicas: int = Field(default=1, ge=1, le=5, description="replicas of the streams it makes")
    lease_ttl_s: Seconds = Field(default=5.0, description="silence of the active instance that a standby bears")
    asks_at_once: int = Field(default=48, ge=1, le=10_000, description="rounds of proposals open at a time")
    ask_timeout_s: Seconds = Field(default=10.0, description="patience with a service that is asked for a proposal")
    retry_pending_s: Seconds = Field(default=30.0, description="a waiting job is asked again at the latest after this")
    wake_at_once: int = Field(default=8, ge=1, le=1000, description="waiting jobs alike woken by one change")
    keep_nodes_after_s: Seconds = Field(default=20.0, description="freed nodes are kept for the first gang after this")
    snapshot_grace_s: Seconds = Field(
        default=60.0, description="a job missing in its scheduler's list is kept this long"
    )
    orphan_grace_s: Seconds = Field(default=2.0, description="what only a journal has is judged after this")

    def committer(self) -> CommitterConfig:
        """The committer's configuration."""
        return CommitterConfig(
            asks_at_once=self.asks_at_once,
            ask_timeout_s=self.ask_timeout_s,
            retry_pending_s=self.retry_pending_s,
            wake_at_once=self.wake_at_once,
            keep_nodes_after_s=self.keep_nodes_after_s,
            snapshot_grace_s=self.snapshot_grace_s,
            orphan_grace_s=self.orphan_grace_s,
        )


register_section("jobs", JobsSettings)

"""Desired states that platforms and operators write, in stream DESIRED.

One per subject, the latest wins, with a generation and a tombstone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.job import User
from railweave.contracts.types import (
    Bytes,
    ClusterName,
    DatasetName,
    DatasetVersion,
    Document,
    Label,
    Mib,
    NodeName,
    Rail,
    SourceUri,
    TenantName,
    UtcTime,
)

Generation = Annotated[int, Field(ge=1)]
Presence = Literal["present", "absent"]


class NodeMode(StrEnum):
    SCHEDULABLE = "schedulable"
    CORDONED = "cordoned"
    """Nothing new; what runs goes on."""
    DRAINING = "draining"
    """Nothing new; reported empty when the last job ended."""
    RETIRED = "retired"
    """Gone for good: what it held is taken from it, its ports stay quarantined."""


@register_event
class NodeDesired(Event):
    """What an operator wants of a node."""

    TYPE = "railweave.node.v1"
    SOURCE = "/operator"
    node: NodeName
    generation: Generation
    mode: NodeMode
    reason: Label | None = None
    user: Label | None = None
    until: UtcTime | None = None
    cordoned_rails: tuple[Rail, ...] = ()

    def subject(self) -> str:
        return f"rw.node.{encode_token(self.node)}"

    def event_id(self) -> str:
        return f"node/{encode_id_part(self.node)}/{self.generation}"


class GpuQuota(Document):
    guaranteed: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=0)] | None = None


class CacheQuota(Document):
    guaranteed: Bytes = Bytes(0)


class TenantQuota(Document):
    gpus: GpuQuota = GpuQuota()
    segments: int | None = None
    cache_bytes: CacheQuota = CacheQuota()
    environments: int | None = None


@register_event
class Tenant(Event):
    """A tenant and its quotas."""

    TYPE = "railweave.tenant.v1"
    SOURCE = "/platform"
    tenant: TenantName
    generation: Generation
    state: Presence = "present"
    parent: TenantName | None = None
    weight: Annotated[int, Field(ge=1)] = 1
    quota: TenantQuota = TenantQuota()

    def subject(self) -> str:
        return f"rw.tenant.{encode_token(self.tenant)}"

    def event_id(self) -> str:
        return f"tenant/{encode_id_part(self.tenant)}/{self.generation}"


class EnvironmentQuota(Document):
    gpus: Annotated[int, Field(ge=0)] = 0
    fraction_milli: Annotated[int, Field(ge=0)] | None = None
    memory_mib: Mib | None = None
    gpu_seconds_per_day: int | None = None


class DefaultRequest(Document):
    gpus: Annotated[int, Field(ge=0)] = 1
    mode: Literal["on_import", "on_first_use"] = "on_first_use"


class IdlePolicy(Document):
    after_s: Annotated[int, Field(ge=1)] = 1800
    action: Literal["warn", "release"] = "warn"


@register_event
class Environment(Event):
    """A development container and its GPU quota."""

    TYPE = "railweave.environment.v1"
    cluster: ClusterName
    environment: Label
    generation: Generation
    state: Presence = "present"
    node: NodeName | None = None
    pod_uid: Label | None = None
    tenant: TenantName = TenantName("default")
    user: User | None = None
    quota: EnvironmentQuota = EnvironmentQuota()
    default_request: DefaultRequest = DefaultRequest()
    on_denied: Literal["fail", "cpu", "wait"] = "wait"
    wait_deadline_s: int = 900
    max_lease_s: int | None = None
    idle: IdlePolicy = IdlePolicy()
    preemptible: bool = False
    grace_s: int = 120

    def subject(self) -> str:
        return f"rw.env.{encode_token(self.cluster)}.{encode_token(self.environment)}"

    def event_id(self) -> str:
        return f"environment/{encode_id_part(self.cluster)}/{encode_id_part(self.environment)}/{self.generation}"

    def source(self) -> str:
        return f"/cluster/{encode_id_part(self.cluster)}"


@register_event
class Dataset(Event):
    """A registered dataset."""

    TYPE = "railweave.dataset.v1"
    SOURCE = "/platform"
    name: DatasetName
    version: DatasetVersion = DatasetVersion("latest")
    generation: Generation
    state: Presence = "present"
    source_uri: SourceUri | None = None
    size_bytes: Bytes | None = None
    digest: str | None = None
    owner: TenantName | None = None
    readers: tuple[TenantName, ...] = ()
    credentials: Label | None = None
    """A reference to credentials, never the credentials."""

    @property
    def dataset(self) -> str:
        return f"{self.name}@{self.version}"

    def subject(self) -> str:
        return f"rw.dataset.{encode_token(self.dataset)}"

    def event_id(self) -> str:
        return f"dataset/{encode_id_part(self.dataset)}/{self.generation}"

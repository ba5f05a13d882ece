"""The sections of settings that every process has: nats, redis, service, log."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, values never shown in error messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


class TlsSettings(Section):
    """Certificates of one connection."""

    enabled: bool = Field(default=False, description="use TLS")
    ca_file: Path | None = Field(default=None, description="certificates to trust; the system's when absent")
    cert_file: Path | None = Field(default=None, description="own certificate, for mutual TLS")
    key_file: Path | None = Field(default=None, description="key of the own certificate")
    hostname: str | None = Field(default=None, description="name expected in the server's certificate")

    @model_validator(mode="after")
    def _pair(self) -> TlsSettings:
        if (self.cert_file is None) != (self.key_file is None):
            msg = "cert_file and key_file go together"
            raise ValueError(msg)
        return self


class NatsSettings(Section):
    """How to reach NATS, and as whom."""

    servers: tuple[str, ...] = Field(
        default=("nats://127.0.0.1:4222",), min_length=1, description="URLs of the servers, comma-separated"
    )
    user: str | None = Field(default=None, description="user name")
    password: SecretStr | None = Field(default=None, description="password of the user")
    token: SecretStr | None = Field(default=None, description="token, where the server uses one")
    nkey_seed_file: Path | None = Field(default=None, description="file with the nkey seed of this identity")
    credentials_file: Path | None = Field(default=None, description="file with JWT and seed of this identity")
    inbox_prefix: str | None = Field(default=None, description="inbox prefix this identity may subscribe to")
    ping_interval_s: Seconds = Field(default=5.0, description="seconds between pings; two missed mean a dead link")
    tls: TlsSettings = Field(default=TlsSettings(), description="TLS of the connection")

    @field_validator("servers")
    @classmethod
    def _servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            _check_url(server, ("nats", "tls", "ws", "wss"), "nats.user and nats.password")
        return servers

    @model_validator(mode="after")
    def _one_identity(self) -> NatsSettings:
        ways = {
            "user": self.user,
            "token": self.token,
            "nkey_seed_file": self.nkey_seed_file,
            "credentials_file": self.credentials_file,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            msg = f"more than one identity: {', '.join(given)}; keep one"
            raise ValueError(msg)
        if self.password is not None and self.user is None:
            msg = "a password without a user"
            raise ValueError(msg)
        return self


class RedisSettings(Section):
    """The working memory; nothing that is held depends on it."""

    enabled: bool = Field(default=True, description="use Redis; without it there are no heartbeats and no read model")
    url: str = Field(default="redis://127.0.0.1:6379/0", description="redis, rediss or unix URL, without credentials")
    user: str | None = Field(default=None, description="ACL user")
    password: SecretStr | None = Field(default=None, description="password of the user")
    tls_ca_file: Path | None = Field(default=None, description="certificates to trust with rediss")
    prefix: str = Field(default="rw:", pattern=r"^[A-Za-z0-9_.:-]*$", description="start of every key")
    timeout_s: Seconds = Field(default=1.0, description="seconds one command may take")
    connect_timeout_s: Seconds = Field(default=1.0, description="seconds a connection may take")
    max_connections: int = Field(default=16, ge=1, le=1024, description="connections of this process")
    check_interval_s: Seconds = Field(
        default=2.0, description="seconds between checks that it is there and not emptied"
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        _check_url(url, ("redis", "rediss", "unix"), "redis.user and redis.password")
        return url


class ServiceSettings(Section):
    """What a process is called, where it can be asked how it is, and how it stops."""

    name: str = Field(default="railweave", min_length=1, max_length=64, description="name of the process in logs")
    instance: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        min_length=1,
        max_length=128,
        description="which of several; host name and pid unless given",
    )
    http_host: str = Field(default="127.0.0.1", description="address of the health and metrics server")
    http_port: int = Field(default=0, ge=0, le=65535, description="its port; 0 picks a free one")
    uvloop: bool = Field(default=True, description="use uvloop where it is installed")
    stop_deadline_s: Seconds = Field(default=5.0, description="seconds from SIGTERM to the end at the latest")


class LogSettings(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        default="info", description="least level written"
    )
    format: Literal["json", "console", "auto"] = Field(
        default="json", description="json; console for people; auto is console on a terminal"
    )
    repeat_interval_s: float = Field(
        default=10.0, ge=0, description="a repeated warning is written once in these seconds; 0 writes all"
    )

    @field_validator("level", mode="before")
    @classmethod
    def _lower(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level


def _check_url(url: str, schemes: tuple[str, ...], where_credentials_go: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in schemes:
        msg = f"URL must begin with one of {', '.join(f'{scheme}://' for scheme in schemes)}"
        raise ValueError(msg)
    if parts.username or parts.password:
        msg = f"no credentials in a URL, it is logged; use {where_credentials_go}"
        raise ValueError(msg)

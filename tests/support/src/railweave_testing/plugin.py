"""The pytest fixtures of `railweave_testing.servers`; loaded by the conftest.py of the repository's root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from railweave.runtime.local_servers import LocalNatsServer, LocalValkeyServer
from railweave_testing.servers import running_nats, running_valkey, scratch_directory


@pytest.fixture(scope="session")
def nats_server() -> Iterator[LocalNatsServer]:
    """One broker for the whole run: for tests that use names of their own and never stop it."""
    with running_nats() as server:
        yield server


@pytest.fixture
def fresh_nats_server() -> Iterator[LocalNatsServer]:
    """A broker of this test alone, with an empty store: to be killed, frozen, restored."""
    with running_nats() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[LocalValkeyServer]:
    """One Valkey for the whole run: for tests that use keys of their own and never empty it."""
    with running_valkey() as server:
        yield server


@pytest.fixture
def fresh_valkey_server() -> Iterator[LocalValkeyServer]:
    """A Valkey of this test alone: to be killed, frozen, flushed."""
    with running_valkey() as server:
        yield server


@pytest.fixture
def short_tmp_path() -> Iterator[Path]:
    """A directory for unix sockets, whose paths have a limit of 108 bytes that pytest's `tmp_path` may pass."""
    with scratch_directory() as directory:
        yield directory

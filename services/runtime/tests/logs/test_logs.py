"""What a log line says, and what it must not."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from railweave.contracts.identity import JobRun
from railweave.contracts.types import Attempt, ClusterName, JobName, RunUid
from railweave.runtime.logs import RepeatLimiter, _Handler, configure_logging, job_context, service_context
from railweave.runtime.redaction import is_secret_name, redact_text
from railweave.runtime.tracing import trace_hop

RUN = JobRun(ClusterName("slurm-a"), JobName("88121"), Attempt(2), RunUid("s9K2"))
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    stream = io.StringIO()
    configure_logging(level="debug", stream=stream)
    root = logging.getLogger()
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for handler in [h for h in root.handlers if getattr(h, "stream", None) is stream]:
        root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_a_line_is_one_json_object_with_time_level_and_logger(lines: Lines) -> None:
    structlog.stdlib.get_logger("railweave.jobs").info("placed", nodes=8)
    (line,) = lines()
    assert (line["event"], line["level"], line["logger"], line["nodes"]) == ("placed", "info", "railweave.jobs", 8)
    assert line["time"].endswith("Z")


def test_every_line_inside_a_job_context_names_the_job(lines: Lines) -> None:
    log = structlog.stdlib.get_logger("x")
    with service_context("jobs", "host-1"), job_context(RUN):
        log.info("placed")
        logging.getLogger("library").info("also from a library")
    log.info("after")
    inside, library, after = lines()
    for line in (inside, library):
        assert (line["cluster"], line["job"], line["attempt"], line["uid"]) == ("slurm-a", "88121", 2, "s9K2")
        assert (line["service"], line["instance"]) == ("jobs", "host-1")
    assert "job" not in after


def test_a_run_without_uid_has_none_in_its_lines(lines: Lines) -> None:
    with job_context(RUN._replace(uid=None)):
        structlog.stdlib.get_logger("x").info("placed")
    assert "uid" not in lines()[0]


def test_a_line_carries_the_trace(lines: Lines) -> None:
    with trace_hop() as hop:
        structlog.stdlib.get_logger("x").info("placed")
    assert lines()[0]["trace_id"] == hop.trace_id


def test_an_exception_is_one_line_with_its_traceback(lines: Lines) -> None:
    try:
        raise ValueError("redis://jobs:hunter2@r/0 is no URL")
    except ValueError:
        structlog.stdlib.get_logger("x").exception("failed")
    (line,) = lines()
    assert "ValueError" in line["exception"]
    assert "hunter2" not in line["exception"]


def test_warnings_of_python_are_logged() -> None:
    program = (
        "import warnings; from railweave.runtime.logs import configure_logging; "
        "configure_logging(); warnings.warn('old')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert "old" in json.loads(done.stderr)["event"]


def test_unusual_values_do_not_break_a_line(lines: Lines) -> None:
    structlog.stdlib.get_logger("x").info("odd", raw=b"\xff\x00", thing=object(), name='schüler "70B"')
    (line,) = lines()
    assert line["name"] == 'schüler "70B"'


def test_a_wrong_format_string_of_a_library_does_not_reach_its_caller(
    lines: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    (ours,) = [handler for handler in logging.getLogger().handlers if isinstance(handler, _Handler)]
    ours.handle(logging.LogRecord("library", logging.INFO, __file__, 1, "%d", ("x",), None))
    assert lines() == []
    assert "Logging error" in capsys.readouterr().err


def test_configuring_twice_writes_once(lines: Lines) -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    structlog.stdlib.get_logger("x").info("once")
    assert len(stream.getvalue().splitlines()) == 1
    assert lines() == []


def test_console_is_for_people(lines: Lines) -> None:
    stream = io.StringIO()
    configure_logging(log_format="console", stream=stream)
    structlog.stdlib.get_logger("x").info("placed", nodes=8)
    assert "nodes=8" in stream.getvalue()


def test_auto_is_json_where_nobody_looks(lines: Lines) -> None:
    stream = io.StringIO()
    configure_logging(log_format="auto", stream=stream)
    structlog.stdlib.get_logger("x").info("placed")
    assert json.loads(stream.getvalue())["event"] == "placed"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown log level"):
        configure_logging(level="loud")


class TestSecrets:
    @pytest.mark.parametrize(
        "name",
        ["password", "nats_password", "token", "nkey_seed", "credentials", "Authorization", "api_key", "s3.secret"],
    )
    def test_these_names_hold_secrets(self, name: str) -> None:
        assert is_secret_name(name)

    @pytest.mark.parametrize("name", ["credentials_file", "token_count", "job", "key", "secret_name"])
    def test_these_do_not(self, name: str) -> None:
        assert not is_secret_name(name)

    def test_secrets_are_taken_out_however_deep(self, lines: Lines) -> None:
        structlog.stdlib.get_logger("x").info(
            "connect",
            password="hunter2",
            settings={"nats": {"token": "hunter2", "servers": ["nats://u:hunter2@a"]}},
            held=SecretStr("hunter2"),
            url="redis://:hunter2@r/0",
        )
        assert "hunter2" not in json.dumps(lines())

    def test_text_without_userinfo_is_left_as_it_is(self) -> None:
        assert redact_text("mail ops@example about http://a/b?c=d@e") == "mail ops@example about http://a/b?c=d@e"

    def test_a_library_cannot_log_a_url_with_its_password(self, lines: Lines) -> None:
        logging.getLogger("library").warning("cannot reach %s", "nats://u:hunter2@a:4222")
        assert "hunter2" not in json.dumps(lines())


class TestRepeats:
    def test_a_repeated_warning_is_written_once_and_then_counted(self) -> None:
        now = [0.0]
        limit = RepeatLimiter(10.0, monotonic=lambda: now[0])
        event = {"event": "redis is away", "level": "warning"}
        limit(None, "warning", dict(event))
        for _ in range(3):
            with pytest.raises(structlog.DropEvent):
                limit(None, "warning", dict(event))
        now[0] = 10.0
        assert limit(None, "warning", dict(event))["repeated"] == 3

    @pytest.mark.parametrize(
        "change", [{"job": "2"}, {"node": "n2"}, {"event": "other"}, {"logger": "y"}, {"service": "gpu"}]
    )
    def test_another_job_event_logger_or_service_is_not_a_repeat(self, change: dict[str, str]) -> None:
        limit = RepeatLimiter(10.0, monotonic=lambda: 0.0)
        event = {"event": "refused", "level": "warning", "job": "1", "logger": "x", "service": "jobs"}
        limit(None, "warning", dict(event))
        assert limit(None, "warning", event | change)

    def test_info_is_never_held_back(self) -> None:
        limit = RepeatLimiter(10.0, monotonic=lambda: 0.0)
        for _ in range(3):
            assert limit(None, "info", {"event": "placed", "level": "info"})

    def test_what_is_remembered_is_bounded(self) -> None:
        limit = RepeatLimiter(10.0, capacity=4, monotonic=lambda: 0.0)
        for number in range(100):
            limit(None, "warning", {"event": str(number), "level": "warning"})
        assert len(limit._seen) == 4

    def test_a_repeated_warning_of_a_library_is_held_back_without_noise(
        self, lines: Lines, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for _ in range(3):
            logging.getLogger("library").warning("again")
        assert len(lines()) == 1
        assert capsys.readouterr().err == ""

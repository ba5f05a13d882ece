"""The scripts of docs/ run as they stand in the pages: against a real broker with the streams, and nothing else.

Only the broker's address is changed: the pages say 4222, the tests' broker is on a free port.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from pydantic_core import to_json

from railweave.contracts import encode_event, registered_types
from railweave.contracts.catalogue.entries import STREAMS
from railweave.contracts.catalogue.examples import all_examples
from railweave.contracts.codec import encode_token
from railweave.runtime import streams
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected

DOCS = Path(__file__).parents[2] / "docs"
SAID = "nats://127.0.0.1:4222"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def script(page: str, number: int) -> str:
    return blocks(page, "python")[number]


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker with the streams, and someone who plays Railweave."""

    url: str
    client: nats.aio.client.Client

    async def say(self, kind: str, **data: object) -> None:
        event = registered_types()[kind].model_validate_json(to_json(data))
        message = encode_event(event)
        await self.client.jetstream().publish(message.subject, message.body, headers=dict(message.headers))

    async def run(self, code: str, *, until: str | None = None) -> str:
        """Run a script to its end, or until it has printed a line that contains `until`; returns what it printed."""
        assert SAID in code
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-u",
            "-X",
            "dev",
            "-c",
            code.replace(SAID, self.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        try:
            async with asyncio.timeout(30):
                while line := (await process.stdout.readline()).decode():
                    said += line
                    if until is not None and until in line:
                        process.terminate()
                        break
                failed = (await process.stderr.read()).decode()
                status = await process.wait()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if until is None:
            assert (status, failed) == (0, ""), said
        return said


@pytest.fixture
async def stage(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Stage]:
    async with connected(fresh_nats_server) as bus:
        await bootstrap(bus)
    client = await nats.connect(fresh_nats_server.url)
    yield Stage(fresh_nats_server.url, client)
    await client.close()


async def stored(stage: Stage, subject: str) -> int:
    stream = await stage.client.jetstream().find_stream_name_by_subject(subject)
    info = await stage.client.jetstream().stream_info(stream, subjects_filter=subject)
    return sum((info.state.subjects or {}).values())


PLACED = {"job": "1234", "attempt": 1, "cluster": "lab", "node": "gpu-001", "epoch": 1, "round": 1, "commit": "c-1"}


async def test_five_lines_publish_a_job(stage: Stage) -> None:
    code = script("integrate/publish.md", 0)
    await stage.run(code)
    await stage.run(code)
    assert await stored(stage, "rw.job.submitted.lab.1234") == 1


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("prepared", {"nodes": ["gpu-001", "gpu-002"]}, "start the workers on gpu-001 gpu-002\n"),
        ("rejected", {"reasons": [{"code": "TooLarge", "text": "wants 16 GPUs of 8"}]}, "never: wants 16 GPUs of 8\n"),
    ],
)
async def test_waiting_script_says_what_became_of_the_job(
    stage: Stage, kind: str, data: dict[str, object], said: str
) -> None:
    submissions = await stage.client.subscribe("rw.job.submitted.lab.1235")
    running = asyncio.create_task(stage.run(script("integrate/publish.md", 1)))
    await submissions.next_msg(timeout=20)
    await stage.say(f"railweave.job.{kind}.v1", cluster="lab", job="1235", attempt=1, **data)
    assert await running == said


async def test_waiting_script_says_how_far_it_is_when_time_is_over(stage: Stage) -> None:
    await stage.say(
        "railweave.job.pending.v1",
        cluster="lab",
        job="1235",
        attempt=1,
        reasons=[{"code": "InsufficientGpus", "text": "6 of 8 GPUs free"}],
    )
    said = await stage.run(script("integrate/publish.md", 1).replace("timeout=60", "timeout=1"))
    assert said.startswith("not yet:")


async def test_whole_life_is_published(stage: Stage) -> None:
    await stage.run(script("integrate/publish.md", 2))
    for kind in ("submitted", "updated", "started", "ended"):
        assert await stored(stage, f"rw.job.{kind}.lab.1236") == 1
    assert await stored(stage, "rw.snapshot.lab") == 1


async def test_plain_script_publishes(stage: Stage) -> None:
    assert await stage.run(script("integrate/publish.md", 3)) == ""
    assert await stored(stage, "rw.job.submitted.lab.1237") == 1


@pytest.mark.parametrize("number", [0, 3])
async def test_placements_are_followed(stage: Stage, number: int) -> None:
    await stage.say("railweave.placement.v1", **PLACED, state="desired")
    running = asyncio.create_task(stage.run(script("integrate/follow.md", number), until="releasing"))
    await asyncio.sleep(0.2)
    await stage.say("railweave.placement.v1", **PLACED, state="releasing")
    assert "gpu-001" in await running


async def test_following_resumes(stage: Stage) -> None:
    for state in ("desired", "releasing"):
        await stage.say("railweave.placement.v1", **PLACED, state=state)
    code = script("integrate/follow.md", 1).replace("start_after=0", "start_after=1")
    assert await stage.run(code, until="releasing") == "2 releasing\n"


async def test_job_events_are_followed(stage: Stage) -> None:
    await stage.say(
        "railweave.job.rejected.v1", cluster="lab", job="1", attempt=1, reasons=[{"code": "TooLarge", "text": "no"}]
    )
    assert await stage.run(script("integrate/follow.md", 2), until="rejected") == "1 railweave.job.rejected.v1 no\n"


def test_no_script_of_the_pages_is_left_out() -> None:
    assert (len(blocks("integrate/publish.md", "python")), len(blocks("integrate/follow.md", "python"))) == (4, 4)


def test_token_function_of_the_page_agrees_with_the_codec() -> None:
    function = next(block for block in blocks("reference/events.md", "bash") if "token()" in block)
    names = ["88121", "0000:3b:00.0", "node1.rack2", 'Schüler "70B" 100%', "a=b", "作业", "'$(x)`\\", " -n", "*>"]
    for name in names:
        done = subprocess.run(
            ["bash", "-c", f'{function}\ntoken "$1"', "bash", name], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{encode_token(name)}\n"


async def test_publish_command_of_the_page_says_the_smallest_job(stage: Stage) -> None:
    command = next(block for block in blocks("reference/events.md", "bash") if "nats pub" in block)
    # The `nats` tool is not ours: a stand-in prints what it was given, as the shell took the command apart.
    stand_in = "nats() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"; }\n"
    done = subprocess.run(["bash", "-c", stand_in + command], capture_output=True, text=True, check=True)
    pub, flag, header, subject, body = json.loads(done.stdout)
    name, _, value = header.partition(":")
    assert (pub, flag, name) == ("pub", "-H", "Nats-Msg-Id")
    await stage.client.jetstream().publish(subject, body.encode(), headers={name: value})
    assert (subject, value) == ("rw.job.submitted.lab.1234", "job.submitted/lab/1234/1")
    assert len(json.loads(body)["data"]) == 4


def test_published_streams_are_those_that_bootstrap_makes() -> None:
    made = {spec.name: spec for spec in streams.STREAMS}
    for entry in STREAMS:
        spec = made[entry.name]
        assert entry.subjects == tuple(subject for subject in spec.subjects if subject.startswith("rw."))
        assert (entry.max_age_s, entry.per_subject) == (spec.max_age_s, spec.per_subject)
        assert (entry.duplicate_window_s, entry.allow_atomic) == (spec.duplicate_window_s, spec.allow_atomic)
    assert set(made) - {entry.name for entry in STREAMS} == {streams.LEASES}
    for examples in all_examples().values():
        for example in examples:
            assert streams.stream_of(example.message.subject) in made

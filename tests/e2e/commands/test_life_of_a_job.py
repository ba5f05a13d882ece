"""A job from submitted to released, by the command alone, through real servers, services and simulated nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest

from railweave.cli.exits import Exit
from railweave_testing.command_line import Up, eventually

pytestmark = pytest.mark.timeout(120)


def state(stack: Up, job: str) -> str:
    return str(stack.command("job", f"lab/{job}", "--json").document["row"]["state"])


def until(stack: Up, job: str, wanted: str) -> None:
    eventually(lambda: state(stack, job) == wanted)


def test_from_submitted_to_released(stack: Up) -> None:
    file = stack.job("whole", workers=[{"count": 2, "gpus": 2}], network={})
    said = stack.command("submit", file, "--wait", "prepared", "--timeout", "20", "--json")
    assert said.code == 0
    assert said.document["reached"] == "prepared"
    assert len(said.document["event"]["nodes"]) == 2
    detail = stack.command("job", "lab/whole", "--json").document
    addresses = [address for worker in detail["placed"] for address in worker["addresses"]]
    assert len(addresses) == len(set(addresses)) == 8
    assert stack.command("started", "lab/whole", "--netns", "0=/run/netns/a", "--netns", "1=/run/netns/b").code == 0
    until(stack, "whole", "attached")
    assert "lab/whole" in stack.command("jobs").out
    assert stack.command("cancel", "lab/whole", "--reason", "test").code == 0
    until(stack, "whole", "released")
    assert "lab/whole" not in stack.command("jobs").out
    node = stack.command("node", "node-1", "--json").document
    assert (node["free_gpus"], node["free_vf_groups"], node["jobs"]) == (4, 8, [])


def test_the_same_job_submitted_twice_counts_once(stack: Up) -> None:
    file = stack.job("twice")
    assert stack.command("submit", file, "--json").document["duplicate"] is False
    assert stack.command("submit", file, "--json").document["duplicate"] is True
    stack.command("cancel", "lab/twice")


def test_a_job_from_standard_input_as_a_cloud_event(stack: Up) -> None:
    data = {"cluster": "lab", "job": "stdin", "attempt": 1, "workers": [{"count": 1, "gpus": 1}]}
    event = {"specversion": "1.0", "type": "railweave.job.submitted.v1", "data": data}
    assert stack.command("submit", "-", "--wait", "placed", "--timeout", "20", text=json.dumps(event)).code == 0
    stack.command("cancel", "lab/stdin")


def test_a_misspelt_field_is_named_and_nothing_is_submitted(stack: Up) -> None:
    said = stack.command("submit", stack.job("misspelt", tenent="nlp"))
    assert said.code == Exit.USAGE
    assert said.error is not None
    assert said.error.field is not None
    assert "tenent" in said.error.field
    assert stack.command("job", "lab/misspelt").code == Exit.NOT_FOUND


def test_a_job_that_does_not_fit_says_why_and_gets_what_is_given_back(stack: Up) -> None:
    stack.command(
        "submit", stack.job("first", workers=[{"count": 4, "gpus": 3}]), "--wait", "placed", "--timeout", "20"
    )
    big = stack.job("big", workers=[{"count": 2, "gpus": 2}])
    dry = stack.command("submit", big, "--dry-run", "--json")
    assert dry.code == Exit.ANSWER_IS_NO
    assert dry.document["reasons"][0]["code"] == "InsufficientGpus"
    assert dry.document["reasons"][0]["numbers"]
    assert stack.command("job", "lab/big").code == Exit.NOT_FOUND, "a dry run submits nothing"
    stack.command("submit", big)

    def why() -> dict[str, Any]:
        answer: dict[str, Any] = stack.command("why", "lab/big", "--json").document
        return answer

    eventually(lambda: bool(why()["reasons"]))
    assert why()["position"] == 1
    text = stack.command("why", "lab/big").out
    assert [line.split()[0] for line in text.splitlines() if line[:1].strip()] == [
        "lab/big",
        "wants",
        "blocked",
        "next",
    ]
    assert "InsufficientGpus" in stack.command("jobs", "--reason", "InsufficientGpus").out
    stack.command("cancel", "lab/first")
    until(stack, "big", "prepared")
    stack.command("cancel", "lab/big")
    until(stack, "big", "released")


def test_what_can_never_fit_is_rejected_at_once(stack: Up) -> None:
    file = stack.job("never", workers=[{"count": 1, "gpus": 64}])
    said = stack.command("submit", file, "--wait", "prepared", "--timeout", "20")
    assert said.code == Exit.ANSWER_IS_NO
    assert said.error is not None
    assert "ExceedsClusterCapacity" in str(said.error)
    assert stack.command("submit", file, "--dry-run", "--json").document["never"] is True


def test_waiting_longer_than_one_wants_to_has_a_code_of_its_own(stack: Up) -> None:
    stack.command("submit", stack.job("full", workers=[{"count": 4, "gpus": 4}]), "--wait", "placed", "--timeout", "20")
    said = stack.command("submit", stack.job("later"), "--wait", "prepared", "--timeout", "1")
    assert said.code == Exit.TIMED_OUT
    assert said.error is not None
    assert said.error.remedy == "`railweave why lab/later`"
    for job in ("full", "later"):
        stack.command("cancel", f"lab/{job}")
        until(stack, job, "released")


def test_a_drained_node_gets_nothing_until_it_is_resumed(stack: Up) -> None:
    for name in ("node-2", "node-3", "node-4"):
        assert stack.command("node", "drain", name, "--reason", "memory test").code == 0
    shown = stack.command("node", "node-2", "--json").document
    assert (shown["mode"], shown["mode_reason"]) == ("draining", "memory test")
    two = stack.job("two-nodes", workers=[{"count": 2, "gpus": 1}])
    assert stack.command("submit", two, "--dry-run").code == Exit.ANSWER_IS_NO
    one = stack.command("submit", stack.job("one-node"), "--wait", "placed", "--timeout", "20", "--json")
    assert one.document["event"]["nodes"] == ["node-1"]
    for name in ("node-2", "node-3", "node-4"):
        assert stack.command("node", "resume", name, "--json").document["generation"] == 2
    assert stack.command("submit", two, "--dry-run").code == 0
    stack.command("cancel", "lab/one-node")
    assert stack.command("node", "drain", "node-99").code == Exit.NOT_FOUND


def test_forget_asks_before_it_gives_a_node_up(stack: Up) -> None:
    assert stack.command("node", "forget", "node-1", text="n\n").code == Exit.FAILED
    assert stack.command("node", "node-1", "--json").document["mode"] == "schedulable"


def test_a_malformed_event_is_a_dead_letter_that_can_be_replayed(stack: Up) -> None:
    async def say_nonsense() -> None:
        client = await nats.connect(stack.context.nats)
        body = b'{"specversion":"1.0","type":"railweave.job.submitted.v1","data":{"cluster":"lab"}}'
        await client.jetstream().publish("rw.job.submitted.lab.broken", body)
        await client.close()

    asyncio.run(say_nonsense())

    def letters() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stack.command("deadletters", "--json").document["deadletters"]
        return [letter for letter in found if letter["original_subject"] == "rw.job.submitted.lab.broken"]

    eventually(lambda: len(letters()) == 1)
    letter = letters()[0]
    assert letter["field"]
    number = str(letter["sequence"])
    assert '"cluster":"lab"' in stack.command("deadletters", "show", number).out
    assert stack.command("deadletters", "replay", number, "--json").document["replayed"][0]["duplicate"] is False
    assert stack.command("deadletters", "replay", number, "--json").document["replayed"][0]["duplicate"] is True
    eventually(lambda: len(letters()) == 2)
    assert stack.command("deadletters", "replay", "999999").code == Exit.NOT_FOUND


def test_the_streams_are_read_without_any_service(stack: Up) -> None:
    assert len(stack.command("fabric", "--json").document["leaves"]) == 2
    assert len(stack.command("gpus", "--json").document["nodes"]) == 4
    assert stack.command("datasets", "--json").document == {"datasets": []}
    assert stack.command("tenants").code == 0


def test_the_doctor_finds_nothing_wrong(stack: Up) -> None:
    said = stack.command("doctor", "--json")
    verdicts = {finding["what"]: finding["verdict"] for finding in said.document["findings"]}
    assert said.code == 0, verdicts
    assert verdicts["nats"] == verdicts["streams"] == verdicts["redis"] == verdicts["clock"] == "ok"
    assert all(verdicts[f"service {name}"] == "ok" for name in ("jobs", "topology", "nic", "gpu", "cache"))


def test_a_published_event_of_a_platform_is_stored(stack: Up) -> None:
    event = {
        "specversion": "1.0", "type": "railweave.tenant.v1", "source": "/platform", "id": "tenant/nlp/1",
        "time": "2026-12-01T10:00:00Z",
        "data": {"tenant": "nlp", "generation": 1, "quota": {"gpus": {"guaranteed": 2, "limit": 3}}},
    }  # fmt: skip
    assert stack.command("publish", "-", text=json.dumps(event)).code == 0
    tenants = {row["tenant"]: row for row in stack.command("tenants", "--json").document["tenants"]}
    assert tenants["nlp"]["gpus_limit"] == 3

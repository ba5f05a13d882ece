"""The id rule, by worked examples: anyone can compute an id by hand from what the event says."""

from __future__ import annotations

import pytest

from railweave.contracts import encode_event
from railweave.contracts.catalogue.entries import EVENTS, EventEntry
from railweave.contracts.catalogue.examples import Example, examples_of

WORKED = [
    ("railweave.job.submitted.v1", "minimal", "job.submitted/lab/1234/1"),
    ("railweave.job.submitted.v1", "rich", "job.submitted/slurm-a/88121/2/s9K2D7Q1"),
    ("railweave.job.submitted.v1", "names that need the codec", 'job.submitted/lab/Sch%C3%BCler%20"70B"%20100%25/1'),
    ("railweave.job.updated.v1", "rich", "job.updated/slurm-a/88121/2/s9K2D7Q1/2"),
    ("railweave.job.ended.v1", "minimal", "job.ended/lab/1234/1"),
    ("railweave.job.prepared.v1", "rich", "job.prepared/slurm-a/88121/2/s9K2D7Q1/3"),
    ("railweave.snapshot.v1", "rich", "snapshot/slurm-a/12"),
    ("railweave.environment.v1", "rich", "environment/k8s-b/nb-user1-1/5"),
    ("railweave.tenant.v1", "rich", "tenant/nlp/12"),
    ("railweave.placement.v1", "minimal", "placement/lab/1234/1/gpu-001/1/desired"),
    ("railweave.placement.v1", "rich", "placement/slurm-a/88121/2/s9K2D7Q1/gpu-001/3/started"),
    ("railweave.placement.v1", "released", "placement/slurm-a/88121/2/s9K2D7Q1/node1.rack2/3/released"),
    ("railweave.proposal.nic.v1", "rich", "proposal.nic/slurm-a/88121/2/s9K2D7Q1/3"),
    ("railweave.epoch.v1", "rich", "epoch/4"),
]


def example(type_name: str, name: str) -> Example:
    return next(found for found in examples_of(type_name) if found.name == name)


@pytest.mark.parametrize(("type_name", "name", "event_id"), WORKED)
def test_worked_examples(type_name: str, name: str, event_id: str) -> None:
    found = example(type_name, name)
    assert found.event.event_id() == event_id
    assert found.message.msg_id == event_id
    assert found.message.headers["ce-id"] == event_id


@pytest.mark.parametrize("entry", EVENTS, ids=lambda entry: entry.name)
def test_documented_subject_and_id_are_those_the_event_makes(entry: EventEntry) -> None:
    for found in examples_of(entry.name):
        names = entry.names_in(found.message.subject)
        assert set(names) == set(entry.parameters)
        written = entry.id.replace("[/{uid}]", f"/{found.event.uid}" if getattr(found.event, "uid", None) else "")
        parts, ids = written.split("/"), found.event.event_id().split("/")
        assert len(parts) == len(ids)
        for part, value in zip(parts, ids, strict=True):
            if part.startswith("{") and part[1:-1] in names and "%" not in value:
                assert value == names[part[1:-1]]
            elif not part.startswith("{"):
                assert value == part


def test_the_same_event_said_twice_has_the_same_id_and_another_run_another() -> None:
    event = example("railweave.job.submitted.v1", "rich").event
    assert encode_event(event).msg_id == encode_event(event).msg_id
    for change in ({"attempt": 3}, {"uid": "other"}, {"uid": None}, {"job": "88122"}, {"cluster": "slurm-b"}):
        assert event.model_copy(update=change).event_id() != event.event_id()


def test_every_type_has_an_id_of_its_own_kind() -> None:
    kinds = [example(entry.name, "rich").event.event_id().split("/")[0] for entry in EVENTS]
    assert len(set(kinds)) == len(kinds)

"""Reading stored placements: whole where one is desired, only who and how far where it is over.

A release says which run it releases; what that run was given is in the journal. So half of all placements need not be
understood in full, and one whose details are malformed can still be released.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError

from railweave.contracts import ContractError, StoredMessage, decode_as
from railweave.contracts.codec import encode_token
from railweave.contracts.identity import RunDocument
from railweave.contracts.placement import Fence, Placement, PlacementState
from railweave.contracts.types import Document, NodeName, Round
from railweave.node_agent.model import EntryKey, Record


class _Mark(RunDocument):
    node: NodeName
    state: PlacementState
    epoch: Annotated[int, Field(ge=1)]
    round: Round

    def subject(self) -> str:
        tokens = (encode_token(self.node), encode_token(self.cluster), encode_token(self.job))
        return f"rw.placement.{'.'.join(tokens)}.{int(self.attempt)}"


class _Frame(Document):
    type: str
    data: _Mark


def read_placement(message: StoredMessage) -> Record:
    """What a stored placement says.

    Raises:
        ContractError: names the field; the message changes nothing.
    """
    trace = message.headers.get("traceparent")
    try:
        frame = _Frame.model_validate_json(message.body)
    except ValidationError:
        mark = None  # the full reading says what is wrong with it, and where
    else:
        mark = frame.data if frame.type == Placement.TYPE else None
    if mark is None or mark.state is PlacementState.DESIRED:
        placement = decode_as(Placement, message).data
        return Record.of(placement, Fence(placement.epoch, message.sequence), trace)
    if mark.subject() != message.subject:
        raise ContractError("subject", f"the body belongs to {mark.subject()!r}, it came on {message.subject!r}")
    key = EntryKey(mark.cluster, mark.job, mark.attempt)
    fence = Fence(mark.epoch, message.sequence)
    return Record(key, mark.uid, int(mark.round), mark.state, fence, traceparent=trace)

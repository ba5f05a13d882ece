"""What everyone speaks: events, subjects, schemas, and the client that schedulers import.

Importing the package registers every event type, so that `decode_event` reads any of them.
"""

from railweave.contracts import dead, desired, fabric, inventory, job, placement, proposal
from railweave.contracts.envelope import Envelope, Event, decode_as, decode_event, encode_event, registered_types
from railweave.contracts.errors import ContractError
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.wire import StoredMessage, WireMessage

__all__ = [
    "ContractError",
    "Envelope",
    "Event",
    "JobKey",
    "JobRun",
    "StoredMessage",
    "WireMessage",
    "dead",
    "decode_as",
    "decode_event",
    "desired",
    "encode_event",
    "fabric",
    "inventory",
    "job",
    "placement",
    "proposal",
    "registered_types",
]

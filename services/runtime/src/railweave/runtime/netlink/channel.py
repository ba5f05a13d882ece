"""One rtnetlink socket inside one namespace. Blocking, one user at a time.

The socket and the reading of what comes are pyroute2's (`IPRSocket`, the one of its sockets that belongs to no event
loop and no thread); the order of question and answer is ours (docs/decisions/004). Several requests go in one send: the
kernel works them off in order inside the call and acknowledges each, so eight devices cost two system calls instead of
a hundred. The kernel does its work within `send`: an asynchronous socket would block the loop all the same; callers
keep this off the loop with a thread.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence

from pyroute2.netlink import NLM_F_DUMP_INTR, NLMSG_DONE, nlmsg
from pyroute2.netlink.rtnl.iprsocket import IPRSocket

from railweave.runtime.netlink.encode import Request, describe
from railweave.runtime.netlink.errors import DumpInterrupted, KernelError, KernelSilent, kernel_error
from railweave.runtime.netlink.netns import cookie_of

__all__ = ["Channel"]

_RECEIVE_BYTES = 262_144
_BATCH_BYTES = 24_576
_BATCH_REQUESTS = 128
_ANSWER_SECONDS = 10
_DUMP_ATTEMPTS = 8


class Channel:
    """A socket made in the namespace of the thread that constructs it; it stays there wherever it is used.

    Raises:
        KernelError: no socket could be made.
    """

    def __init__(self) -> None:
        self._socket = IPRSocket(ext_ack=True)
        try:
            # pyroute2 makes the socket when it is first used: here, by the thread that is inside the namespace.
            timeout = struct.pack("@ll", _ANSWER_SECONDS, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            self.netns_cookie = cookie_of(self._socket.socket)
            """Which namespace it is in, as long as the machine runs; 0 where the kernel does not say."""
        except OSError as error:
            self._socket.close()
            raise kernel_error(error.errno or 0, "open a netlink socket") from error
        except KernelError:
            self._socket.close()
            raise

    def close(self) -> None:
        """Closes the socket, and with it this hold on the namespace."""
        self._socket.close()

    def execute(self, requests: Sequence[Request]) -> list[KernelError | None]:
        """Carries out requests in order; for each None or why not. One that fails does not stop the next."""
        return [answer if isinstance(answer, KernelError) else None for answer in self.ask(requests)]

    def ask(self, requests: Sequence[Request]) -> list[nlmsg | KernelError]:
        """Sends requests that have one answer each (to an action: its acknowledgement); gives the answers or refusals,
        in order."""
        answers: list[nlmsg | KernelError] = []
        for batch in _batches(requests):
            waiting = {request.sequence: request for request in batch}
            found: dict[int, nlmsg | KernelError] = {}
            self._send(batch)
            while waiting:
                for reply in self._receive():
                    request = waiting.pop(reply["header"]["sequence_number"], None)
                    if request is not None:
                        found[request.sequence] = _refusal(reply, request) or reply
            answers += [found[request.sequence] for request in batch]
        return answers

    def dump(self, request: Request) -> list[nlmsg]:
        """All answers to a dump, taken again when the tables changed underneath.

        Raises:
            DumpInterrupted: they changed under every attempt.
            KernelError: the kernel refused it.
        """
        for attempt in range(_DUMP_ATTEMPTS):
            if attempt:
                time.sleep(0.002 * 2**attempt)
            collected = self._dump_once(request)
            if collected is not None:
                return collected
        raise DumpInterrupted("dump", detail=f"the tables changed during all of {_DUMP_ATTEMPTS} dumps")

    def _dump_once(self, request: Request) -> list[nlmsg] | None:
        self._send([request])
        collected: list[nlmsg] = []
        interrupted = False
        while True:
            for reply in self._receive():
                header = reply["header"]
                if header["sequence_number"] != request.sequence:
                    continue
                interrupted = interrupted or bool(header["flags"] & NLM_F_DUMP_INTR)
                refusal = _refusal(reply, request)
                if refusal is not None:
                    raise refusal
                if header["type"] == NLMSG_DONE:
                    return None if interrupted else collected
                collected.append(reply)

    def _send(self, batch: Sequence[Request]) -> None:
        try:
            self._socket.send(b"".join(request.data for request in batch))
        except OSError as error:
            raise kernel_error(error.errno or 0, "send to the kernel") from error

    def _receive(self) -> list[nlmsg]:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelSilent("wait for the kernel's answer", error.errno or 0) from error
        return list(self._socket.marshal.parse(data))


def _batches(requests: Sequence[Request]) -> Iterator[list[Request]]:
    batch: list[Request] = []
    size = 0
    for request in requests:
        if batch and (size + len(request.data) > _BATCH_BYTES or len(batch) >= _BATCH_REQUESTS):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += len(request.data)
    if batch:
        yield batch


def _refusal(reply: nlmsg, request: Request) -> KernelError | None:
    if reply["header"]["error"] is None:
        return None
    action = describe(request.about) if request.about is not None else "query"
    return kernel_error(abs(reply["error"]), action, reply.get_attr("NLMSGERR_ATTR_MSG") or "")

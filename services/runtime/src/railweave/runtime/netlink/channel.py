"""One rtnetlink socket inside one namespace. Blocking, one user at a time.

Several requests go in one send: the kernel works them off in order inside the call and acknowledges each, so eight
devices cost two system calls instead of a hundred. The kernel does its work within `send`: an asynchronous socket would
block the loop all the same, which is why there is none; callers keep this off the loop with a thread.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from railweave.runtime.netlink import codec
from railweave.runtime.netlink.encode import Request, describe
from railweave.runtime.netlink.errors import DumpInterrupted, KernelError, KernelSilent, kernel_error

__all__ = ["Channel"]

_NETLINK_ROUTE = 0
_SOL_NETLINK = 270
_NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 10, 11
_SO_RCVBUFFORCE = 33
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
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        except OSError as error:
            raise kernel_error(error.errno or 0, "open a netlink socket") from error
        try:
            for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            timeout = struct.pack("@ll", _ANSWER_SECONDS, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 4 * _RECEIVE_BYTES)
            except OSError:  # not root in the first namespace: what is allowed must do
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _RECEIVE_BYTES)
            self._socket.bind((0, 0))
        except BaseException:
            self._socket.close()
            raise
        self._sequence = 0

    def close(self) -> None:
        """Closes the socket, and with it this hold on the namespace."""
        self._socket.close()

    def execute(self, requests: Sequence[Request]) -> list[KernelError | None]:
        """Carries out requests in order; for each None or why not. One that fails does not stop the next."""
        results: list[KernelError | None] = []
        batch: list[Request] = []
        size = 0
        for request in requests:
            if batch and (size + len(request.payload) > _BATCH_BYTES or len(batch) >= _BATCH_REQUESTS):
                results += self._execute_batch(batch)
                batch, size = [], 0
            batch.append(request)
            size += len(request.payload) + 20
        if batch:
            results += self._execute_batch(batch)
        return results

    def _execute_batch(self, batch: Sequence[Request]) -> list[KernelError | None]:
        first = self._send(batch)
        answers: dict[int, KernelError | None] = {}
        while len(answers) < len(batch):
            for reply in self._receive():
                place = reply.sequence - first
                if 0 <= place < len(batch) and reply.type == codec.NLMSG_ERROR:
                    answers[place] = _outcome(reply, batch[place])
        return [answers[place] for place in range(len(batch))]

    def ask(self, requests: Sequence[Request]) -> list[codec.Message | KernelError]:
        """Sends questions that have one answer each; gives the answers or refusals, in order."""
        if not requests:
            return []
        answers: list[codec.Message | KernelError] = []
        for start in range(0, len(requests), _BATCH_REQUESTS):
            batch = requests[start : start + _BATCH_REQUESTS]
            first = self._send(batch)
            found: dict[int, codec.Message | KernelError] = {}
            while len(found) < len(batch):
                for reply in self._receive():
                    place = reply.sequence - first
                    if not 0 <= place < len(batch):
                        continue
                    if reply.type != codec.NLMSG_ERROR:
                        found[place] = reply
                        continue
                    refusal = _outcome(reply, batch[place])
                    if refusal is not None:
                        found[place] = refusal
            answers += [found[place] for place in range(len(batch))]
        return answers

    def dump(self, request: Request) -> list[codec.Message]:
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

    def _dump_once(self, request: Request) -> list[codec.Message] | None:
        sequence = self._send([request])
        collected: list[codec.Message] = []
        interrupted = False
        while True:
            for reply in self._receive():
                if reply.sequence != sequence:
                    continue
                interrupted = interrupted or bool(reply.flags & codec.NLM_F_DUMP_INTR)
                if reply.type == codec.NLMSG_DONE:
                    return None if interrupted else collected
                if reply.type == codec.NLMSG_ERROR:
                    errno, words = codec.error_of(reply)
                    raise kernel_error(errno, "dump", words)
                collected.append(reply)

    def _send(self, batch: Sequence[Request]) -> int:
        first = self._sequence + 1
        self._sequence += len(batch)
        parts = [
            codec.message(request.type, request.flags, first + place, request.payload)
            for place, request in enumerate(batch)
        ]
        try:
            self._socket.send(b"".join(parts))
        except OSError as error:
            raise kernel_error(error.errno or 0, "send to the kernel") from error
        return first

    def _receive(self) -> list[codec.Message]:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelSilent("wait for the kernel's answer", error.errno or 0) from error
        return list(codec.messages(data))


def _outcome(reply: codec.Message, request: Request) -> KernelError | None:
    errno, words = codec.error_of(reply)
    if errno == 0:
        return None
    return kernel_error(errno, describe(request.about) if request.about is not None else "query", words)

"""Address space handed out in aligned blocks, the lowest that fits first.

A buddy system: every free block is a network, split in halves on the way to the size wanted.
"""

from __future__ import annotations

import heapq
import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressSpace:
    """Free blocks of some pools of one IP version."""

    def __init__(self, pools: Iterable[Network]) -> None:
        self._sets: dict[int, set[int]] = {}
        self._heaps: dict[int, list[int]] = {}
        self._bits = 32
        self._network: type[ipaddress.IPv4Network | ipaddress.IPv6Network] = ipaddress.IPv4Network
        for pool in pools:
            self._bits = pool.max_prefixlen
            self._network = type(pool)
            self._add(pool.prefixlen, int(pool.network_address))

    @property
    def free_addresses(self) -> int:
        """How many addresses are left."""
        return sum(len(blocks) << (self._bits - prefix) for prefix, blocks in self._sets.items())

    def free_blocks(self, prefix: int) -> int:
        """How many networks of a prefix length could be handed out."""
        return sum(len(blocks) << (prefix - size) for size, blocks in self._sets.items() if size <= prefix)

    def has(self, network: Network) -> bool:
        """Whether all of a network is free."""
        return self._container(network) is not None

    def carve(self, network: Network) -> bool:
        """Take a network out as far as it is there; whether all of it was."""
        around = self._container(network)
        if around is None:
            self._remove_inside(network)
            return False
        self._sets[around].discard(self._base(int(network.network_address), around))
        self._split(around, network.prefixlen, int(network.network_address))
        return True

    def give_back(self, network: Network) -> None:
        """Free a network that was carved out whole; halves that are both free become one block again."""
        size, base = network.prefixlen, int(network.network_address)
        while size > 0 and (buddy := base ^ (1 << (self._bits - size))) in self._sets.get(size, ()):
            self._sets[size].discard(buddy)
            base = min(base, buddy)
            size -= 1
        self._add(size, base)

    def take(self, prefix: int) -> Network | None:
        """Hand out a network of a prefix length, or None: there is no room."""
        for size in range(prefix, -1, -1):
            heap, blocks = self._heaps.get(size), self._sets.get(size)
            while heap and blocks is not None and heap[0] not in blocks:
                heapq.heappop(heap)
            if heap and blocks:
                base = heapq.heappop(heap)
                blocks.discard(base)
                self._split(size, prefix, base)
                return self._network((base, prefix))
        return None

    def _container(self, network: Network) -> int | None:
        for size in range(network.prefixlen, -1, -1):
            blocks = self._sets.get(size)
            if blocks and self._base(int(network.network_address), size) in blocks:
                return size
        return None

    def _split(self, size: int, prefix: int, base: int) -> None:
        """Free what is left of a block when the part of `prefix` at `base` is taken from it."""
        for length in range(prefix, size, -1):
            self._add(length, self._base(base, length) ^ (1 << (self._bits - length)))

    def _remove_inside(self, network: Network) -> None:
        low, high = int(network.network_address), int(network.broadcast_address)
        for size, blocks in self._sets.items():
            if size > network.prefixlen:
                blocks.difference_update([base for base in blocks if low <= base <= high])

    def _add(self, size: int, base: int) -> None:
        blocks = self._sets.setdefault(size, set())
        if base not in blocks:
            blocks.add(base)
            heapq.heappush(self._heaps.setdefault(size, []), base)

    def _base(self, address: int, size: int) -> int:
        shift = self._bits - size
        return address >> shift << shift


class Overlaps:
    """Finds whether a network overlaps one of many, by its prefixes."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._known: dict[tuple[int, int, int], Network] = {}
        self._inside: dict[tuple[int, int, int], Network] = {}
        for network in networks:
            self.add(network)

    def add(self, network: Network) -> None:
        base, bits = int(network.network_address), network.max_prefixlen
        self._known[network.version, network.prefixlen, base] = network
        for length in range(network.prefixlen + 1):
            self._inside.setdefault((network.version, length, base >> (bits - length) << (bits - length)), network)

    def find(self, network: Network) -> Network | None:
        base, bits = int(network.network_address), network.max_prefixlen
        inside = self._inside.get((network.version, network.prefixlen, base))
        if inside is not None:
            return inside
        for length in range(network.prefixlen):
            around = self._known.get((network.version, length, base >> (bits - length) << (bits - length)))
            if around is not None:
                return around
        return None

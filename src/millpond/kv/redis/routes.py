"""The map from slots to the nodes of a cluster, and the choice of a server for each command.

Place on the data path: what `dispatch` remembers between operations, without any IO.

Idea: a node that is asked for a slot it does not have names the node that has it. A few such answers change one slot
each. After `_MOVES_UNTIL_STALE` of them, and after every failure, the whole map is read again.
"""

from collections.abc import Sequence
from typing import Any

from millpond.kv.redis.layout import SLOTS
from millpond.kv.redis.operations import Command
from millpond.kv.redis.options import Address, RedisOptions
from millpond.kv.redis.outages import Outages

_MOVES_UNTIL_STALE = 16
_ASK_FOR_REPLICAS_MS = 10_000


class Routes:
    """The nodes of each slot; shared by all threads of a store."""

    def __init__(self, options: RedisOptions) -> None:
        self._seeds = options.nodes
        self._replicas = options.replicas if options.read_from == "replicas" else ()
        self._from_replicas = options.read_from == "replicas"
        self._primary_of: list[Address | None] = [None] * SLOTS
        self._replicas_of: list[tuple[Address, ...]] = [()] * SLOTS
        self.is_cluster = options.is_cluster
        self.is_stale = options.is_cluster
        self._moved_to: list[Address] = []
        self.outages = Outages()
        self._lacks_replicas = False
        self._learned_ms = 0
        self._turn = 0

    def of(self, command: Command, *, primary: bool) -> Address | None:
        """Return the server for a command; None if no node is known to have its slot."""
        replicas = self._replicas
        if self.is_cluster:
            if self._from_replicas:
                replicas = self._replicas_of[command.slot]
            if primary or not command.is_read or not replicas:
                return self._primary_of[command.slot]
        elif primary or not command.is_read or not replicas:
            return self._seeds[0]
        self._turn += 1
        return replicas[self._turn % len(replicas)]

    def moved(self, slot: int, address: Address) -> None:
        """Record the node that has a slot, as another node said. After some of these the map is stale."""
        self._primary_of[slot] = address
        self._moved_to.append(address)
        self.is_stale = self.is_stale or len(self._moved_to) >= _MOVES_UNTIL_STALE

    def known(self) -> list[Address]:
        """Return every server that may know the map: servers that are down last, else the latest named first."""
        primaries = [one for one in self._primary_of if one is not None]
        found = dict.fromkeys([*reversed(self._moved_to), *primaries, *self._seeds])
        return sorted(found, key=self.outages.__contains__)

    def is_due(self, now_ms: int) -> bool:
        """Return whether to read the map again: it is stale, or replicas are missing, which may have joined since."""
        return self.is_stale or (self._lacks_replicas and now_ms >= self._learned_ms + _ASK_FOR_REPLICAS_MS)

    def learn(self, asked: Address, ranges: Sequence[Any], now_ms: int) -> None:
        """Replace the map by the answer to CLUSTER SLOTS."""
        primary_of: list[Address | None] = [None] * SLOTS
        replicas_of: list[tuple[Address, ...]] = [()] * SLOTS
        for first, last, *nodes in ranges:
            addresses = [Address(node[0].decode() if node[0] else asked.host, node[1]) for node in nodes]
            width = last - first + 1
            primary_of[first : last + 1] = addresses[:1] * width
            replicas_of[first : last + 1] = [tuple(addresses[1:])] * width
        self._primary_of, self._replicas_of, self._moved_to = primary_of, replicas_of, []
        self._lacks_replicas = self._from_replicas and not all(replicas_of)
        self._learned_ms = now_ms
        self.is_stale = False

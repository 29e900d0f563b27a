"""Where the slots of a cluster are, and which server a command goes to.

Place on the data path: what `redis_dispatch` remembers between operations, without any IO.

Idea: a node that was asked for a slot it does not have says who has it. A few such answers are followed one
by one; after more of them, and after every failure, the whole map is asked for again.
"""

from collections.abc import Sequence
from typing import Any

from millpond.kv.redis_layout import SLOTS
from millpond.kv.redis_operations import Command
from millpond.kv.redis_options import Address, RedisOptions
from millpond.kv.redis_outages import Outages

_MOVES_UNTIL_STALE = 16
_ASK_FOR_REPLICAS_MS = 10_000


class Routes:
    """Where the slots are; one for all threads of a store."""

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
        """The server for a command; None if no node is known to have its slot."""
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
        """Note what a node said of one slot; after some of these all slots are asked for again."""
        self._primary_of[slot] = address
        self._moved_to.append(address)
        self.is_stale = self.is_stale or len(self._moved_to) >= _MOVES_UNTIL_STALE

    def known(self) -> list[Address]:
        """Every server that may know where the slots are, those first that others pointed to last."""
        primaries = [one for one in self._primary_of if one is not None]
        found = dict.fromkeys([*reversed(self._moved_to), *primaries, *self._seeds])
        return sorted(found, key=self.outages.__contains__)

    def is_due(self, now_ms: int) -> bool:
        """Whether to ask where the slots are: a replica that joins later is heard of only by asking."""
        return self.is_stale or (self._lacks_replicas and now_ms >= self._learned_ms + _ASK_FOR_REPLICAS_MS)

    def learn(self, asked: Address, ranges: Sequence[Any], now_ms: int) -> None:
        """Take the answer to CLUSTER SLOTS."""
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

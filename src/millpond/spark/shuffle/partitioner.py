"""Routing keys of shards: numbers that Spark's hash partitioner sends to a chosen partition.

Spark sends a row to partition `hash(key) % partitions`, where `hash` is Murmur3 with seed 42. Rows here are
keyed by shard. With the keys 0, 1, 2, … some partitions would get two shards and some none. So each
shard has a routing key: the smallest number that Spark maps to that shard's own partition.
"""

from functools import lru_cache

from millpond.errors import OptionError

_MASK = 0xFFFFFFFF


def partition_of(routing_key: int, partitions: int) -> int:
    """Return the partition to which Spark's hash partitioner sends a 32-bit integer key.

    >>> partition_of(0, 200), partition_of(1, 200)
    (191, 43)
    """
    mixed = _rotate(routing_key * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = (_rotate(42 ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return (state - (1 << 32) if state >> 31 else state) % partitions


@lru_cache(maxsize=8)
def routing_keys(shards: int) -> tuple[int, ...]:
    """Return one routing key for each shard, in the order of the shards.

    >>> [partition_of(routing_key, 4) for routing_key in routing_keys(4)]
    [0, 1, 2, 3]
    """
    if shards < 1:
        raise OptionError(f"shards is {shards}; an operator has at least 1 shard.")
    found: dict[int, int] = {}
    routing_key = 0
    while len(found) < shards:
        found.setdefault(partition_of(routing_key, shards), routing_key)
        routing_key += 1
    return tuple(found[shard] for shard in range(shards))


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK

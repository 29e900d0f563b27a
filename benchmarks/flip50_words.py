"""The words of FLIP-50's benchmark: what its state is made of, and the records."""

import random

from millpond.state.types.ordered_keys import KEY_PREFIX, encode_key
from millpond.state.types.rows import Row

SERIALIZED_BYTES = 566_000_000
PARALLELISM = 128
CELL_BYTES = KEY_PREFIX.size + len(encode_key(("0123456789abcdef",))) + 2
"""Of a word and its count in RocksDB, before compression."""
FIRST_COUNT = 200
"""Of each word: two bytes."""
ALL_IN_CACHE_BYTES = 4 << 30
"""RocksDB's block cache where it has room for everything."""
RECORDS = 1_000_000
"""Of a round."""
VERSION = 200_000
CHUNK = 50_000

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def word(number: int) -> str:
    """The word of a number: 16 characters, no two alike, in no order."""
    return f"{number * _MIX & _MASK:016x}"


def words_of(scale: float) -> int:
    """How many words make up the state; every key group has as many."""
    return int(SERIALIZED_BYTES * scale / CELL_BYTES) // PARALLELISM * PARALLELISM


def words_in(key_group: int, words: int) -> list[str]:
    """The words of a key group."""
    return [word(number) for number in range(key_group, words, PARALLELISM)]


def keys_of(key_group: int, words: int) -> list[Row]:
    """The same as keys."""
    return [(each,) for each in words_in(key_group, words)]


def records(words: int, count: int, seed: int) -> list[tuple[int, Row]]:
    """Key group and key of records, drawn evenly. A word's key group is its number's: hashing costs all alike."""
    drawn = random.Random(seed).choices(range(words), k=count)
    return [(number % PARALLELISM, (word(number),)) for number in drawn]


def records_of_round(scale: float, share: float = 1.0) -> int:
    """How many records make a round, or a share of one: whole versions."""
    return max(1, int(RECORDS * min(1.0, scale * 4) * share) // VERSION) * VERSION

"""Dictionaries that are at most about half full, however many keys they have: a lookup waits less for memory.

A dictionary of Python doubles once it is two thirds full. Up to there a lookup looks in up to 1.65
places; each but the last has another key, of which it must read the entry and the text to know: places in memory that
no cache of the processor has where there are millions. At half of it 1.4 places are looked in, at a third 1.2.

So a large dictionary grows earlier here, as it would anyway: keys that nobody has fill it up, and are taken out again.
A row of calls that never leaves C does both, so no other thread sees these.

Source: CPython, Objects/dictobject.c (USABLE_FRACTION, GROWTH_RATE); Knuth, The Art of Computer Programming 3, 6.4.
"""

import secrets
import sys
from collections import deque
from collections.abc import Hashable
from itertools import chain
from typing import Any

_LEAST_KEYS = 30_000
"""Of a dictionary that is worth it."""
_FULLEST = 0.45
"""Of its slots are in use, at most."""
_SLOT_BYTES = 25
"""A dictionary of texts takes 15 bytes for each of its slots, one of other keys 20."""


def make_room(table: dict[Any, Any]) -> bool:
    """Have a large dictionary grow that is getting full; whether it was.

    >>> table = dict.fromkeys(map(str, range(150_000)))
    >>> make_room(table), make_room(table), len(table)
    (True, False, 150000)
    """
    count = len(table)
    if count < _LEAST_KEYS:
        return False
    # The least that may hold so many: two thirds of them may be in use.
    slots = 1 << (count * 3 // 2).bit_length()
    if count < _FULLEST * slots or sys.getsizeof(table) > _SLOT_BYTES * slots:
        return False
    _fill_up(table, slots * 2 // 3 + 1 - count)
    return True


def _fill_up(table: dict[Any, Any], places: int) -> None:
    """Put so many keys in that nobody has, and take them out."""
    fillers: list[Hashable] = [object() for _ in range(places)]
    if isinstance(next(iter(table)), str):
        # A dictionary that only ever had texts is smaller than others, and stays so.
        nobodys = secrets.token_hex(16)
        fillers = [f"{nobodys}{number}" for number in range(places)]
    deque(chain(map(table.setdefault, fillers), map(table.pop, fillers)), maxlen=0)

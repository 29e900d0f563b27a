"""Chooses the key groups to spill and to load: pure functions of each group's size and request rate.

Size and request rate are scaled to 0…1 by the largest of each. A group's *weight* for spilling is the weighted mean of
its size and of how idle it is. For loading it is the mean of how small and how busy it is. So the same two numbers
order both lists, in opposite directions.

Source: FLIP-50, SpillLoadManager.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

RATE_WEIGHT = 0.7
"""Weight of the request rate in the mean; the size has the rest. A busy group on disk costs time at every request. A
large group on the heap costs only room."""


class GroupLoad(NamedTuple):
    """One key group, as the policy sees it.

    Attributes:
        key_group: its number.
        owner: its owner, which the policy only passes through.
        heap_bytes: what it takes on the heap, or would take there.
        rate: its requests, decayed.
    """

    key_group: int
    owner: object
    heap_bytes: int
    rate: float


def chosen_to_spill(groups: Iterable[GroupLoad], wanted_bytes: int) -> list[GroupLoad]:
    """Return large and cold groups among those on the heap, as many as it takes to free the wanted bytes.

    >>> busy, idle = GroupLoad(1, None, 100, 9.0), GroupLoad(2, None, 100, 1.0)
    >>> [group.key_group for group in chosen_to_spill([busy, idle], 50)]
    [2]
    """
    chosen, freed = [], 0
    for group in _ordered([group for group in groups if group.heap_bytes], _spill_weight):
        if freed >= wanted_bytes:
            break
        chosen.append(group)
        freed += group.heap_bytes
    return chosen


def chosen_to_load(groups: Iterable[GroupLoad], room_bytes: int) -> list[GroupLoad]:
    """Return small and hot groups among those on disk, as many as there is room for."""
    chosen, left = [], room_bytes
    for group in _ordered(list(groups), _load_weight):
        if group.heap_bytes <= left:
            chosen.append(group)
            left -= group.heap_bytes
    return chosen


def _spill_weight(size: float, rate: float) -> float:
    return (1 - RATE_WEIGHT) * size + RATE_WEIGHT * (1 - rate)


def _load_weight(size: float, rate: float) -> float:
    return (1 - RATE_WEIGHT) * (1 - size) + RATE_WEIGHT * rate


def _ordered(groups: list[GroupLoad], weight: Callable[[float, float], float]) -> list[GroupLoad]:
    """Return groups by weight, the heaviest first. Equal groups keep their order."""
    largest = max((group.heap_bytes for group in groups), default=0) or 1
    busiest = max((group.rate for group in groups), default=0) or 1
    return sorted(groups, key=lambda group: -weight(group.heap_bytes / largest, group.rate / busiest))

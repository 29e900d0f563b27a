"""Versions of a state on the heap: what each one changed, with the old values, and the version after it.

A version of list and map states keeps *undo maps*: per key group a dictionary of the old values, written at the first
change of a cell, which the handles ask for whether a cell was touched before. A version of value states keeps an *undo
log*, which costs a tenth of that per change: key group, key and old value of every change are appended to one list, and
made undo maps of when somebody asks, by whoever asks.

Invariant: an undo map, once handed out, never loses a cell; one of an open version may grow while it is read, from any
thread, so it is copied and never iterated over. The first entry of a cell in a log is its old value; whatever part of a
log is read twice, or by two threads at once, changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from millpond.state.backend import ABSENT
from millpond.state.rows import Row

Table = dict[Row, Any]

_NOTHING = (-1, None, None)


class Version:
    """What one version changed, and the version after it.

    Attributes:
        maps: undo maps by key group.
        next: the version after it, once it is closed.
    """

    __slots__ = ("maps", "next")

    def __init__(self) -> None:
        self.maps: dict[int, Table] = {}
        self.next: Version | None = None

    @property
    def undo(self) -> dict[int, Table]:
        """The undo maps by key group, with all that has been changed so far."""
        return self.maps

    def changed(self) -> bool:
        """Whether anything was."""
        return any(self.maps.values())

    def keep(self, key_group: int, key: Row, table: Mapping[Row, Any]) -> None:
        """Keep what a table holds of a key, which is about to be changed."""
        undo = self.maps.setdefault(key_group, {})
        if key not in undo:
            undo[key] = table.get(key, ABSENT)

    def changes(self) -> Mapping[int, int]:
        """By key group, how often a cell was changed."""
        return {key_group: len(undo) for key_group, undo in self.maps.items()}

    def sampled(self, every: int) -> Iterator[tuple[int, Row]]:
        """Key group and key of every so manieth change. Only while nobody changes anything."""
        for key_group, undo in self.maps.items():
            yield from zip(repeat(key_group), islice(undo, 0, None, every))


class LoggedVersion(Version):
    """A version with an undo log.

    Attributes:
        log: key group, key and old value of a change, of the next one, and so on. It begins with one of nothing, so
            that there always is a last one. Whoever appends to it appends all three at once.
    """

    __slots__ = ("_read", "log")

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = list(_NOTHING)
        self._read = len(_NOTHING)

    @property
    def undo(self) -> dict[int, Table]:
        """The undo maps by key group, with all that has been changed so far."""
        first = self._read
        unread = self.log[first:]
        if unread:
            for key_group, keys, olds in _by_key_group(unread):
                self._add(key_group, keys, olds)
            # Not before: whoever reads on from here relies on all that was there.
            self._read = first + len(unread)
        return self.maps

    def changed(self) -> bool:
        """Whether anything was."""
        return len(self.log) > len(_NOTHING)

    def keep(self, key_group: int, key: Row, table: Mapping[Row, Any]) -> None:
        """Keep what a table holds of a key, which is about to be changed."""
        self.log += (key_group, key, table.get(key, ABSENT))

    def keep_all(self, key_group: int, keys: Sequence[Row], table: Mapping[Row, Any]) -> None:
        """The same of many keys."""
        changes = zip(repeat(key_group), keys, map(table.get, keys, repeat(ABSENT)))
        # A list first: who reads the log meanwhile must not find a part of a change.
        self.log += list(chain.from_iterable(changes))

    def changes(self) -> Mapping[int, int]:
        """By key group, how often a cell was changed."""
        return Counter(self.log[len(_NOTHING) :: 3])

    def sampled(self, every: int) -> Iterator[tuple[int, Row]]:
        """Key group and key of every so manieth change."""
        first = len(_NOTHING)
        return zip(self.log[first :: 3 * every], self.log[first + 1 :: 3 * every], strict=True)

    def _add(self, key_group: int, keys: Sequence[Row], olds: Sequence[Any]) -> None:
        found = dict(zip(keys, olds, strict=True))
        if len(found) < len(keys):
            # The first one counts: written last.
            found.update(zip(reversed(keys), reversed(olds), strict=True))
        known = self.maps.setdefault(key_group, found)
        if known is not found:
            for key, old in found.items():
                known.setdefault(key, old)


def _by_key_group(log: Sequence[Any]) -> Iterable[tuple[int, Sequence[Row], Sequence[Any]]]:
    """The keys and old values of a piece of a log, by key group, in the order in which they were changed."""
    key_groups, keys, olds = np.array(log[0::3]), log[1::3], log[2::3]
    if np.any(key_groups[1:] < key_groups[:-1]):
        order = np.argsort(key_groups, kind="stable")
        key_groups = key_groups[order]
        keys, olds = ([column[at] for at in order.tolist()] for column in (keys, olds))
    starts = np.flatnonzero(key_groups[1:] != key_groups[:-1]) + 1
    for first, end in zip([0, *starts.tolist()], [*starts.tolist(), len(keys)], strict=True):
        yield int(key_groups[first]), keys[first:end], olds[first:end]


def undo_after(version: Version, key_group: int) -> list[Table]:
    """The undo maps of every later version, oldest first, as copies: the newest one still grows."""
    found = []
    later = version.next
    while later is not None:
        # Asked first: where a version closes after its map was read, the one behind it begins with what the map lacks.
        after = later.next
        undo = later.undo.get(key_group)
        if undo:
            found.append(undo.copy())
        later = after
    return found

"""Versions of a state on the heap: what each one changed, with the old values, and the version after it.

A version of list and map states keeps *undo maps*: per key group a dictionary of the old values, written at the first
change of a cell, which the handles ask for whether a cell was touched before. A version of value states keeps an *undo
log*, which costs less per change: key group, key and old value of every change are appended to one list, and
made undo maps of when somebody asks, by whoever asks.

Invariant: an undo map, once handed out, never loses a cell; one of an open version may grow while it is read, from any
thread, so it is copied and never iterated over. The first entry of a cell in a log is its old value; whatever part of a
log is read twice, or by two threads at once, changes nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress, count, islice, pairwise, repeat
from operator import is_
from typing import Any

import numpy as np

from millpond.state.backend.protocols import ABSENT

Table = dict[Any, Any]
"""By key in its given form (`millpond.state.types.key_types`)."""

_MANY: Any = object()
"""Stands for the key where an entry of a log is of many: their keys and old values stand for the old value."""

_NOTHING: Table = {}

_COUNTED = 20_000
"""Changes of a version, or up to twice as many, are enough to tell how they spread over key groups."""


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

    def read_some(self, most: int) -> bool:  # noqa: ARG002 - there is no log
        """Make undo maps of some entries of a log; whether there may be more."""
        return False

    def changed(self) -> bool:
        """Whether anything was."""
        return any(self.maps.values())

    def keep(self, key_group: int, key: Any, table: Mapping[Any, Any]) -> None:
        """Keep what a table holds of a key, which is about to be changed."""
        undo = self.maps.setdefault(key_group, {})
        if key not in undo:
            undo[key] = table.get(key, ABSENT)

    def old_values(self, key_group: int) -> Table:
        """What was replaced in a key group so far, as a copy."""
        return self.undo.get(key_group, _NOTHING).copy()

    def changed_keys(self) -> Mapping[int, Collection[Any]]:
        """By key group, the keys that were changed, each once. Only of a closed version."""
        return self.maps

    def changes(self) -> Mapping[int, int]:
        """By key group, how often a cell was changed."""
        return {key_group: len(undo) for key_group, undo in self.maps.items()}

    def sampled(self, every: int) -> Iterator[tuple[int, Any]]:
        """Key group and key of one change in `every`. Only while nobody changes anything."""
        for key_group, undo in self.maps.items():
            yield from zip(repeat(key_group), islice(undo, 0, None, every))


class LoggedVersion(Version):
    """A version with an undo log.

    Attributes:
        log: key group, key and old value of a change, of the next one, and so on; or of many changes at once. Whoever
            appends to it appends all three at once.
    """

    __slots__ = ("_has_many", "_read", "log")

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []
        self._has_many = False
        self._read = 0

    @property
    def undo(self) -> dict[int, Table]:
        """The undo maps by key group, with all that has been changed so far."""
        self.read_some(len(self.log))
        return self.maps

    def read_some(self, most: int) -> bool:
        """Make undo maps of some entries of the log, of which each may be of many keys; whether there may be more."""
        first = self._read
        unread = self.log[first : first + 3 * most]
        if unread:
            for key_group, keys, olds in self._by_key_group(unread):
                self._add(key_group, keys, olds)
            # Not before: whoever reads on from here relies on all that was there.
            self._read = first + len(unread)
        return len(unread) == 3 * most

    def changed(self) -> bool:
        """Whether anything was."""
        return bool(self.log)

    def keep(self, key_group: int, key: Any, table: Mapping[Any, Any]) -> None:
        """Keep what a table holds of a key, which is about to be changed."""
        self.log += (key_group, key, table.get(key, ABSENT))

    def keep_all(self, key_group: int, keys: Sequence[Any], olds: Sequence[Any]) -> None:
        """Keep what a table holds of many keys, or ABSENT, as one entry."""
        if keys:
            self._has_many = True  # before: whoever reads the entry knows of it
            self.log += (key_group, _MANY, (keys, olds))

    def changed_keys(self) -> Mapping[int, Collection[Any]]:
        """By key group, the keys that were changed, each once. Only of a closed version."""
        found: dict[int, dict[Any, None]] = {}
        for key_group, keys, _ in self._by_key_group(self.log):
            each_once = dict.fromkeys(keys)
            found.setdefault(key_group, each_once).update(each_once)
        return found

    def changes(self) -> Mapping[int, int]:
        """By key group, how often a cell was changed; of very many, some are counted for all."""
        every = 1 if self._has_many else 1 + len(self.log) // 3 // _COUNTED
        times = every * np.bincount(np.array(self.log[0 :: 3 * every], dtype=np.int32))
        for at in self._many_in(self.log[1::3]):
            key_group, _, (keys, _) = self.log[3 * at : 3 * at + 3]
            times[key_group] += len(keys) - 1
        return {key_group: int(times[key_group]) for key_group in np.flatnonzero(times).tolist()}

    def sampled(self, every: int) -> Iterator[tuple[int, Any]]:
        """Key group and key of one change in `every`, or in an entry of many changes."""
        entries = zip(*(self.log[first :: 3 * every] for first in range(3)), strict=True)
        for key_group, key, old in entries:
            if key is _MANY:
                yield from zip(repeat(key_group), islice(old[0], 0, None, every))
            else:
                yield key_group, key

    def _add(self, key_group: int, keys: Sequence[Any], olds: Sequence[Any]) -> None:
        found = dict(zip(keys, olds, strict=True))
        if len(found) < len(keys):
            # The first one counts: written last.
            found.update(zip(reversed(keys), reversed(olds), strict=True))
        known = self.maps.setdefault(key_group, found)
        if known is not found:
            for key, old in found.items():
                known.setdefault(key, old)

    def _by_key_group(self, log: list[Any]) -> Iterator[tuple[int, Sequence[Any], Sequence[Any]]]:
        """The keys and old values of a piece of a log, in the order in which they were changed, some at once."""
        key_groups, keys, olds = log[0::3], log[1::3], log[2::3]
        first = 0
        for many in self._many_in(keys):
            yield from _of_single(key_groups[first:many], keys[first:many], olds[first:many])
            yield key_groups[many], *olds[many]
            first = many + 1
        if first < len(keys):
            yield from _of_single(key_groups[first:], keys[first:], olds[first:])

    def _many_in(self, keys: list[Any]) -> list[int]:
        """Where many stand for one key."""
        return list(compress(count(), map(is_, keys, repeat(_MANY)))) if self._has_many else []


def _of_single(
    key_groups: list[int], keys: Sequence[Any], olds: Sequence[Any]
) -> Iterator[tuple[int, Sequence[Any], Sequence[Any]]]:
    """The same of entries of one key each. Of a key group all are given at once: each time costs some microseconds."""
    of_each = np.array(key_groups, dtype=np.int32)
    if np.any(of_each[1:] < of_each[:-1]):
        order = np.argsort(of_each, kind="stable")
        of_each = of_each[order]
        keys, olds = ([column[at] for at in order.tolist()] for column in (keys, olds))
    starts = np.flatnonzero(of_each[1:] != of_each[:-1]) + 1
    bounds = [0, *starts.tolist(), len(keys)] if keys else []
    for first, end in pairwise(bounds):
        yield int(of_each[first]), keys[first:end], olds[first:end]


class OldList:
    """A list as it was when a version first touched it: a part of one that may have grown in place since.

    Attributes:
        values: the list, which loses and changes no element. It is replaced by another one where that is needed.
        length: of the part that counts.
        replaced: whether the version has put another list in its place, or none; if not, it only added to it.
    """

    __slots__ = ("length", "replaced", "values")

    def __init__(self, values: list[Any], *, replaced: bool) -> None:
        self.values = values
        self.length = len(values)
        self.replaced = replaced


class ListVersion(Version):
    """A version of list states: its undo maps hold `OldList`s, so that lists need not be copied to grow."""

    __slots__ = ()

    def keep(self, key_group: int, key: Any, table: Mapping[Any, Any]) -> None:
        """Keep what a table holds of a key, which is about to be replaced."""
        keep_list(self.maps.setdefault(key_group, {}), key, table.get(key, ABSENT), replaced=True)

    def old_values(self, key_group: int) -> Table:
        """What was in the lists before."""
        return {
            key: old if old is ABSENT else old.values[: old.length]
            for key, old in super().old_values(key_group).items()
        }


def keep_list(undo: Table, key: Any, old: Any, *, replaced: bool) -> None:
    """Keep in an undo map what a key's cell held before it is replaced, or grows in place."""
    known = undo.get(key)
    if known is None:
        undo[key] = ABSENT if old is ABSENT else OldList(old, replaced=replaced)
    elif replaced and known is not ABSENT:
        known.replaced = True


def undo_after(version: Version, key_group: int) -> list[Table]:
    """What every later version replaced, oldest first, as copies: the newest one still grows."""
    return [found for later in later_versions(version) if (found := later.old_values(key_group))]


def later_versions(version: Version) -> Iterator[Version]:
    """The versions after a version, oldest first."""
    later = version.next
    while later is not None:
        # Asked first: where a version closes after its map was read, the one behind it begins with what the map lacks.
        after = later.next
        yield later
        later = after

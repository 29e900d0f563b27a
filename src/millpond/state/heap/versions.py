"""Versions of a state on the heap: what each one changed, with the old values, and a link to the next version.

List and map states keep *undo maps*: for each key group a dictionary of the old values, written at the first change of
a cell. Their handles ask it whether a cell was changed before. Value states keep an *undo log*, which costs less per
change: key group, key and old value of every change are appended to one list. Undo maps are made of it when
somebody reads them, by the reader.

Invariant: an undo map that was handed out never loses a cell. That of an open version may grow while any thread reads
it, so it is copied and never iterated over. The first entry of a cell in a log has its old value. Reading a part of a
log twice, or in two threads at once, changes nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress, count, islice, pairwise, repeat
from operator import is_
from typing import Any

import numpy as np

from millpond.state.backend.protocols import ABSENT

Table = dict[Any, Any]
"""Values by key in its given form (`millpond.state.types.key_types`)."""

_MANY: Any = object()
"""The key of a log entry for many keys. In place of the old value it has their keys and old values."""

_NOTHING: Table = {}

_COUNTED = 20_000
"""Largest sample of a version's changes, at least half of which is taken, to tell how they spread over key groups."""


class Version:
    """What one version changed, and the version after it.

    Attributes:
        maps: undo maps by key group.
        next: the version after it; None while it is open.
    """

    __slots__ = ("maps", "next")

    def __init__(self) -> None:
        self.maps: dict[int, Table] = {}
        self.next: Version | None = None

    @property
    def undo(self) -> dict[int, Table]:
        """The undo maps by key group, with everything that has changed so far."""
        return self.maps

    def read_some(self, most: int) -> bool:  # noqa: ARG002 - there is no log
        """Make undo maps of up to `most` entries of a log. Return whether there may be more."""
        return False

    def changed(self) -> bool:
        """Return whether anything changed."""
        return any(self.maps.values())

    def keep(self, key_group: int, key: Any, table: Mapping[Any, Any]) -> None:
        """Keep the value of a key in a table, before the key is changed."""
        undo = self.maps.setdefault(key_group, {})
        if key not in undo:
            undo[key] = table.get(key, ABSENT)

    def old_values(self, key_group: int) -> Table:
        """Return the values replaced so far in a key group, as a copy."""
        return self.undo.get(key_group, _NOTHING).copy()

    def changed_keys(self) -> Mapping[int, Collection[Any]]:
        """Return the changed keys by key group, each once. Only for a closed version."""
        return self.maps

    def changes(self) -> Mapping[int, int]:
        """Return the number of changes by key group."""
        return {key_group: len(undo) for key_group, undo in self.maps.items()}

    def sampled(self, every: int) -> Iterator[tuple[int, Any]]:
        """Yield key group and key of every `every`-th change. Only while nothing is being changed."""
        for key_group, undo in self.maps.items():
            yield from zip(repeat(key_group), islice(undo, 0, None, every))


class LoggedVersion(Version):
    """A version with an undo log.

    Attributes:
        log: key group, key and old value of a change, then those of the next one, and so on. An entry may stand for
            many changes at once. A writer appends all three items of an entry at once.
    """

    __slots__ = ("_changed", "_has_many", "_read", "log")

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []
        self._changed: dict[int, list[Any]] | None = None
        self._has_many = False
        self._read = 0

    @property
    def undo(self) -> dict[int, Table]:
        """The undo maps by key group, with everything that has changed so far."""
        self.read_some(len(self.log))
        return self.maps

    def read_some(self, most: int) -> bool:
        """Make undo maps of up to `most` entries of the log, of one key or many. Return whether there may be more."""
        first = self._read
        unread = self.log[first : first + 3 * most]
        if unread:
            for key_group, keys, olds in self._by_key_group(unread):
                self._add(key_group, keys, olds)
            # Only now: whoever reads on from here relies on the undo maps of everything before it.
            self._read = first + len(unread)
        return len(unread) == 3 * most

    def changed(self) -> bool:
        """Return whether anything changed."""
        return bool(self.log)

    def keep(self, key_group: int, key: Any, table: Mapping[Any, Any]) -> None:
        """Keep the value of a key in a table, before the key is changed."""
        self.log += (key_group, key, table.get(key, ABSENT))

    def keep_all(self, key_group: int, keys: Sequence[Any], olds: Sequence[Any]) -> None:
        """Keep the values of many keys, or ABSENT, as one entry."""
        if keys:
            self._has_many = True  # before the entry, so that whoever reads the entry knows
            self.log += (key_group, _MANY, (keys, olds))

    def changed_keys(self) -> Mapping[int, Collection[Any]]:
        """Return the changed keys by key group, each once. Only for a closed version."""
        if self._changed is None:
            # A checkpoint asks twice: how many there are, and which.
            found: dict[int, dict[Any, None]] = {}
            for key_group, keys, _ in self._by_key_group(self.log):
                each_once = dict.fromkeys(keys)
                found.setdefault(key_group, each_once).update(each_once)
            self._changed = {key_group: list(keys) for key_group, keys in found.items()}
        return self._changed

    def changes(self) -> Mapping[int, int]:
        """Return the number of changes by key group. If there are very many, it is estimated from a sample."""
        every = 1 if self._has_many else 1 + len(self.log) // 3 // _COUNTED
        times = every * np.bincount(np.array(self.log[0 :: 3 * every], dtype=np.int32))
        for at in self._many_in(self.log[1::3]):
            key_group, _, (keys, _) = self.log[3 * at : 3 * at + 3]
            times[key_group] += len(keys) - 1
        return {key_group: int(times[key_group]) for key_group in np.flatnonzero(times).tolist()}

    def sampled(self, every: int) -> Iterator[tuple[int, Any]]:
        """Yield key group and key of every `every`-th entry; of an entry of many keys, every `every`-th of its keys."""
        entries = zip(*(self.log[first :: 3 * every] for first in range(3)), strict=True)
        for key_group, key, old in entries:
            if key is _MANY:
                yield from zip(repeat(key_group), islice(old[0], 0, None, every))
            else:
                yield key_group, key

    def _add(self, key_group: int, keys: Collection[Any], olds: Collection[Any]) -> None:
        found = dict(zip(keys, olds, strict=True))
        if len(found) < len(keys):
            # The first old value of a key counts, so it is written last.
            found.update(zip(reversed([*keys]), reversed([*olds]), strict=True))
        known = self.maps.setdefault(key_group, found)
        if known is not found:
            for key, old in found.items():
                known.setdefault(key, old)

    def _by_key_group(self, log: list[Any]) -> Iterator[tuple[int, Collection[Any], Collection[Any]]]:
        """Yield keys and old values of a piece of a log by key group, several at once. The first of a key counts."""
        key_groups, keys, olds = log[0::3], log[1::3], log[2::3]
        first = 0
        for many in self._many_in(keys):
            yield from _of_single(key_groups[first:many], keys[first:many], olds[first:many])
            yield key_groups[many], *olds[many]
            first = many + 1
        if first < len(keys):
            yield from _of_single(key_groups[first:], keys[first:], olds[first:])

    def _many_in(self, keys: list[Any]) -> list[int]:
        """Return the positions of the entries for many keys."""
        return list(compress(count(), map(is_, keys, repeat(_MANY)))) if self._has_many else []


def _of_single(
    key_groups: list[int], keys: Sequence[Any], olds: Sequence[Any]
) -> Iterator[tuple[int, Collection[Any], Collection[Any]]]:
    """Do the same for entries of one key each. Each yield costs microseconds, so a key group's are yielded at once."""
    of_each = np.array(key_groups, dtype=np.int32)
    if np.any(of_each[1:] < of_each[:-1]):
        # They come key by key, so a key may have very many entries. Sorting all of them costs more.
        found: dict[int, Table] = {}
        for key_group, key, old in zip(key_groups, keys, olds, strict=True):
            try:
                found[key_group].setdefault(key, old)
            except KeyError:
                found[key_group] = {key: old}
        # A key group's are freed once they are read: the reader makes the same dictionary of them.
        for key_group in list(found):
            first_olds = found.pop(key_group)
            yield key_group, first_olds.keys(), first_olds.values()
        return
    starts = np.flatnonzero(of_each[1:] != of_each[:-1]) + 1
    bounds = [0, *starts.tolist(), len(keys)] if keys else []
    for first, end in pairwise(bounds):
        yield int(of_each[first]), keys[first:end], olds[first:end]


class OldList:
    """A list as it was when a version first touched it: a part of one that may have grown in place since.

    Attributes:
        values: the list. It loses and changes no element; to lose or change one, another list replaces it.
        length: of the part that was there.
        replaced: whether the version replaced or deleted the list. If not, it only added to it.
    """

    __slots__ = ("length", "replaced", "values")

    def __init__(self, values: list[Any], *, replaced: bool) -> None:
        self.values = values
        self.length = len(values)
        self.replaced = replaced


class ListVersion(Version):
    """A version of list states. Its undo maps hold `OldList`s, so that a list can grow without being copied."""

    __slots__ = ()

    def keep(self, key_group: int, key: Any, table: Mapping[Any, Any]) -> None:
        """Keep the list of a key in a table, before the list is replaced."""
        keep_list(self.maps.setdefault(key_group, {}), key, table.get(key, ABSENT), replaced=True)

    def old_values(self, key_group: int) -> Table:
        """Return the replaced lists as they were."""
        return {
            key: old if old is ABSENT else old.values[: old.length]
            for key, old in super().old_values(key_group).items()
        }


def keep_list(undo: Table, key: Any, old: Any, *, replaced: bool) -> None:
    """Keep a key's old list in an undo map, before the list is replaced or grows in place."""
    known = undo.get(key)
    if known is None:
        undo[key] = ABSENT if old is ABSENT else OldList(old, replaced=replaced)
    elif replaced and known is not ABSENT:
        known.replaced = True


class EntryVersion(Version):
    """A version of map states. Its undo maps have a second level, by map key.

    The only changed entry of a key is a pair of map key and old value, which takes a quarter of the memory of a
    dictionary: a version may change one entry of each of a million keys, as when a million timers fire.
    """

    __slots__ = ()

    def old_values(self, key_group: int) -> Table:
        """Return the replaced entries as dictionaries by key. Those that the version itself has may still grow."""
        return {key: dict((old,)) if type(old) is tuple else old for key, old in super().old_values(key_group).items()}


def keep_entry(undo: Table, key: Any, map_key: Any, entries: Mapping[Any, Any]) -> None:
    """Keep the value of one of a key's entries in an undo map, before the entry is changed."""
    known = undo.get(key)
    if known is None:
        undo[key] = (map_key, entries.get(map_key, ABSENT))
    elif type(known) is dict:
        if map_key not in known:
            known[map_key] = entries.get(map_key, ABSENT)
    elif known[0] != map_key:
        undo[key] = {known[0]: known[1], map_key: entries.get(map_key, ABSENT)}


def kept_entries(old: Any) -> Collection[Any]:
    """Return the map keys of what an undo map keeps of a key."""
    return old[:1] if type(old) is tuple else old


def undo_after(version: Version, key_group: int) -> list[Table]:
    """Return what each later version replaced, oldest first, as copies: the newest undo map still grows."""
    return [found for later in later_versions(version) if (found := later.old_values(key_group))]


def later_versions(version: Version) -> Iterator[Version]:
    """Yield the versions after a version, oldest first."""
    later = version.next
    while later is not None:
        # Read before the yield: if this version closes after its map was read, the next one holds what the map lacks.
        after = later.next
        yield later
        later = after

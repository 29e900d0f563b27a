"""Batch access to a value state on the heap: see `millpond.state.backend.batch_access`."""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from millpond.state.backend.batch_access import ManyKeys
from millpond.state.backend.protocols import ABSENT
from millpond.state.backend.sums import Sums
from millpond.state.heap.tables import FlatTables
from millpond.state.heap.versions import LoggedVersion


class ManyInTables:
    """`ManyValues` over flat tables on the heap, for values that cannot be changed in place.

    The steps are those of a single update, each done for a whole run by one call that never leaves C: first the old
    values go into the undo log, then the new ones into the table.
    """

    def __init__(self, tables: FlatTables[LoggedVersion], sums: Sums) -> None:
        self._tables = tables
        self._sums = sums

    def get_many(self, many: ManyKeys) -> list[Any]:
        live = self._tables.live
        found: list[Any] = []
        for key_group, first, end in many.runs:
            found.extend(map(live.get(key_group, {}).get, many.given[first:end]))
        return found

    def update_many(self, many: ManyKeys, values: Sequence[Any]) -> None:
        for key_group, first, end in many.runs:
            keys = many.given[first:end]
            table = self._tables.live.setdefault(key_group, {})
            self._tables.open.keep_all(key_group, keys, list(map(table.get, keys, repeat(ABSENT))))
            table.update(zip(keys, values[first:end], strict=True))

    def add_many(self, many: ManyKeys, number: Any) -> None:
        numbers = self._sums.numbers(number, len(many))
        for key_group, first, end in many.runs:
            keys = many.given[first:end]
            table = self._tables.live.setdefault(key_group, {})
            olds = list(map(table.get, keys))
            sums = self._sums.at_once(keys, olds, numbers[first:end])
            if sums is None:
                each = self._sums.of_each(keys, olds, numbers[first:end])
                self._tables.open.keep_all(key_group, keys, [ABSENT if old is None else old for old in olds])
                table.update(each)
            else:
                self._tables.open.keep_all(key_group, keys, olds)
                table.update(zip(keys, sums, strict=True))

    def clear_many(self, many: ManyKeys) -> None:
        for key_group, first, end in many.runs:
            table = self._tables.live.setdefault(key_group, {})
            keys = [key for key in many.given[first:end] if key in table]
            self._tables.open.keep_all(key_group, keys, list(map(table.get, keys, repeat(ABSENT))))
            for key in keys:
                table.pop(key, None)

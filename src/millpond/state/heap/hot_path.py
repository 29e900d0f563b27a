"""The hot path of a value state on the heap, which every record takes: `get`, `update`, `update_with` and `add`.

An update first keeps the old value in the log of the open version, and then puts the new one into the table of the key
group (`millpond.state.heap.tables`). Each method finds its key and writes its log by itself: calling another for that
would cost as much as the work.

The wheels of some platforms have this module compiled (docs/explanation/state.md), so its types hold at run time.
"""

from collections.abc import Callable
from typing import Any

from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import ABSENT
from millpond.state.backend.sums import Sums

_NO_KEY: object = object()
"""The logged key while no key is logged. None is a key, so it cannot serve."""


class HeapHotPath:
    """The methods of a value state whose values cannot be changed in place.

    Args:
        context: the current key.
        live: the tables by key group.
        first_table: makes the table of the current key group, or raises if no key is current.
        check: checks a value.
        sums: of the state.
    """

    __slots__ = (
        "_check", "_context", "_first_table", "_given_number", "_high", "_kind", "_live", "_log", "_logged",
        "_logged_group", "_low",
    )  # fmt: skip

    def __init__(
        self,
        context: KeyContext,
        live: dict[int, Any],
        first_table: Callable[[], Any],
        check: Callable[[Any], Any],
        sums: Sums,
    ) -> None:
        self._context = context
        self._live = live
        self._first_table = first_table
        self._check = check
        self._given_number: Callable[[Any], Any] = sums.number
        self._kind: object = sums.kind
        self._low: Any = sums.low
        self._high: Any = sums.high
        self._log: list[Any] = []
        self._logged: object = _NO_KEY
        self._logged_group = -1

    def begin_version(self, log: list[Any]) -> None:
        """Write the log of another version."""
        self._log = log
        self._logged = _NO_KEY

    def get(self) -> Any:
        """Return the current key's value, or None."""
        context = self._context
        row = context.key
        key: Any = row[0] if len(row) == 1 else row  # as `given_form`, written out
        table = self._live.get(context.key_group)
        if table is None:
            table = self._first_table()
        return table.get(key)

    def update(self, value: Any) -> None:
        """Set the current key's value."""
        value = self._check(value)
        context = self._context
        key_group = context.key_group
        row = context.key
        key: Any = row[0] if len(row) == 1 else row
        table = self._live.get(key_group)
        if table is None:
            table = self._first_table()
        # If one key changes again and again, as with each of its rows, only the first old value is needed.
        if key is not self._logged or key_group != self._logged_group:
            self._log += (key_group, key, table.get(key, ABSENT))
            self._logged = key
            self._logged_group = key_group
        table[key] = value

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the current key's value to what `change` returns for it, and return that."""
        context = self._context
        key_group = context.key_group
        row = context.key
        key: Any = row[0] if len(row) == 1 else row
        table = self._live.get(key_group)
        if table is None:
            table = self._first_table()
        old = table.get(key)
        value = change(old)
        kept = self._check(value)
        if key is not self._logged or key_group != self._logged_group:
            self._log += (key_group, key, ABSENT if old is None else old)
            self._logged = key
            self._logged_group = key_group
        table[key] = kept
        return value

    def add(self, number: Any) -> Any:
        """Add to the current key's number. Return the sum."""
        if type(number) is not self._kind:
            number = self._given_number(number)
        context = self._context
        key_group = context.key_group
        row = context.key
        key: Any = row[0] if len(row) == 1 else row
        table = self._live.get(key_group)
        if table is None:
            table = self._first_table()
        old = table.get(key)
        if old is None:
            old, value = ABSENT, number
        else:
            value = old + number
        if value > self._high or value < self._low:
            value = self._check(value)
        if key is not self._logged or key_group != self._logged_group:
            self._log += (key_group, key, old)
            self._logged = key
            self._logged_group = key_group
        table[key] = value
        return value

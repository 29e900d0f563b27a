"""The hot path of a value state on the heap, which every record takes: `get`, `update`, `update_with` and `add`.

An update first keeps the old value in the log of the open version, and then puts the new one into the table of the key
group (`millpond.state.heap.tables`). The module is typed so that mypyc could compile it (`benchmarks.compiled_record`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from millpond.state.backend.protocols import ABSENT, KeyContext
from millpond.state.backend.sums import Sums
from millpond.state.heap.versions import Table

_NO_KEY: Any = object()
"""The logged key while no key is logged. None is a key, so it cannot serve."""


class HotPath(NamedTuple):
    """The methods of a value state, and `begin_version`, which gives them the log of another version."""

    get: Callable[[], Any]
    update: Callable[[Any], None]
    update_with: Callable[[Callable[[Any], Any]], Any]
    add: Callable[[Any], Any]
    begin_version: Callable[[list[Any]], None]


def hot_path(
    context: KeyContext,
    live: dict[int, Table],
    first_table: Callable[[], Table],
    check: Callable[[Any], Any],
    sums: Sums,
) -> HotPath:
    """Return functions over local variables, which the interpreter finds sooner than attributes.

    Each function finds its key and writes its log by itself: calling another for that would cost as much as the work.
    """
    log: list[Any] = []
    logged: Any = _NO_KEY
    logged_group = -1
    kind, low, high, given_number = sums.kind, sums.low, sums.high, sums.number

    def get() -> Any:
        key: Any = context.key
        if len(key) == 1:  # as `given_form`, written out
            key = key[0]
        try:
            table = live[context.key_group]
        except KeyError:
            table = first_table()
        return table.get(key)

    def update(value: Any) -> None:
        nonlocal log, logged, logged_group
        value = check(value)
        key_group = context.key_group
        key: Any = context.key
        if len(key) == 1:
            key = key[0]
        try:
            table = live[key_group]
        except KeyError:
            table = first_table()
        # If one key changes again and again, as with each of its rows, only the first old value is needed.
        if key is not logged or key_group != logged_group:
            log += (key_group, key, table.get(key, ABSENT))
            logged, logged_group = key, key_group
        table[key] = value

    def update_with(change: Callable[[Any], Any]) -> Any:
        nonlocal log, logged, logged_group
        key_group = context.key_group
        key: Any = context.key
        if len(key) == 1:
            key = key[0]
        try:
            table = live[key_group]
        except KeyError:
            table = first_table()
        old = table.get(key)
        value = change(old)
        kept = check(value)
        if key is not logged or key_group != logged_group:
            log += (key_group, key, ABSENT if old is None else old)
            logged, logged_group = key, key_group
        table[key] = kept
        return value

    def add(number: Any) -> Any:
        nonlocal log, logged, logged_group
        if type(number) is not kind:
            number = given_number(number)
        key_group = context.key_group
        key: Any = context.key
        if len(key) == 1:
            key = key[0]
        try:
            table = live[key_group]
        except KeyError:
            table = first_table()
        old = table.get(key)
        if old is None:
            old, value = ABSENT, number
        else:
            value = old + number
        if value > high or value < low:
            value = check(value)
        if key is not logged or key_group != logged_group:
            log += (key_group, key, old)
            logged, logged_group = key, key_group
        table[key] = value
        return value

    def begin_version(open_log: list[Any]) -> None:
        nonlocal log, logged
        log, logged = open_log, _NO_KEY

    return HotPath(get, update, update_with, add, begin_version)

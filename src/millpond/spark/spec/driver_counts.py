"""The driver's list of its keyed operators and lookup tables.

Place on the data path: beside it, on the driver only. An operator is registered when it is planned, and a table when
it is joined. So the page and the exporters find them without configuration.

Invariant: the list keeps nothing alive except accumulators, which Spark itself keeps for ever.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from millpond.cache.curves import CacheReport
from millpond.cache.curves.telling import together
from millpond.spark.spec.metrics import KeyedMetrics

if TYPE_CHECKING:
    from millpond.lookup import LookupTable

_MOST_OPERATORS = 256
"""How many operators are listed, the newest. The limit is needed because a program may plan one for each batch."""


class PlannedOperator(NamedTuple):
    """A keyed operator: its application's id, its name, and a function that returns its metrics so far."""

    application: str
    name: str
    total: Callable[[], KeyedMetrics]


_OPERATORS: deque[PlannedOperator] = deque(maxlen=_MOST_OPERATORS)
_TABLES: "WeakKeyDictionary[LookupTable, list[Callable[[], list[CacheReport]]]]" = WeakKeyDictionary()


def note_operator(operator: PlannedOperator) -> None:
    """Add an operator to the list."""
    _OPERATORS.append(operator)


def note_table(table: "LookupTable", curves: Callable[[], list[CacheReport]]) -> None:
    """List a lookup table for as long as it is in use, with a function that returns the curves of its caches."""
    _TABLES.setdefault(table, []).append(curves)


def operators_of(application: str) -> Iterator[PlannedOperator]:
    """Return the operators that an application has planned, oldest first."""
    return (each for each in list(_OPERATORS) if each.application == application)


def tables() -> "list[LookupTable]":
    """Return the lookup tables that are joined, by name."""
    return sorted(_TABLES, key=lambda table: table.name)


def table_reports() -> list[CacheReport]:
    """Return the hit-rate curves of tables whose caches are recorded in executors, one curve for each table name."""
    found: dict[str, list[CacheReport]] = {}
    for table, curves in list(_TABLES.items()):
        found.setdefault(table.name, []).extend(report for tell in curves for report in tell())
    put = [together(name, reports) for name, reports in sorted(found.items())]
    return [report for report in put if report is not None]

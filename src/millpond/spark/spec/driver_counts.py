"""What a driver can tell of: every keyed operator and every lookup table of its applications.

Place on the data path: beside it. An operator is noted when it is planned and a table when it is joined with, so the
page and the exporters find them without being told. Only the driver has this.

Invariant: noting holds nothing alive but the accumulators, which Spark keeps for ever itself.
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
"""How many operators are remembered, the newest: a program may plan one for each of its batches."""


class PlannedOperator(NamedTuple):
    """A keyed operator: the application that it is planned in, its name, and what it has counted."""

    application: str
    name: str
    total: Callable[[], KeyedMetrics]


_OPERATORS: deque[PlannedOperator] = deque(maxlen=_MOST_OPERATORS)
_TABLES: "WeakKeyDictionary[LookupTable, list[Callable[[], list[CacheReport]]]]" = WeakKeyDictionary()


def note_operator(operator: PlannedOperator) -> None:
    """Remember an operator."""
    _OPERATORS.append(operator)


def note_table(table: "LookupTable", curves: Callable[[], list[CacheReport]]) -> None:
    """Remember a lookup table for as long as it is in use, and what tells the curves of its caches."""
    _TABLES.setdefault(table, []).append(curves)


def operators_of(application: str) -> Iterator[PlannedOperator]:
    """The operators of an application that have run, oldest first."""
    return (each for each in list(_OPERATORS) if each.application == application)


def tables() -> "list[LookupTable]":
    """The lookup tables that are joined with."""
    return sorted(_TABLES, key=lambda table: table.name)


def table_reports() -> list[CacheReport]:
    """The hit-rate curves of the tables whose caches are recorded in executors; those of one name are put together."""
    found: dict[str, list[CacheReport]] = {}
    for table, curves in list(_TABLES.items()):
        found.setdefault(table.name, []).extend(report for tell in curves for report in tell())
    put = [together(name, reports) for name, reports in sorted(found.items())]
    return [report for report in put if report is not None]

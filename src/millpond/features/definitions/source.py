"""The sources of a GroupBy's rows.

A source names tables and streams as Spark knows them; ``selects`` and ``wheres`` are Spark SQL. The
features' algebra never reads a source: upload, stream and training set do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.features.definitions.faults import Faults, frozen_texts

Texts = Mapping[str, str] | tuple[tuple[str, str], ...]
"""A mapping of texts as given, or as sorted pairs once stored."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Rows that never change: each is an event that happened.

    Args:
        table: the history, as a table's name or a path that Spark reads.
        stream: the same events as they arrive, as a table's name or a path; None for a GroupBy that is
            only uploaded.
        selects: column name to SQL expression; empty takes the table's columns as they are.
        wheres: SQL conditions; a row must meet all of them.
        time_column: the event time, in milliseconds since the epoch, UTC.
        arrival_time_column: when the event arrived, in milliseconds; None if that is not known.

    >>> EventSource("purchases", wheres=("amount > 0",)).time_column
    'time_ms'
    """

    table: str
    stream: str | None = None
    selects: Texts = ()
    wheres: tuple[str, ...] = ()
    time_column: str = "time_ms"
    arrival_time_column: str | None = None

    def __post_init__(self) -> None:
        _check(self, "EventSource", ("table", "time_column"), ("stream", "arrival_time_column"))


@dataclass(frozen=True, slots=True)
class EntitySource:
    """Rows of a table that changes: inserts, updates and deletes.

    Args:
        snapshots: the table as of the batch end.
        mutations: its changes, each row before and after the change, as a table.
        mutation_stream: the same changes as they arrive; None for a GroupBy that is only uploaded.
        selects: column name to SQL expression; empty takes the table's columns as they are.
        wheres: SQL conditions; a row must meet all of them.
        time_column: the time that windows look at, in milliseconds since the epoch, UTC.
        mutation_time_column: when the row was changed, in milliseconds; the row's own time counts where it is null.
        is_before_column: true for the row as it was before a change, false or null for the row after it.

    >>> EntitySource("listings", "listing_changes", time_column="listed_ms").is_before_column
    'is_before'
    """

    snapshots: str
    mutations: str
    mutation_stream: str | None = None
    selects: Texts = ()
    wheres: tuple[str, ...] = ()
    time_column: str = "time_ms"
    mutation_time_column: str = "mutation_time"
    is_before_column: str = "is_before"

    def __post_init__(self) -> None:
        needed = ("snapshots", "mutations", "time_column", "mutation_time_column", "is_before_column")
        _check(self, "EntitySource", needed, ("mutation_stream",))


@dataclass(frozen=True, slots=True)
class JoinSource:
    """The rows of a Join as the events of a GroupBy (chaining).

    Args:
        join: the Join; its left source gives keys and times.
        selects: column name to SQL expression over the Join's columns.
        wheres: SQL conditions; a row must meet all of them.
    """

    join: Any
    selects: Texts = ()
    wheres: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from millpond.features.definitions.join import Join

        faults = Faults("JoinSource")
        if not isinstance(self.join, Join):
            faults.add(f"join must be a Join, got {self.join!r}")
        elif self.join.left is None:
            faults.add(f"Join {self.join.name!r} has no left source, so it has no rows of its own; give it one")
        _freeze(self, faults)
        faults.report()


Source = EventSource | EntitySource | JoinSource


def _check(source: Any, kind: str, texts: tuple[str, ...], optional: tuple[str, ...]) -> None:
    faults = Faults(f"{kind} {getattr(source, texts[0])!r}")
    for name in (*texts, *optional):
        value = getattr(source, name)
        if (value is not None or name in texts) and (not isinstance(value, str) or not value):
            faults.add(f"{name} must be a text of at least one letter, got {value!r}")
    _freeze(source, faults)
    faults.report()


def _freeze(source: Any, faults: Faults) -> None:
    object.__setattr__(source, "selects", frozen_texts(faults, "selects", source.selects))
    object.__setattr__(source, "wheres", faults.parts("wheres", source.wheres, str))

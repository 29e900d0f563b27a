"""The days of a history: the number of events of each day and their checksum. They reveal late events.

Place on the data path: beside the hop table, which keeps both for each of its days.

`count_days` is a Spark job. `WatchedDays` counts while another job reads the events anyway. It counts the events of
each new day separately, and those of all closed days together. If the closed days differ from what the table knows,
`count_days` must find which of them differ.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millpond.features.windows import DAY_MS
from millpond.spark.features.columns import TIME

_ALL = "all"
_HALF_BITS = 32
_HALF = (1 << _HALF_BITS) - 1


class DayCount(NamedTuple):
    """The count of some events.

    Args:
        events: the number of events.
        checksum: the sum of their hashes, as decimal digits; their order does not matter.
    """

    events: int
    checksum: str


def count_days(events: DataFrame) -> dict[int, DayCount]:
    """Return the count of each day that has events, by the day's start."""
    counted = events.groupBy(_day().alias("day")).agg(
        F.count(F.lit(1)).alias("events"), F.sum(_hash_of(events).cast("decimal(20,0)")).alias("checksum")
    )
    return {row.day: DayCount(row.events, str(row.checksum)) for row in counted.collect()}


def in_days(days: Iterable[int]) -> Column:
    """Return the condition that a time lies in one of some days.

    Neighbouring days become one range, by which readers can skip parts of files.
    """
    ranges: list[tuple[int, int]] = []
    for day in sorted(days):
        if ranges and ranges[-1][1] == day:
            ranges[-1] = (ranges[-1][0], day + DAY_MS)
        else:
            ranges.append((day, day + DAY_MS))
    condition = F.lit(False)
    for begin, end in ranges:
        condition |= (F.col(TIME) >= begin) & (F.col(TIME) < end)
    return condition


class WatchedDays:
    """Counts the events of days while a job reads them.

    Args:
        closed: the count of each closed day in the table; a closed day without events is not in it.
        new_days: the days that are counted one by one. All other events count as those of closed days.
    """

    def __init__(self, closed: Mapping[int, DayCount], new_days: Sequence[int]) -> None:
        self._known = (sum(day.events for day in closed.values()), sum(int(day.checksum) for day in closed.values()))
        self._new_days = tuple(new_days)
        self._observation = Observation()

    def watch(self, events: DataFrame) -> DataFrame:
        """Return the events of the new days. All events are counted as they are read; each must have a time."""
        hashed = _hash_of(events)
        # The sum of each half fits into 64 bits, for up to two thousand million events.
        halves = (F.shiftright(hashed, _HALF_BITS), hashed.bitwiseAND(F.lit(_HALF)))
        values = (F.lit(1).cast("long"), *halves)
        counted = [F.sum(value).alias(f"{_ALL} {number}") for number, value in enumerate(values)]
        for day in self._new_days:
            holds = _is_one_of([day])
            counted += [F.sum(F.when(holds, value)).alias(f"{day} {number}") for number, value in enumerate(values)]
        return events.observe(self._observation, *counted).where(_is_one_of(self._new_days))

    def new_days(self) -> dict[int, DayCount] | None:
        """Return the count of each new day that has events, once the job is done.

        None if closed days differ from the table.
        """
        found = self._observation.get
        counted = {day: self._sums(found, str(day)) for day in self._new_days}
        events, checksum = self._sums(found, _ALL)
        events -= sum(events for events, _ in counted.values())
        checksum -= sum(checksum for _, checksum in counted.values())
        if (events, checksum) != self._known:
            return None
        return {day: DayCount(events, str(checksum)) for day, (events, checksum) in counted.items() if events}

    @staticmethod
    def _sums(found: Mapping[str, int | None], part: str) -> tuple[int, int]:
        events, high, low = (found.get(f"{part} {number}") or 0 for number in range(3))
        return events, (high << _HALF_BITS) + low


def _day() -> Column:
    return F.col(TIME) - F.pmod(F.col(TIME), F.lit(DAY_MS))


def _is_one_of(days: Iterable[int]) -> Column:
    """Return the condition that a time lies in one of some days.

    Spark's generated code refers to a constant array, but contains single numbers. With ranges, as in `in_days`, Spark
    would compile new code for every further day.
    """
    return F.array_contains(F.array(*(F.lit(day).cast("long") for day in days)), _day())


def _hash_of(events: DataFrame) -> Column:
    return F.xxhash64(*(part for field in events.schema.fields for part in _hashable(events, field)))


def _hashable(events: DataFrame, field: T.StructField) -> Iterator[Column]:
    """Yield a column in a form that Spark can hash, and where it has nulls.

    A map becomes its sorted entries. Spark's hash passes over nulls, so (1, null) and (null, 1) would have one hash.
    """
    column = events[field.name]
    type_ = field.dataType
    if isinstance(type_, T.MapType):
        column = F.sort_array(F.map_entries(column))
    yield column
    if field.nullable:
        yield column.isNull()
    if isinstance(type_, T.ArrayType) and type_.containsNull:
        yield F.transform(column, lambda one: one.isNull())
    elif isinstance(type_, T.MapType) and type_.valueContainsNull:
        yield F.transform(column, lambda entry: entry["value"].isNull())

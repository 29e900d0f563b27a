"""An aircraft's day: a PySpark `StatefulProcessor`, written as any PySpark user would write one.

Third on the demo's data path, keyed by tail number. For each of an aircraft's flights it tells how
many legs the aircraft has flown that day, how late it arrived from the one before, and how long it
stood on the ground. It knows nothing of Millpond: the same class runs under PySpark's own
`transformWithState` and under `millpond.spark.keyed`.

The source has only departures out of New York, so the way back is not in it. The time on the ground
is therefore what is left between two departures after the flight there and a flight back of the same
length. A record that comes late still counts as a leg of its day, but never sets the aircraft back
to where it was before.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

_MINUTE_MS = 60_000

OUTPUT = StructType(
    [
        StructField("flight_id", LongType()),
        StructField("tailnum", StringType()),
        StructField("time_ms", LongType()),
        StructField("legs_today", LongType()),
        StructField("arrived_late_minutes", DoubleType()),
        StructField("ground_minutes", DoubleType()),
        StructField("seats", LongType()),
        StructField("visibility_miles", DoubleType()),
    ]
)
"""One row per flight. The two minutes are null on an aircraft's first leg of a day and where the source has none."""


class Day(NamedTuple):
    """What is remembered of an aircraft: its last departure, and the day's legs up to it."""

    service_day: int
    legs: int
    time_ms: int
    landed_ms: int | None
    arrived_late_minutes: float | None
    air_minutes: float | None


_STATE = StructType(
    [
        StructField("service_day", LongType()),
        StructField("legs", LongType()),
        StructField("time_ms", LongType()),
        StructField("landed_ms", LongType()),
        StructField("arrived_late_minutes", DoubleType()),
        StructField("air_minutes", DoubleType()),
    ]
)


class AircraftDay(StatefulProcessor):  # type: ignore[misc]  # PySpark is untyped here
    """Follows each aircraft through its day. A cancelled flight is answered, and is no leg."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the one value that is kept per aircraft."""
        self._day = handle.getValueState("day", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803 -- PySpark's names
        """Answer each of the aircraft's new flights, in the order of their events."""
        stored = self._day.get()
        day = None if stored is None else Day(*stored)
        for row in sorted(rows, key=lambda row: (row.time_ms, row.flight_id)):
            yield _answer(key[0], row, day)
            if row.dep_delay is not None:
                day = _after(row, day)
        if day is not None:
            self._day.update(tuple(day))

    def close(self) -> None:
        """Nothing is held open."""


def _answer(tailnum: str, row: Row, day: Day | None) -> Row:
    same_day = day if day is not None and day.service_day == row.service_day else None
    before = same_day if same_day is not None and same_day.time_ms < row.time_ms else None
    return Row(
        flight_id=row.flight_id,
        tailnum=tailnum,
        time_ms=row.time_ms,
        legs_today=(same_day.legs if same_day else 0) + (row.dep_delay is not None),
        arrived_late_minutes=before.arrived_late_minutes if before else None,
        ground_minutes=_ground_minutes(before, row.time_ms) if before else None,
        seats=row.seats,
        visibility_miles=row.visib,
    )


def _ground_minutes(before: Day, departed_ms: int) -> float | None:
    if before.landed_ms is None or before.air_minutes is None:
        return None
    return max(0.0, (departed_ms - before.landed_ms) / _MINUTE_MS - before.air_minutes)


def _after(row: Row, day: Day | None) -> Day:
    if day is not None and row.time_ms < day.time_ms:
        return day._replace(legs=day.legs + 1) if row.service_day == day.service_day else day
    legs = day.legs + 1 if day is not None and day.service_day == row.service_day else 1
    return Day(row.service_day, legs, row.time_ms, row.landed_ms, row.arr_delay, row.air_minutes)

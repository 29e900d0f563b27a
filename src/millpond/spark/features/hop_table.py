"""The hop table of a GroupBy: its history collected into hops, in a folder, so that a further day reads its own events.

Place on the data path: between history and the batch upload. `backfill` and `upload` share it.

The folder has files of rows (`hop_rows`), one row for each key, and *manifests*: one for each state of the table,
named by its version and written last. A manifest names the files of its state, the end of its history, and of each
day that can still be collected by itself how many events it had, with a checksum that does not depend on their order.
If a run dies, the manifest before it stands, and its files are still there. Of two runs at once one is refused, for
a manifest's version is written once.

Late events: days up to three days before the table's end are compared with their events again, and those that have
changed are collected anew; `backfill` compares older days too. A changed definition builds the table anew.

The driver and all executors must see the folder under one path.
"""

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.features import GroupByPlan
from millpond.features.definitions import EventSource
from millpond.features.hops import KEPT_DAYS_MS
from millpond.features.sealing import seal, unseal
from millpond.features.windows import DAY_MS
from millpond.spark.features.columns import TIME
from millpond.spark.features.hop_rows import HOP_ROWS, TABLE_ROW, HopMerge, combined_hops, hops_of
from millpond.spark.features.sources import sources_of

FORMAT_VERSION = 1
"""Of a manifest."""

_MANIFEST = re.compile(r"manifest-([0-9]{8})")
_FILE = re.compile(r"hops-([0-9]{8})-[0-9a-f]{32}\.parquet")


class HopManifest(msgspec.Struct, frozen=True):
    """One state of a hop table.

    Args:
        version: counts the states, from 1.
        definition: the hashes of the GroupBy that the rows are of.
        end_ms: where the history ends.
        days: of each day (its start) the number of its events, and their checksum as digits.
        files: the names of the files with the rows.
    """

    version: int
    definition: str
    end_ms: int
    days: dict[int, tuple[int, str]]
    files: tuple[str, ...]

    def encode(self) -> bytes:
        """Give the bytes of the manifest."""
        return seal(FORMAT_VERSION, msgspec.json.encode(self), b"hop table")

    @staticmethod
    def decode(data: bytes, name: str) -> "HopManifest":
        """Give the manifest that bytes hold.

        Raises:
            CorruptionError: they are torn or altered, or of another format.
        """
        what = f"manifest {name} of a hop table"
        try:
            return msgspec.json.decode(unseal(FORMAT_VERSION, data, what, b"hop table"), type=HopManifest)
        except (CorruptionError, msgspec.MsgspecError) as cause:
            raise CorruptionError(
                f"{what} cannot be read: {cause}; remove the folder, and the next run builds it anew from the events"
            ) from cause


class HopTask(NamedTuple):
    """What the tasks of one run do: how rows go on, and where they lie then."""

    merge: HopMerge
    folder: Path
    version: int

    def new_file(self) -> Path:
        """Give a file that no other attempt of a task writes."""
        return self.folder / f"hops-{self.version:08}-{secrets.token_hex(16)}.parquet"


class HopChange(NamedTuple):
    """One run's change of a hop table, before it is published.

    Args:
        rows: the columns of ``HOP_ROWS``, sorted by key and start: table and new events.
        task: what is done with them.
        days: the days' events, as the manifest will have them.
    """

    rows: DataFrame
    task: HopTask
    days: Mapping[int, tuple[int, str]]


class HopTable:
    """The hop table of a plan in a folder.

    Raises:
        OptionError: a source is none of events, or the GroupBy has no aggregations.
    """

    def __init__(self, plan: GroupByPlan, folder: str | os.PathLike[str]) -> None:
        whose = f"GroupBy {plan.name!r}"
        if not plan.group_by.aggregations:
            raise OptionError(f"{whose}: it has no aggregations, so there are no hops to keep; leave hop_table out")
        if not all(isinstance(source, EventSource) for source in sources_of(plan.group_by)):
            raise OptionError(
                f"{whose}: only events stay what they were, so only event sources have a hop table; leave hop_table out"
            )
        self._plan = plan
        self._folder = Path(folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._definition = f"{plan.definition_hash}.{plan.batch_form}"

    def state(self) -> HopManifest | None:
        """Give the table's state; None if there is none, or none of this definition.

        Raises:
            CorruptionError: its manifest cannot be read.
        """
        newest = self._newest()
        return newest if newest is not None and newest.definition == self._definition else None

    def change(self, spark: SparkSession, events: DataFrame, end_ms: int, since_ms: int | None = None) -> HopChange:
        """Give how the table goes on to an end.

        Args:
            spark: reads the table.
            events: the plan's columns of all events before the end.
            end_ms: where the history is to end; not before the table's end.
            since_ms: from which day on events are compared with the table; None for the last three days. If the
                table cannot tell that day from those before, it is built anew.
        """
        newest = self._newest()
        version = 1 if newest is None else newest.version + 1
        state = self.state()
        if state is not None and since_ms is not None and since_ms < hops_of(self._plan, state.end_ms).first_ms:
            state = None
        first_ms = hops_of(self._plan, end_ms).first_ms
        timed = events.where(F.col(TIME).isNotNull())
        if state is None:
            days = _days(timed.where(F.col(TIME) >= first_ms))
            merge = HopMerge(self._plan, end_ms, end_ms, frozenset())
            rows = self._combined(events, end_ms)
        else:
            from_ms = (state.end_ms - KEPT_DAYS_MS if since_ms is None else since_ms) // DAY_MS * DAY_MS
            found = _days(timed.where(F.col(TIME) >= from_ms))
            known = {day: counted for day, counted in state.days.items() if day >= from_ms}
            open_day = state.end_ms // DAY_MS * DAY_MS
            changed = {day for day in found.keys() | known.keys() if found.get(day) != known.get(day)}
            anew = frozenset(changed | {day for day in found if day >= open_day} | {open_day})
            merge = HopMerge(self._plan, state.end_ms, end_ms, anew)
            rows = self._combined(timed.where(_in_days(anew)), end_ms).unionByName(self._rows(spark, state))
            days = {day: counted for day, counted in state.days.items() if first_ms <= day < from_ms} | {
                day: counted for day, counted in found.items() if day >= first_ms
            }
        by_key = rows.repartition("key").sortWithinPartitions("key", "start_ms")
        return HopChange(by_key, HopTask(merge, self._folder, version), days)

    def publish(self, change: HopChange, files: Iterable[str]) -> HopManifest:
        """Make a change the table's state, once its files are whole; then remove what no state needs any more.

        Raises:
            UnavailableError: another run has changed the table meanwhile.
        """
        merge, version = change.task.merge, change.task.version
        manifest = HopManifest(
            version, self._definition, merge.end_ms, dict(sorted(change.days.items())), tuple(sorted(files))
        )
        unfinished = self._folder / f"unfinished-{secrets.token_hex(16)}"
        with unfinished.open("wb") as file:
            file.write(manifest.encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a renaming, never replaces what is there.
            os.link(unfinished, self._path(version))
        except FileExistsError as cause:
            raise UnavailableError(
                f"GroupBy {self._plan.name!r}: another run has written version {version} of the hop table "
                f"{self._folder} meanwhile; run again"
            ) from cause
        finally:
            unfinished.unlink()
        self._remove_older(manifest)
        return manifest

    def _newest(self) -> HopManifest | None:
        versions = [int(match[1]) for path in self._folder.iterdir() if (match := _MANIFEST.fullmatch(path.name))]
        return self._read(max(versions)) if versions else None

    def _read(self, version: int) -> HopManifest:
        path = self._path(version)
        return HopManifest.decode(path.read_bytes(), str(path))

    def _path(self, version: int) -> Path:
        return self._folder / f"manifest-{version:08}"

    def _combined(self, events: DataFrame, end_ms: int) -> DataFrame:
        plan = self._plan

        def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return combined_hops(plan, end_ms, batches)

        return events.mapInArrow(combine, HOP_ROWS)

    def _rows(self, spark: SparkSession, state: HopManifest) -> DataFrame:
        paths = [(self._folder / name).as_uri() for name in state.files]
        read = spark.read.schema("key binary, value binary").parquet(*paths)
        return read.select("key", F.lit(TABLE_ROW).cast("bigint").alias("start_ms"), "value")

    def _remove_older(self, manifest: HopManifest) -> None:
        """Keep this state and the one before, for whoever still reads it; remove files of earlier versions.

        A run that died left files of its own: their version has been written by another by now.
        """
        kept = set(manifest.files)
        if self._path(manifest.version - 1).exists():
            kept |= set(self._read(manifest.version - 1).files)
        for path in list(self._folder.iterdir()):
            of_file, of_manifest = _FILE.fullmatch(path.name), _MANIFEST.fullmatch(path.name)
            is_old_file = of_file is not None and int(of_file[1]) <= manifest.version and path.name not in kept
            if is_old_file or (of_manifest is not None and int(of_manifest[1]) < manifest.version - 1):
                path.unlink(missing_ok=True)


def _in_days(days: Iterable[int]) -> Column:
    """Give the condition that a time lies in one of some days; neighbouring days are one range."""
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


def _days(events: DataFrame) -> dict[int, tuple[int, str]]:
    """Count the events of each day, and give a checksum of them that does not depend on their order."""
    columns = [_hashable(events, field) for field in events.schema.fields]
    day = F.col(TIME) - F.pmod(F.col(TIME), F.lit(DAY_MS))
    counted = events.groupBy(day.alias("day")).agg(
        F.count(F.lit(1)).alias("events"), F.sum(F.xxhash64(*columns).cast("decimal(20,0)")).alias("checksum")
    )
    return {row.day: (row.events, str(row.checksum)) for row in counted.collect()}


def _hashable(events: DataFrame, field: T.StructField) -> Column:
    """Give a column as Spark's hash takes it: a map as its entries in order."""
    column = events[field.name]
    return F.sort_array(F.map_entries(column)) if isinstance(field.dataType, T.MapType) else column

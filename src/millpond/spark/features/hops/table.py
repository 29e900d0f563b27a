"""The hop table of a GroupBy: its history collected into hops, in a folder.

With it, a further day reads only its own events.

Place on the data path: between history and the batch upload. `backfill` and `upload` share it.

The folder has Parquet files of hops (`files`): separate files for each day, and files for all time before the days
together. It also has *manifests* (`manifest`): one for each state of the table, named by its version and written
last. A further day adds the files of that day. Files of other days are written again only if a window now moves over
that day in larger hops. The oldest day goes into the files of the time before. Beside the files of days lie those of
*rollups* (`rollups`): days merged, which an upload reads instead. An upload writes the rollups that are missing.

Invariant: the newest manifest and its files are whole. If a run dies, the manifest before it stays valid, and its files
still exist. A task that runs twice writes other files, and the manifest names one set of them. Of two runs at once one
is refused, because each manifest version is written only once.

Late events: a run compares the last three days before the table's end with their events again, by number and by a
checksum that does not depend on order. Days that have changed are collected anew, and their rollups are dropped.
`backfill` compares older days too.
An upload compares the days in the job that reads its new days, and runs a second job only if they have changed
(`days`). A changed definition builds the table anew.

The driver and all executors must see the folder under one path.
"""

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import OptionError, UnavailableError
from millpond.features import GroupByPlan
from millpond.features.definitions import EventSource
from millpond.features.hops import BEFORE_MS, KEPT_DAYS_MS, Hops
from millpond.features.windows import DAY_MS
from millpond.spark.features.columns import TIME, key_names
from millpond.spark.features.hops.days import DayCount, WatchedDays, count_days, in_days
from millpond.spark.features.hops.files import KEY_HASH, Span, span_of, version_of
from millpond.spark.features.hops.manifest import HopDay, HopManifest, HopRollup
from millpond.spark.features.hops.rollups import Rollup, Rollups
from millpond.spark.features.hops.tasks import ROUTING_KEY, HopTask, hops_of, keeps_all
from millpond.spark.features.sources import sources_of
from millpond.spark.shuffle.partitioner import routing_keys

_MANIFEST = re.compile(r"manifest-([0-9]{8})")
_EARLIER_FORMATS = (b"\x01", b"\x02")
_EVENTS_A_BUCKET = 1_000_000
"""Events per bucket, counted over the days with files of their own. There are at most as many buckets as partitions.

A further day reads the files of all days for each bucket, and small files cost more to open than to read.
"""

_MOST_WATCHED_DAYS = 8
"""The most days that a job watches. Each costs the job three more sums, so more days are counted in a job of their
own.
"""


class HopChange(NamedTuple):
    """One run's change of a hop table, before it is published.

    Args:
        rows: new events by bucket, as `HopAttempt.batch_rows` takes them.
        task: what the tasks do with them.
        days: the days as the manifest will have them, without the files that the tasks write.
        before: the unchanged files with the hops of all time before the days.
        rollups: the files of the unchanged rollups.
        watched: counts the new days while the job reads them; None if ``days`` is complete.
    """

    rows: DataFrame
    task: HopTask
    days: Mapping[int, HopDay]
    before: tuple[str, ...]
    rollups: Mapping[Rollup, tuple[str, ...]]
    watched: WatchedDays | None = None


class HopTable:
    """The hop table of a plan in a folder.

    Raises:
        OptionError: a source is not an event source, or the GroupBy has no aggregations.
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
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise OptionError(f"{whose}: the hop table {self._folder} is a file; name a folder") from error
        self._definition = f"{plan.definition_hash}.{plan.batch_form}"

    def state(self) -> HopManifest | None:
        """Return the table's state; None if there is none of this definition and format.

        Raises:
            CorruptionError: its manifest cannot be read.
        """
        newest = self._newest()
        state = None if newest is None else self._read(newest)
        return state if state is not None and state.definition == self._definition else None

    def change(
        self,
        spark: SparkSession,
        events: DataFrame,
        end_ms: int,
        since_ms: int | None = None,
        *,
        with_rows: bool = False,
        watch: bool = False,
    ) -> HopChange:
        """Return the change that moves the table to a new end.

        Args:
            spark: makes the rows that name the buckets.
            events: the plan's columns of all events before the end.
            end_ms: the new end of the history; not before the table's end.
            since_ms: the day from which events are compared with the table; None for the last three days. If the
                table has merged that day into the time before, it is built anew.
            with_rows: whether the tasks also make the rows of the batch, for which they read all hops. Then they write
                the missing rollups.
            watch: whether days may be compared while the job of the change reads them. Then call `settled` after the
                job.
        """
        version = 1 + (self._newest() or 0)
        state = self.state()
        if state is not None and since_ms is not None and since_ms < hops_of(self._plan, state.end_ms).first_ms:
            state = None
        if state is None:
            return self._built(spark, events, end_ms, version, with_rows=with_rows)
        from_ms = (state.end_ms - KEPT_DAYS_MS if since_ms is None else since_ms) // DAY_MS * DAY_MS
        new_days = range(state.end_ms // DAY_MS * DAY_MS, end_ms, DAY_MS)
        if watch and 0 < len(new_days) <= _MOST_WATCHED_DAYS:
            closed = {day: known for day, known in _known(state, from_ms).items() if day not in new_days}
            watched = WatchedDays(closed, new_days)
            new_events = watched.watch(events.where(F.col(TIME) >= from_ms))
            days = dict.fromkeys(new_days)
            change = self._continued(spark, new_events, end_ms, state, days, with_rows=with_rows)
            return change._replace(watched=watched)
        found = count_days(events.where(F.col(TIME) >= from_ms))
        anew = {day: found.get(day) for day in _changed_days(state, found, from_ms)}
        return self._continued(spark, events.where(in_days(anew)), end_ms, state, anew, with_rows=with_rows)

    def _built(
        self, spark: SparkSession, events: DataFrame, end_ms: int, version: int, *, with_rows: bool
    ) -> HopChange:
        """Return the change that builds the table from all events."""
        hops = hops_of(self._plan, end_ms)
        found = count_days(events.where(F.col(TIME) >= hops.first_ms))
        buckets = _buckets(spark, sum(counted.events for counted in found.values()))
        rollups = Rollups(self._plan, hops).kept if with_rows else ()
        task = HopTask(self._plan, end_ms, self._folder, version, buckets, (), (), rollups)
        days = {day: HopDay(*counted, hops.last_size(day)) for day, counted in found.items()}
        return HopChange(self._by_bucket(spark, events, buckets), task, days, (), {})

    def _continued(
        self,
        spark: SparkSession,
        events: DataFrame,
        end_ms: int,
        state: HopManifest,
        anew: Mapping[int, DayCount | None],
        *,
        with_rows: bool,
    ) -> HopChange:
        """Return the change that continues a state.

        Args:
            spark: makes the rows that name the buckets.
            events: the events of the days collected anew.
            end_ms: the new end.
            state: the state to continue.
            anew: the days collected anew, each with its count; None for a day without events, or not counted yet.
            with_rows: as for `change`.
        """
        hops = hops_of(self._plan, end_ms)
        rollups = Rollups(self._plan, hops)
        going_on = {day: known for day, known in state.days.items() if day not in anew}
        intact = {rollup: files for rollup, files in _rollups(state).items() if anew.keys().isdisjoint(rollup.days)}
        days, rewritten = _continued_days(hops, going_on, intact)
        leaving = (day for day in going_on if day < hops.first_ms and keeps_all(self._plan))
        moved = [name for day in (*leaving, *rewritten) for name in going_on[day].files]
        kept = {rollup: intact[rollup] for rollup in rollups.kept if rollup in intact}
        read = [rollup for rollup in kept if not rollups.is_cut(rollup) and rewritten.keys().isdisjoint(rollup.days)]
        in_rollups = {day for rollup in read for day in rollup.days}
        unchanged = [name for day, known in days.items() if day not in in_rollups for name in known.files]
        unchanged += [name for rollup in read for name in kept[rollup]]
        # The time before the days is written again when a day goes into it.
        before = state.before if all(day >= hops.first_ms for day in going_on.keys() | anew.keys()) else ()
        (unchanged if before else moved).extend(state.before)
        missing = tuple(rollup for rollup in rollups.kept if rollup not in kept) if with_rows else ()
        task = HopTask(
            self._plan, end_ms, self._folder, state.version + 1, state.buckets, tuple(moved), tuple(unchanged), missing
        )
        counted = {
            day: HopDay(*count, hops.last_size(day))
            for day, count in anew.items()
            if count is not None and day >= hops.first_ms
        }
        days |= rewritten | counted
        return HopChange(self._by_bucket(spark, events, state.buckets), task, days, before, kept)

    def settled(self, change: HopChange) -> HopChange | None:
        """Return a change with its days complete, once its job is done.

        None if closed days have changed. Then the job has not read all that is needed: ask `change` for another change,
        without ``watch``.
        """
        if change.watched is None:
            return change
        found = change.watched.new_days()
        if found is None:
            return None
        hops = hops_of(self._plan, change.task.end_ms)
        new_days = {day: HopDay(*count, hops.last_size(day)) for day, count in found.items() if day >= hops.first_ms}
        return change._replace(days={**change.days, **new_days}, watched=None)

    def publish(self, change: HopChange, files: Iterable[str]) -> HopManifest:
        """Make a change the table's state, once its files are finished; then remove files that no state needs.

        Args:
            change: a change from `change`, settled if it was watched.
            files: the names of the files that the tasks wrote.

        Raises:
            UnavailableError: another run has changed the table meanwhile.
        """
        version = change.task.version
        manifest = self._manifest(change, files)
        unfinished = self._folder / f"unfinished-{secrets.token_hex(16)}"
        with unfinished.open("wb") as file:
            file.write(manifest.encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link never replaces an existing file, unlike a rename.
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

    def _manifest(self, change: HopChange, files: Iterable[str]) -> HopManifest:
        task = change.task
        written: dict[Span, list[str]] = {}
        for name in sorted(files):
            written.setdefault(span_of(name), []).append(name)
        days = {
            day: HopDay(known.events, known.checksum, known.hop_ms, known.files or tuple(written.get(Span(day), ())))
            for day, known in sorted(change.days.items())
        }
        before = change.before or tuple(written.get(Span(BEFORE_MS), ()))
        rollups = {
            **change.rollups,
            **{rollup: written.get(Span(rollup.start_ms, is_rollup=True), ()) for rollup in task.rollups},
        }
        of_manifest = tuple(HopRollup(*rollup, tuple(names)) for rollup, names in sorted(rollups.items()))
        return HopManifest(task.version, self._definition, task.end_ms, task.buckets, days, before, of_manifest)

    def _newest(self) -> int | None:
        """Return the version of the newest manifest; None if there is none."""
        versions = [int(match[1]) for path in self._folder.iterdir() if (match := _MANIFEST.fullmatch(path.name))]
        return max(versions, default=None)

    def _read(self, version: int) -> HopManifest | None:
        """Read a manifest; None if it is of an earlier format."""
        path = self._path(version)
        data = path.read_bytes()
        return None if data[:1] in _EARLIER_FORMATS else HopManifest.decode(data, str(path))

    def _path(self, version: int) -> Path:
        return self._folder / f"manifest-{version:08}"

    def _by_bucket(self, spark: SparkSession, events: DataFrame, buckets: int) -> DataFrame:
        """Return events by bucket, and a row without a hash for each bucket, as it may have no new event."""
        routing_key_of = F.array(*(F.lit(routing_key) for routing_key in routing_keys(buckets)))
        key_hash = F.xxhash64(*key_names(self._plan.group_by))
        bucket = F.pmod(key_hash, F.lit(buckets)).cast("int")
        of_events = events.select(
            F.get(routing_key_of, bucket).alias(ROUTING_KEY), key_hash.alias(KEY_HASH), *events.columns
        )
        of_buckets = spark.range(0, buckets, 1, 1).select(
            F.get(routing_key_of, F.col("id").cast("int")).alias(ROUTING_KEY),
            *(F.lit(None).cast(field.dataType).alias(field.name) for field in of_events.schema.fields[1:]),
        )
        together = of_events.unionByName(of_buckets).repartition(buckets, ROUTING_KEY)
        return together.sortWithinPartitions(KEY_HASH)

    def _remove_older(self, manifest: HopManifest) -> None:
        """Keep this state, and the one before for its readers; remove all other files up to this version.

        Those include the files that a dead run left: another run has since written their version.
        """
        kept = set(manifest.files)
        if self._path(manifest.version - 1).exists():
            former = self._read(manifest.version - 1)
            kept |= set() if former is None else set(former.files)
        for path in list(self._folder.iterdir()):
            written_for, of_manifest = version_of(path.name), _MANIFEST.fullmatch(path.name)
            is_old_file = written_for is not None and written_for <= manifest.version and path.name not in kept
            if is_old_file or (of_manifest is not None and int(of_manifest[1]) < manifest.version - 1):
                path.unlink(missing_ok=True)


def _buckets(spark: SparkSession, events: int) -> int:
    """Return the number of buckets for the keys of so many events."""
    most = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return min(most, 1 + events // _EVENTS_A_BUCKET)


def _rollups(state: HopManifest) -> dict[Rollup, tuple[str, ...]]:
    """Return the files of a state's rollups."""
    return {Rollup(rollup.start_ms, rollup.end_ms): rollup.files for rollup in state.rollups}


def _continued_days(
    hops: Hops, going_on: Mapping[int, HopDay], intact: Mapping[Rollup, tuple[str, ...]]
) -> tuple[dict[int, HopDay], dict[int, HopDay]]:
    """Return the days that keep their files or take those of their rollup, and the days to write again in larger hops.

    Args:
        hops: the hops of the new end.
        going_on: the days of the former state; those before all hops are left out.
        intact: the files of the rollups whose days have not changed.
    """
    with_files: dict[int, HopDay] = {}
    rewritten: dict[int, HopDay] = {}
    for day, known in going_on.items():
        size = hops.last_size(day)
        if day < hops.first_ms:
            continue
        if known.hop_ms == size:
            with_files[day] = known
        elif size == DAY_MS and (merged := intact.get(Rollup(day, day + DAY_MS))) is not None:
            with_files[day] = HopDay(known.events, known.checksum, size, merged)
        else:
            rewritten[day] = HopDay(known.events, known.checksum, size)
    return with_files, rewritten


def _known(state: HopManifest, from_ms: int) -> dict[int, DayCount]:
    """Return the counts of the days from a time on."""
    return {day: DayCount(had.events, had.checksum) for day, had in state.days.items() if day >= from_ms}


def _changed_days(state: HopManifest, found: Mapping[int, DayCount], from_ms: int) -> frozenset[int]:
    """Return the days to collect anew: those whose events have changed, and all from the table's end on."""
    known = _known(state, from_ms)
    open_day = state.end_ms // DAY_MS * DAY_MS
    changed = {day for day in found.keys() | known.keys() if found.get(day) != known.get(day)}
    return frozenset(changed | {day for day in found if day >= open_day} | {open_day})

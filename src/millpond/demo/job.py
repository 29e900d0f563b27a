"""The main job: a year of flights through every package, in stages that a killed run does not repeat.

    replay ──> stream (lookups, aircraft's day) ─────────────────────────┐
       ├─────> upload ──> tiles ──> answers of each day ──> check ───────┤
       └─────> expected answers          training set ───────────────────┴──> summary and picture

Each stage reads what earlier ones left in the workdir and leaves its own there; the manifest names a
stage only when its outputs are on disk. So the one invariant of a run: **giving the same command
again goes on where the last process stopped**, wherever that was. Within the Spark stages it is
Spark's checkpoint that knows how far they are.
"""

import contextlib
import datetime as dt
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.demo import answers, check, data, lookups, oracle, replay, report, spark_stages, stream
from millpond.demo.definitions import DAILY, STREAMED
from millpond.demo.feature_store import store_url
from millpond.demo.report import CacheCount, Display, Measure, Outcome
from millpond.demo.workdir import Asked, Workdir, open_workdir, replace_bytes, replace_json, replace_parquet
from millpond.errors import OptionError
from millpond.lookup import LookupTable
from millpond.masking import masked
from millpond.spark.features.check import EQUAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_SLICES, EVENTS_PER_SLICE = 24, 1000
"""A slice is a file and a micro-batch: of at least so many events, and so many slices at most."""


@dataclass
class Job:
    """One process's work on a run: the workdir, the display, and the seconds since they were last noted."""

    workdir: Workdir
    display: Display
    last_s: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        """The workdir's folder."""
        return self.workdir.path

    @contextlib.contextmanager
    def stage(self, name: str, text: str) -> Iterator[dict[str, Any] | None]:
        """Do a stage unless it is done: gives a dict for its facts, or None if there is nothing to do."""
        if self.workdir.done(name):
            yield None
            return
        self.display.stage(text)
        facts: dict[str, Any] = {}
        yield facts
        self.note_time()
        self.workdir.finish(name, facts)

    def step(self, measure: Measure) -> None:
        """Show one step of a stage, and note the time it took."""
        self.note_time()
        self.display.step(measure)

    def note_time(self) -> None:
        """Add the seconds since the last note to the run's."""
        now = time.monotonic()
        self.workdir.spend(now - self.last_s)
        self.last_s = now


def until_ms(text: str | None) -> int | None:
    """A date as the first moment of that day in UTC.

    Raises:
        OptionError: it is no date.

    >>> until_ms("2013-02-01")
    1359676800000
    """
    if text is None:
        return None
    try:
        day = dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise OptionError(f"--until {text!r}: expected a date such as 2013-02-01.") from error
    return int(day.timestamp() * 1000)


def replay_stage(job: Job) -> None:
    """Write the events as slices, and beside them what the stream looks up: planes and weather."""
    with job.stage("replay", "writing the flights as a stream of files") as facts:
        if facts is None:
            return
        asked = job.workdir.manifest.asked
        year = data.load()
        flights = replay.choose(year.flights, events=asked.events, until_ms=until_ms(asked.until))
        received = replay.receive(flights)
        lookups.write_planes(job.path, year.planes)
        lookups.write_weather(job.path, year.weather)
        slices = max(1, min(MOST_SLICES, flights.num_rows // EVENTS_PER_SLICE))
        facts["slices"] = replay.write_slices(received, job.path / "events", slices=slices)
        facts["events"] = flights.num_rows
        facts["out_of_order"] = replay.out_of_order(received)
        facts["batch_end_ms"] = replay.default_batch_end_ms(flights)


def stream_stage(job: Job, spark: "SparkSession") -> None:
    """Run the streaming query to the end of the slices."""
    with job.stage("stream", "streaming: looking up planes and weather, following each aircraft") as facts:
        if facts is None:
            return
        slices = stream.events_per_slice(job.path / "events")
        state = spark_stages.state_config(job.workdir.manifest.asked)
        with lookups.lookup_tables(job.path) as tables:
            counts = partial(_lookup_counts, tables)
            sink = stream.AircraftSink(job.path / "aircraft", slices, counts, time.monotonic, job.step)
            counted = spark_stages.follow_aircraft(spark, job.path, tables, sink, state)
        facts["spills"], facts["loads"] = counted.spills, counted.loads
        facts.update(stream.written(job.path / "aircraft"))


def _lookup_counts(tables: Mapping[str, LookupTable]) -> dict[str, CacheCount]:
    stats = {name: table.stats() for name, table in tables.items()}
    return {name: CacheCount(of.hit_count, of.miss_count) for name, of in stats.items()}


def features_stage(job: Job, spark: "SparkSession", url: str) -> None:
    """Upload the history of what is streamed, and stream its tiles after it."""
    batch_end_ms = job.workdir.facts("replay")["batch_end_ms"]
    for group_by in STREAMED:
        with job.stage(group_by.name, f"features of {group_by.name}: batch upload, then tiles") as facts:
            if facts is not None:
                spark_stages.upload_features(spark, job.path, group_by, batch_end_ms, url)
                spark_stages.stream_features(spark, job.path, group_by, batch_end_ms, url)


def expected_stage(job: Job) -> None:
    """Compute every answer from the raw events."""
    with job.stage("expected", "computing the right answers from the raw events, in DuckDB") as facts:
        if facts is not None:
            events = pq.read_table(job.path / "events")
            asked = check.requests(events, job.workdir.facts("replay")["batch_end_ms"])
            labels = events.select(["flight_id", "delayed_15"]).rename_columns(["request_id", "label"])
            replace_parquet(job.path / "expected.parquet", oracle.expected(asked, events))
            asked = asked.join(labels, "request_id").sort_by([("query_ms", "ascending"), ("request_id", "ascending")])
            replace_parquet(job.path / "requests.parquet", asked)


def day_stages(job: Job, spark: "SparkSession", url: str, day: int) -> None:
    """Upload what is uploaded each day, then ask for the flights of the day and check every answer."""
    day_ms = job.workdir.facts("replay")["batch_end_ms"] + day * data.DAY_MS
    with job.stage(f"daily-{day}", f"day {day + 1}: batch upload of {', '.join(g.name for g in DAILY)}") as facts:
        if facts is not None:
            for group_by in DAILY:
                spark_stages.upload_features(spark, job.path, group_by, day_ms, url)
    with job.stage(f"answers-{day}", f"day {day + 1}: asking for features and checking them") as facts:
        if facts is None:
            return
        asked = pq.read_table(job.path / "requests.parquet")
        asked = asked.filter((pc.field("query_ms") >= day_ms) & (pc.field("query_ms") < day_ms + data.DAY_MS))
        expected = check.by_request(pq.read_table(job.path / "expected.parquet"))
        log = job.path / "answers" / f"day-{day}"
        found = answers.ask_and_check(url, log, asked, expected, time.monotonic, job.step)
        facts.update(msgspec.to_builtins(found))


def training_stage(job: Job, spark: "SparkSession") -> None:
    """Make the training set of the same flights, and check every feature of it."""
    with job.stage("training", "making a training set of the same flights") as facts:
        if facts is None:
            return
        spark_stages.write_training_set(spark, job.path, pq.read_table(job.path / "requests.parquet"))
        expected = check.by_request(pq.read_table(job.path / "expected.parquet"))
        names = ["request_id", *next(iter(expected.values()))]
        made = check.by_request(pq.read_table(job.path / "training", columns=names))
        wrong = check.mismatches("training set", expected, made)
        facts["rows"] = len(made)
        facts["checked"] = sum(map(len, made.values()))
        facts["mismatch_count"] = len(wrong)
        facts["mismatches"] = list(map(str, wrong[: answers.MOST_LISTED]))


def check_stage(job: Job, spark: "SparkSession") -> None:
    """Compare the logged answers with the training set at the same times."""
    with job.stage("check", "comparing the logged answers with the training set") as facts:
        if facts is None:
            return
        found = spark_stages.check_answers(spark, job.path)
        counts = [asdict(feature) for feature in found.features.values()]
        facts["consistency"] = {
            kind: sum(count[kind] for count in counts)
            for kind in ("equal", "arrived_later", "different", "unavailable")
        }
        facts["mismatches"] = [f"logged answer: {one}" for one in found.examples if one.kind != EQUAL]


@dataclass(frozen=True)
class Run:
    """What came of a run: the outcome; further facts and the first mismatches in words; a request to try; the store."""

    outcome: Outcome
    facts: dict[str, str]
    mismatches: list[str]
    example: str
    store: str


def run(asked: Asked, path: Path, *, quiet: bool, store: str | None = None) -> Run:
    """Do what is left of a run, write its summary and picture, and give what came of it.

    Args:
        asked: what to do.
        path: the workdir.
        quiet: show no progress.
        store: the URL of the store of the features, with its password; None is LMDB in the workdir.

    Raises:
        MillpondError: what was asked, the workdir, the data or the disk does not allow it.
    """
    until_ms(asked.until)
    if asked.events is not None and asked.events < 1:
        raise OptionError(f"--events {asked.events}: expected at least 1.")
    with open_workdir(path, asked) as workdir, Display(quiet=quiet) as display:
        job = Job(workdir, display)
        url = store_url(store, path, workdir.manifest.run)
        if all(map(workdir.done, _STAGES)):
            display.stage(f"this run is finished; remove {path} to do it again")
        replay_stage(job)
        before = sum(measure.items for measure in stream.written_measures(path / "aircraft"))
        display.expect(workdir.facts("replay")["events"], before=before)
        if not all(map(workdir.done, _STAGES)):
            with spark_stages.spark_session(path) as spark:
                stream_stage(job, spark)
                features_stage(job, spark, url)
                expected_stage(job)
                for day in range(check.DAYS):
                    day_stages(job, spark, url, day)
                training_stage(job, spark)
                check_stage(job, spark)
        job.note_time()
        return summarize(workdir, url)


_DAY_STAGES = [f"{stage}-{day}" for day in range(check.DAYS) for stage in ("daily", "answers")]
_STAGES = ("stream", *(group_by.name for group_by in STREAMED), "expected", *_DAY_STAGES, "training", "check")


def summarize(workdir: Workdir, url: str) -> Run:
    """Write summary.json and summary.png from what the stages left."""
    replayed, trained, compared = (workdir.facts(stage) for stage in ("replay", "training", "check"))
    answered = [msgspec.convert(workdir.facts(f"answers-{day}"), answers.Facts) for day in range(check.DAYS)]
    measures = stream.written_measures(workdir.path / "aircraft")
    measures += [measure for day in answered for measure in day.measures]
    counts, consistency = report.total_counts(measures), compared["consistency"]
    seconds = workdir.manifest.spent_seconds
    outcome = Outcome(
        events=replayed["events"],
        seconds=round(seconds, 3),
        events_per_second=round(replayed["events"] / seconds, 1),
        features_checked=sum(day.checked for day in answered) + trained["checked"],
        mismatches=sum(day.mismatch_count for day in answered) + trained["mismatch_count"] + consistency["different"],
        caches=report.caches_json(report.total_caches(measures)),
        resumed=workdir.resumed,
        fetcher=counts,
        consistency=consistency,
    )
    replace_json(workdir.path / "summary.json", outcome)
    drawn = report.picture(measures, f"{outcome.events:,} flights: throughput and hit rates")
    replace_bytes(workdir.path / "summary.png", drawn)
    batch_end = dt.datetime.fromtimestamp(replayed["batch_end_ms"] / 1000, dt.UTC)
    facts = {
        "micro-batches": f"{workdir.facts('stream')['batches']:,}",
        "records out of order": f"{replayed['out_of_order']:,}",
        "rows of aircraft's days": f"{workdir.facts('stream')['rows']:,}",
        "batch end": f"{batch_end:%Y-%m-%d %H:%MZ}",
        "features in": masked(url),
        "requests": f"{sum(day.requests for day in answered):,} in-process, as many over HTTP",
        "gets of batch rows": report.saved(counts, "batch_gets", "batch_gets_saved"),
        "tiles decoded": report.saved(counts, "tiles_read", "tiles_saved"),
        "rows of the training set": f"{trained['rows']:,}",
    }
    if workdir.manifest.asked.backend == "spillable":
        streamed = workdir.facts("stream")
        facts["key groups moved"] = f"{streamed['spills']:,} to disk, {streamed['loads']:,} back"
    wrong = [*(text for day in answered for text in day.mismatches), *trained["mismatches"], *compared["mismatches"]]
    example = next((day.example for day in reversed(answered) if day.example), "")
    return Run(outcome, facts, wrong[: answers.MOST_LISTED], example, url)

"""An upload from a hop table writes the bytes that an upload from the events does."""

import random

import pytest

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.features import DAY_MS, HOUR_MS, Aggregation, EntitySource, Field, GroupBy, compile_group_by
from millpond.kv import Get, LmdbStore
from millpond.metrics import MemoryRecorder
from millpond.spark.features.backfill import backfill
from millpond.spark.features.hop_table import HopManifest, HopTable
from millpond.spark.features.upload import upload

pytestmark = pytest.mark.spark

B = 16_000 * DAY_MS
NOW = B + 40 * DAY_MS
SCHEMA = "k string, x double, s string, m map<string,double>, time_ms bigint"
GROUP_BY = GroupBy(
    "spent",
    keys=(Field("k", "string"),),
    inputs=(Field("x", "double"), Field("s", "string"), Field("m", "map<string,double>")),
    aggregations=(
        Aggregation("count", windows=("1h", "7d")),
        Aggregation("average", "x", ("1d", "12d", None)),
        Aggregation("variance", "x", ("1d",)),
        Aggregation("sum", "x", ("7d",), buckets=("s",)),
        Aggregation("unique_count", "s", ("12d",)),
        Aggregation("last_k", "s", ("7d",), k=2),
        Aggregation("max", "m", ("7d",)),
    ),
)
PLAN = compile_group_by(GROUP_BY)
KEYS = "abcdef"


def drawn(rng, count, begin, end):
    return [
        (
            rng.choice((*KEYS, None)),
            rng.choice((None, rng.gauss(0, 30))),
            rng.choice((None, "u", "v")),
            rng.choice((None, {"p": rng.random(), "q": 1.0})),
            rng.choice((None, *(rng.randrange(begin, end) for _ in range(9)))),
        )
        for _ in range(count)
    ]


class Uploads:
    """Uploads into one store, with or without a hop table."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder / "hops"
        self.store = LmdbStore(folder / "kv", sync=False)
        self.landed = 0
        self.recorder = MemoryRecorder()

    def table_of(self, rows, group_by=GROUP_BY):
        return {group_by.name: self.spark.createDataFrame(rows, SCHEMA)}

    def rows(self, rows, end, *, hop_table, group_by=GROUP_BY):
        self.landed += 1
        info = upload(
            group_by,
            end,
            self.store,
            tables=self.table_of(rows, group_by),
            landing_ms=NOW + self.landed,
            clock=lambda: NOW,
            recorder=self.recorder,
            hop_table=self.folder if hop_table else None,
        )
        keys = [compile_group_by(group_by).encode_key((k,)) for k in KEYS]
        found = self.store.get_many([Get(info.batch_dataset, key) for key in keys])
        return info.rows, info.checksum, [row[0].value if row else None for row in found]

    def check(self, rows, end, group_by=GROUP_BY):
        """Both uploads; gives how many events that from the table read."""
        before = self.recorder.total("millpond_upload_events_total", name=group_by.name)
        from_table = self.rows(rows, end, hop_table=True, group_by=group_by)
        read = self.recorder.total("millpond_upload_events_total", name=group_by.name) - before
        assert from_table == self.rows(rows, end, hop_table=False, group_by=group_by)
        return read

    def files(self):
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def uploads(spark, tmp_path):
    made = Uploads(spark, tmp_path)
    yield made
    made.store.close()


def events_between(rows, begin, end):
    return sum(row[4] is not None and begin <= row[4] < end for row in rows)


def test_further_days_read_their_own_events_and_give_equal_rows(uploads):
    rng = random.Random(1)
    rows = drawn(rng, 300, B - 20 * DAY_MS, B)
    assert uploads.check(rows, B) == len(rows)
    for end in (B + DAY_MS, B + DAY_MS + 7 * HOUR_MS, B + 3 * DAY_MS, B + 30 * DAY_MS):
        begin = HopTable(PLAN, uploads.folder).state().end_ms // DAY_MS * DAY_MS
        rows += drawn(rng, 40, begin, end)
        assert uploads.check(rows, end) == events_between(rows, begin, end)


def test_days_with_late_events_are_collected_anew(uploads):
    rng = random.Random(2)
    rows = drawn(rng, 200, B - 20 * DAY_MS, B)
    uploads.check(rows, B)
    rows.append(("a", 1.0, "w", None, B - 2 * DAY_MS))
    day = (B - 2 * DAY_MS) // DAY_MS * DAY_MS
    assert uploads.check(rows, B) == events_between(rows, day, day + DAY_MS)
    assert uploads.check(rows, B) == 0
    rows = [row for row in rows if row[4] is None or not B - DAY_MS <= row[4] < B]
    assert uploads.check(rows, B + DAY_MS) == 0


def test_a_backfill_takes_in_events_of_any_age(uploads):
    rng = random.Random(3)
    rows = drawn(rng, 200, B - 20 * DAY_MS, B)
    first = backfill(GROUP_BY, (B - DAY_MS, B), uploads.folder, tables=uploads.table_of(rows))
    assert (first.version, first.end_ms) == (1, B)
    assert uploads.check(rows, B) == 0
    for age in (8, 19):
        rows.append(("b", 5.0, "w", None, B - age * DAY_MS))
        begin = (B - age * DAY_MS) // DAY_MS * DAY_MS
        state = backfill(GROUP_BY, (begin, begin + DAY_MS), uploads.folder, tables=uploads.table_of(rows))
        assert state.end_ms == B
        assert uploads.check(rows, B) == 0


def test_a_snapshot_goes_on_from_its_table(uploads):
    daily = GroupBy(
        "daily", GROUP_BY.keys, GROUP_BY.inputs, (Aggregation("average", "x", ("1d", "7d")),), accuracy="snapshot"
    )
    rng = random.Random(4)
    rows = drawn(rng, 100, B - 9 * DAY_MS, B)
    uploads.check(rows, B, daily)
    rows += drawn(rng, 20, B, B + DAY_MS)
    assert uploads.check(rows, B + DAY_MS, daily) == events_between(rows, B, B + DAY_MS)


def test_a_changed_definition_builds_the_table_anew(uploads):
    rows = drawn(random.Random(5), 100, B - 9 * DAY_MS, B)
    uploads.check(rows, B)
    more = GroupBy("spent", GROUP_BY.keys, GROUP_BY.inputs, (*GROUP_BY.aggregations, Aggregation("min", "x")))
    assert uploads.check(rows, B, more) == len(rows)


def test_an_earlier_batch_end_leaves_the_table_as_it_is(uploads):
    rows = drawn(random.Random(6), 100, B - 9 * DAY_MS, B)
    uploads.check(rows, B)
    before = uploads.files()
    uploads.check(rows, B - DAY_MS)
    assert uploads.files() == before


def test_a_run_that_dies_leaves_the_former_state(uploads):
    rng = random.Random(7)
    rows = drawn(rng, 100, B - 9 * DAY_MS, B)
    uploads.check(rows, B)
    before, state = uploads.files(), HopTable(PLAN, uploads.folder).state()
    bad = [*rows, ("a", float("nan"), "u", None, B + 1)]
    with pytest.raises(DataError, match=r"'spent'.*'x'"):
        uploads.rows(bad, B + DAY_MS, hop_table=True)
    with pytest.raises(DataError, match=r"'x'.*stays as it was"):
        backfill(GROUP_BY, (B, B + DAY_MS), uploads.folder, tables=uploads.table_of(bad))
    assert HopTable(PLAN, uploads.folder).state() == state
    assert before <= uploads.files()
    left_by_the_dead = uploads.files() - before
    assert left_by_the_dead
    rows += drawn(rng, 20, B, B + DAY_MS)
    assert uploads.check(rows, B + DAY_MS) == events_between(rows, B, B + DAY_MS)
    assert not left_by_the_dead & uploads.files()


def test_only_the_last_two_states_are_kept(uploads):
    rows = drawn(random.Random(8), 100, B - 9 * DAY_MS, B)
    for number in range(4):
        uploads.check(rows, B + number * DAY_MS)
    table = HopTable(PLAN, uploads.folder)
    kept = {"manifest-00000003", "manifest-00000004"}
    files = {
        name
        for manifest in kept
        for name in HopManifest.decode((uploads.folder / manifest).read_bytes(), manifest).files
    }
    assert uploads.files() == kept | files
    assert set(table.state().files) <= files


def test_of_two_runs_at_once_one_is_refused(uploads, spark):
    rows = drawn(random.Random(9), 20, B - 9 * DAY_MS, B)
    table = HopTable(PLAN, uploads.folder)
    events = hop_table_events(spark, uploads, rows)
    first, second = table.change(spark, events, B), table.change(spark, events, B)
    published = table.publish(first, [])
    with pytest.raises(UnavailableError, match="another run"):
        table.publish(second, [])
    assert table.state() == published


def hop_table_events(spark, uploads, rows):
    from millpond.spark.features.sources import batch_rows

    return batch_rows(spark, GROUP_BY, B, uploads.table_of(rows))


def test_what_has_no_hop_table_is_refused(uploads, tmp_path):
    values = GroupBy("spent", GROUP_BY.keys, GROUP_BY.inputs, accuracy="snapshot")
    entity = GroupBy(
        "spent",
        GROUP_BY.keys,
        GROUP_BY.inputs,
        (Aggregation("count"),),
        sources=(EntitySource("people", "changes"),),
    )
    for group_by, named in ((values, "no aggregations"), (entity, "event sources")):
        with pytest.raises(OptionError, match=named):
            HopTable(compile_group_by(group_by), tmp_path / "hops")
    for days in ((B + 1, B + DAY_MS), (B, B), (B, B + 1)):
        with pytest.raises(OptionError, match=str(days[0] if days[1] != B + 1 else days[1])):
            backfill(GROUP_BY, days, tmp_path / "hops", tables={})


MANIFEST = HopManifest(3, "0123.4567", B, {B - DAY_MS: (5, "123")}, ("hops-00000003-00.parquet",))
GOLDEN = MANIFEST.encode()


def test_a_manifest_is_read_back_and_an_altered_one_is_refused():
    assert HopManifest.decode(GOLDEN, "m") == MANIFEST
    for place in range(len(GOLDEN)):
        altered = bytearray(GOLDEN)
        altered[place] ^= 1
        with pytest.raises(CorruptionError, match="manifest m"):
            HopManifest.decode(bytes(altered), "m")

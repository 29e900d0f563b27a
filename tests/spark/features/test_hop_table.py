"""An upload from a hop table writes the bytes that an upload from the events does."""

import random

import pytest

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.features import DAY_MS, HOUR_MS, Aggregation, EntitySource, GroupBy, compile_group_by
from millpond.kv import LmdbStore
from millpond.spark.features.backfill import backfill
from millpond.spark.features.hops.batch_rows_of_keys import RowCounts
from millpond.spark.features.hops.days import WatchedDays, count_days, in_days
from millpond.spark.features.hops.manifest import HopManifest
from millpond.spark.features.hops.table import HopTable
from millpond.spark.features.sources import batch_rows
from tests.spark.features.hop_uploads import GROUP_BY, KEYS, PLAN, B, altered, drawn, events_between

pytestmark = pytest.mark.spark


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


def test_days_are_counted_by_the_job_that_reads_them_unless_closed_days_have_changed(uploads, spark, monkeypatch):
    counted = []

    def counting(events):
        counted.append(count_days(events))
        return counted[-1]

    monkeypatch.setattr("millpond.spark.features.hops.table.count_days", counting)
    rng = random.Random(15)
    rows = drawn(rng, 100, B - 9 * DAY_MS, B)
    uploads.check(rows, B)
    rows += drawn(rng, 40, B, B + 2 * DAY_MS)
    uploads.check(rows, B + 2 * DAY_MS)
    assert len(counted) == 1
    expected = count_days(hop_table_events(spark, uploads, rows).where(f"time_ms >= {B}"))
    days = HopTable(PLAN, uploads.folder).state().days
    assert {day: (days[day].events, days[day].checksum) for day in expected} == expected
    rows.append(("z", 1.0, "w", None, B - DAY_MS))
    assert rows.pop(next(at for at, row in enumerate(rows) if row[4] and B - DAY_MS <= row[4] < B))
    uploads.check(rows, B + 3 * DAY_MS)
    assert len(counted) == 2


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


def test_an_earlier_batch_end_of_another_store_leaves_the_table_as_it_is(uploads, tmp_path):
    rows = drawn(random.Random(6), 100, B - 9 * DAY_MS, B)
    uploads.check(rows, B)
    before = uploads.files()
    uploads.store = LmdbStore(tmp_path / "another", sync=False)
    uploads.check(rows, B - DAY_MS)
    assert uploads.files() == before


def test_a_run_that_dies_leaves_the_former_state(uploads, spark):
    rng = random.Random(7)
    rows = drawn(rng, 100, B - 20 * DAY_MS, B)
    uploads.check(rows, B)
    before, state = uploads.files(), HopTable(PLAN, uploads.folder).state()
    bad = [*rows, ("a", float("nan"), "u", None, B + 1)]
    with pytest.raises(DataError, match=r"'spent'.*'x'"):
        uploads.rows(bad, B + DAY_MS, hop_table=True)
    with pytest.raises(DataError, match=r"'x'.*stays as it was"):
        backfill(GROUP_BY, (B, B + DAY_MS), uploads.folder, tables=uploads.table_of(bad))
    assert HopTable(PLAN, uploads.folder).state() == state
    change = HopTable(PLAN, uploads.folder).change(spark, hop_table_events(spark, uploads, rows), B + DAY_MS)
    change.task.attempt().write_files(change.rows.toArrow().to_batches(), RowCounts())
    left_by_the_dead = uploads.files() - before
    assert left_by_the_dead
    assert before < uploads.files()
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


def test_only_the_files_of_days_that_change_are_written(uploads):
    rng = random.Random(11)
    rows = drawn(rng, 300, B - 20 * DAY_MS, B)
    uploads.check(rows, B)
    first = HopTable(PLAN, uploads.folder).state()
    rows += drawn(rng, 20, B, B + DAY_MS)
    rows.append(("a", 2.0, "u", None, B - 2 * DAY_MS))
    uploads.check(rows, B + DAY_MS)
    second = HopTable(PLAN, uploads.folder).state()
    late, oldest = B - 2 * DAY_MS, min(first.days)
    same = {day for day in first.days.keys() & second.days.keys() if first.days[day].files == second.days[day].files}
    coarser = {day for day in first.days if day in second.days and first.days[day].hop_ms < second.days[day].hop_ms}
    assert second.days[B].files
    assert first.days.keys() - same == {late, oldest, *coarser}
    assert oldest not in second.days
    assert second.before != first.before
    assert len(coarser) <= 3


def test_a_task_that_runs_twice_makes_equal_rows_and_files_of_its_own(uploads, spark):
    rows = drawn(random.Random(12), 100, B - 20 * DAY_MS, B)
    table = HopTable(PLAN, uploads.folder)
    change = table.change(spark, hop_table_events(spark, uploads, rows), B)
    batches = change.rows.toArrow().to_batches()
    attempts = [change.task.attempt() for _ in range(2)]
    made = [dict(attempt.batch_rows(batches, RowCounts())) for attempt in attempts]
    assert made[0] == made[1]
    assert len(made[0]) == len(KEYS)
    assert not set(attempts[0].files) & set(attempts[1].files)
    state = table.publish(change, attempts[1].files)
    assert set(state.files) == set(attempts[1].files)
    assert uploads.files() == {*attempts[1].files, "manifest-00000001"}


def test_keys_in_several_buckets_give_the_same_rows(uploads, monkeypatch):
    monkeypatch.setattr("millpond.spark.features.hops.table._EVENTS_A_BUCKET", 50)
    rng = random.Random(13)
    rows = drawn(rng, 200, B - 20 * DAY_MS, B)
    uploads.check(rows, B)
    assert HopTable(PLAN, uploads.folder).state().buckets == 2
    rows += drawn(rng, 40, B, B + DAY_MS)
    assert uploads.check(rows, B + DAY_MS) == events_between(rows, B, B + DAY_MS)


def test_a_job_gives_the_events_of_new_days_and_counts_those_of_all(spark):
    borders = [day * DAY_MS + step for day in (-2, -1, 0, 1, 2) for step in (-1, 0, 1)]
    events = spark.createDataFrame([(time_ms,) for time_ms in borders], "time_ms bigint").coalesce(1)
    new_days = [-DAY_MS, DAY_MS]
    expected = count_days(events)
    watched = WatchedDays({day: count for day, count in expected.items() if day not in new_days}, new_days)
    given = {row.time_ms for row in watched.watch(events).collect()}
    assert given == {row.time_ms for row in events.where(in_days(new_days)).collect()}
    assert watched.new_days() == {day: expected[day] for day in new_days}


@pytest.mark.parametrize(
    ("type_", "before", "after"),
    [
        ("bigint", (5, None), (None, 5)),
        ("array<bigint>", ([None, 7], None), ([7, None], None)),
        ("array<bigint>", ([], None), (None, [])),
        ("map<string,bigint>", ({"a": None, "b": 7}, None), ({"a": 7, "b": None}, None)),
    ],
)
def test_a_null_that_moved_is_a_change(spark, type_, before, after):
    schema = f"time_ms bigint, x {type_}, y {type_}"
    counts = [count_days(spark.createDataFrame([(0, *values)], schema))[0] for values in (before, after, before)]
    assert counts[0].checksum != counts[1].checksum
    assert counts[0] == counts[2]


def test_a_key_without_new_events_stays_in_the_batch(uploads):
    rows = [("a", 1.0, "u", None, B - HOUR_MS), ("b", 2.0, "u", None, B - 12 * DAY_MS)]
    uploads.check(rows, B)
    assert uploads.check(rows, B + DAY_MS) == 0
    assert uploads.check([*rows, ("a", 3.0, "u", None, B + DAY_MS)], B + 2 * DAY_MS) == 1


def test_without_a_window_of_all_time_old_days_leave_the_table(uploads):
    windows = GroupBy("daily", GROUP_BY.keys, GROUP_BY.inputs, (Aggregation("sum", "x", ("1d", "7d")),))
    rng = random.Random(14)
    rows = drawn(rng, 200, B - 20 * DAY_MS, B)
    for end in (B, B + DAY_MS, B + 12 * DAY_MS):
        uploads.check(rows, end, windows)
        state = HopTable(compile_group_by(windows), uploads.folder).state()
        assert not state.before
        assert all(day >= end - 8 * DAY_MS for day in state.days)
        rows += drawn(rng, 20, end, end + DAY_MS)


def test_sketches_go_through_the_table(uploads):
    windows = ("1d", "12d", None)
    sketched = GroupBy(
        "sketched",
        GROUP_BY.keys,
        GROUP_BY.inputs,
        (
            Aggregation("approx_unique_count", "x", windows),
            Aggregation("approx_percentile", "x", windows, percentiles=(0.25, 0.5)),
            Aggregation("approx_histogram_k", "s", windows, k=2),
        ),
    )
    rng = random.Random(15)
    rows = drawn(rng, 500, B - 20 * DAY_MS, B)
    # Few enough for each key that all three are exact and merge to the bit.
    uploads.check(rows, B, sketched)
    rows += drawn(rng, 60, B, B + DAY_MS)
    assert uploads.check(rows, B + DAY_MS, sketched) == events_between(rows, B, B + DAY_MS)


def test_sketches_of_many_values_stay_within_their_bounds(uploads):
    plan = compile_group_by(
        GroupBy(
            "large",
            GROUP_BY.keys,
            GROUP_BY.inputs,
            (
                Aggregation("approx_unique_count", "x", ("12d", None)),
                Aggregation("approx_percentile", "x", ("12d", None), percentiles=(0.5,)),
            ),
        )
    )
    rng = random.Random(16)
    rows = [("a", float(number), "u", None, rng.randrange(B - 20 * DAY_MS, B)) for number in range(3_000)]
    uploads.rows(rows, B, hop_table=True, group_by=plan.group_by)
    rows += [("a", float(number), "u", None, B + number) for number in range(3_000, 4_000)]
    _, _, stored = uploads.rows(rows, B + DAY_MS, hop_table=True, group_by=plan.group_by)
    end = B + DAY_MS
    found = plan.finish(end, end, plan.decode_batch(plan.encode_key(("a",)), stored[0]), [])
    recent = sorted(x for _, x, _, _, time_ms in rows if time_ms >= end - 12 * DAY_MS)
    assert found["x_approx_unique_count"] == pytest.approx(4_000, rel=0.08)
    assert found["x_approx_unique_count_12d"] == pytest.approx(len(recent), rel=0.08)
    for values, name in ((sorted(row[1] for row in rows), ""), (recent, "_12d")):
        (median,) = found[f"x_approx_percentile{name}"]
        rank = sum(value <= median for value in values) / len(values)
        assert rank == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("damage", ["removed", "torn", "altered"])
def test_a_file_that_cannot_be_read_is_named(uploads, spark, damage):
    rows = drawn(random.Random(17), 100, B - 20 * DAY_MS, B)
    table = HopTable(PLAN, uploads.folder)
    events = hop_table_events(spark, uploads, rows)
    change = table.change(spark, events, B)
    attempt = change.task.attempt()
    attempt.write_files(change.rows.toArrow().to_batches(), RowCounts())
    state = table.publish(change, attempt.files)
    file = uploads.folder / state.days[B - DAY_MS].files[0]
    data = file.read_bytes()
    file.unlink()
    if damage != "removed":
        file.write_bytes(data[: len(data) // 2] if damage == "torn" else altered(data, 60))
    following = table.change(spark, events, B)
    with pytest.raises(CorruptionError, match=rf"{file.name}.*remove the folder"):
        dict(following.task.attempt().batch_rows(following.rows.toArrow().to_batches(), RowCounts()))


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


def test_a_backfill_into_the_future_is_refused(uploads):
    """A table that ends later than now would hide the events that come until then."""
    tables = uploads.table_of([("a", 1.0, None, None, B - 1)])
    with pytest.raises(OptionError, match=r"'spent'.*future"):
        backfill(GROUP_BY, (B - DAY_MS, B + DAY_MS), uploads.folder, tables=tables, clock=lambda: B)
    assert backfill(GROUP_BY, (B - DAY_MS, B), uploads.folder, tables=tables, clock=lambda: B).end_ms == B

"""An upload reads rollups in place of their days, and they hold what their days hold."""

import random

import pytest

from millpond.features import DAY_MS, HOUR_MS, Aggregation, GroupBy, compile_group_by
from millpond.spark.features.backfill import backfill
from millpond.spark.features.hops.table import HopTable
from millpond.spark.features.sources import batch_rows
from tests.spark.features.hop_uploads import GROUP_BY, B, drawn, events_between

pytestmark = pytest.mark.spark


LONG = GroupBy(
    "long",
    GROUP_BY.keys,
    GROUP_BY.inputs,
    (
        Aggregation("count", windows=("1h", "7d", "40d")),
        Aggregation("average", "x", ("1d", "40d", None)),
        Aggregation("unique_count", "s", ("40d",)),
        Aggregation("last_k", "s", ("20d",), k=2),
    ),
)
LONG_PLAN = compile_group_by(LONG)


def read_files(uploads, spark, end, group_by=LONG):
    """The files that an upload reads, and the rollups that it writes."""
    plan = compile_group_by(group_by)
    events = batch_rows(spark, group_by, end, uploads.table_of([], group_by))
    task = HopTable(plan, uploads.folder).change(spark, events, end, with_rows=True, watch=True).task
    return {*task.moved, *task.unchanged}, task.rollups


def test_a_further_day_reads_rollups_in_place_of_their_days(uploads, spark):
    rng = random.Random(21)
    rows = drawn(rng, 400, B - 45 * DAY_MS, B)
    uploads.check(rows, B, LONG)
    state = HopTable(LONG_PLAN, uploads.folder).state()
    assert {len(range(rollup.start_ms, rollup.end_ms, DAY_MS)) for rollup in state.rollups} == {1, 4, 2}
    read, _ = read_files(uploads, spark, B + DAY_MS)
    assert len(read) <= 25 < sum(bool(day.files) for day in state.days.values())
    for name in set(state.files) - read:
        (uploads.folder / name).unlink()
    rows += drawn(rng, 40, B, B + DAY_MS)
    assert uploads.check(rows, B + DAY_MS, LONG) == events_between(rows, B, B + DAY_MS)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))])
def test_rollups_hold_what_their_days_hold_whatever_comes_late(uploads, seed):
    rng = random.Random(seed)
    end = B
    rows = drawn(rng, 300, B - 60 * DAY_MS, B)
    for _ in range(6):
        uploads.check(rows, end, LONG)
        state = HopTable(LONG_PLAN, uploads.folder).state()
        days = [day for rollup in state.rollups for day in range(rollup.start_ms, rollup.end_ms, DAY_MS)]
        assert len(days) == len(set(days))
        assert days
        late = rng.choice((1, 2, rng.randrange(3, 38)))
        begin = (end - late * DAY_MS) // DAY_MS * DAY_MS
        rows += drawn(rng, 5, begin, begin + DAY_MS)
        if late > 2 and rng.random() < 0.8:
            backfill(LONG, (begin, begin + DAY_MS), uploads.folder, tables=uploads.table_of(rows, LONG))
        elif late > 2:
            rows = [row for row in rows if row[4] is None or not begin <= row[4] < begin + DAY_MS]
            backfill(LONG, (begin, begin + DAY_MS), uploads.folder, tables=uploads.table_of(rows, LONG))
        step = rng.choice((DAY_MS, DAY_MS, 7 * HOUR_MS, 31 * HOUR_MS, 9 * DAY_MS))
        rows += drawn(rng, 30, end, end + step)
        end += step
    uploads.check(rows, end, LONG)


def test_a_late_event_drops_the_rollups_of_its_day_alone(uploads):
    rows = drawn(random.Random(22), 300, B - 45 * DAY_MS, B)
    uploads.check(rows, B, LONG)
    table = HopTable(LONG_PLAN, uploads.folder)
    first = {(rollup.start_ms, rollup.end_ms): rollup.files for rollup in table.state().rollups}
    day = B - 14 * DAY_MS
    rows.append(("a", 1.0, "w", None, day))
    backfill(LONG, (day, day + DAY_MS), uploads.folder, tables=uploads.table_of(rows, LONG))
    second = {(rollup.start_ms, rollup.end_ms): rollup.files for rollup in table.state().rollups}
    (dropped,) = first.keys() - second.keys()
    assert dropped[0] <= day < dropped[1]
    uploads.check(rows, B, LONG)
    third = {(rollup.start_ms, rollup.end_ms): rollup.files for rollup in table.state().rollups}
    assert third.keys() == first.keys()
    assert {rollup for rollup in first if third[rollup] != first[rollup]} == {dropped}


def test_a_table_without_rollups_gets_them_from_an_upload(uploads):
    rng = random.Random(23)
    rows = drawn(rng, 200, B - 45 * DAY_MS, B)
    backfill(LONG, (B - DAY_MS, B), uploads.folder, tables=uploads.table_of(rows, LONG))
    table = HopTable(LONG_PLAN, uploads.folder)
    assert not table.state().rollups
    rows += drawn(rng, 40, B, B + DAY_MS)
    assert uploads.check(rows, B + DAY_MS, LONG) == events_between(rows, B, B + DAY_MS)
    assert table.state().rollups


def test_a_day_takes_its_merged_hops_from_its_rollup(uploads):
    rows = drawn(random.Random(24), 300, B - 45 * DAY_MS, B)
    uploads.check(rows, B, LONG)
    table = HopTable(LONG_PLAN, uploads.folder)
    first = table.state()
    uploads.check(rows, B + DAY_MS, LONG)
    second = table.state()
    of_rollups = {
        rollup.start_ms: rollup.files for rollup in first.rollups if rollup.end_ms == rollup.start_ms + DAY_MS
    }
    coarser = [day for day in first.days if day in second.days and first.days[day].hop_ms < second.days[day].hop_ms]
    taken = [day for day in coarser if second.days[day].hop_ms == DAY_MS]
    assert taken
    assert all(second.days[day].files == of_rollups[day] for day in taken)

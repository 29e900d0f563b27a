"""Rows that come and go, against a plain table: the rows that stand, and the rule for each window."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.features import Aggregation, Field, GroupBy
from millpond.features.latest_rows import latest_row
from millpond.features.point_in_time.changing_rows import ChangingRows
from millpond.features.types import parse_type
from tests.features import oracle

DAY, HOUR = oracle.DAY, oracle.HOUR
WINDOWS = ("30m", "5h", "3d", None)


def group_by(*operations, **options):
    return GroupBy(
        "any",
        keys=(Field("user", "string"),),
        inputs=(Field("price", "long"),),
        aggregations=tuple(Aggregation(operation, "price", WINDOWS) for operation in operations),
        **options,
    )


def answered(definition, changes, queries, batch_rows=3):
    """`changes` are (user, counting from or None, time, price, is_delete); `queries` are (user, time)."""
    rows = [(user, counting, False, price, time, gone, None) for user, counting, time, price, gone in changes]
    rows += [(user, time, True, None, None, None, number) for number, (user, time) in enumerate(queries)]
    rows.sort(key=lambda row: (row[0], -(1 << 60) if row[1] is None else row[1], not row[2]))
    types = (pa.string(), pa.int64(), pa.bool_(), pa.int64(), pa.int64(), pa.bool_(), pa.int64())
    columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]
    table = pa.table(columns, names=["key", "order", "is_query", "price", "time", "is_delete", "number"])
    found = {}
    for answers in ChangingRows(definition).answers(table.to_batches(max_chunksize=batch_rows)):
        for row in answers.to_pylist():
            found[row.pop("number")] = row
    return [found[number] for number in range(len(queries))]


def standing(changes, user, at):
    rows = []
    for own, counting, time, price, gone in sorted(changes, key=lambda change: (change[1] is not None, change[1] or 0)):
        if own == user and (counting is None or counting < at):
            if gone:
                rows.remove((time, (price,)))
            else:
                rows.append((time, (price,)))
    return rows


@st.composite
def histories(draw):
    """Rows of two users, each put in at some time, and some taken out at a later one."""
    changes = []
    for _ in range(draw(st.integers(0, 15))):
        user, price = draw(st.sampled_from("ab")), draw(st.integers(0, 3))
        time = draw(st.integers(0, 4 * DAY // HOUR)) * HOUR + draw(st.integers(-1, 1))
        came = draw(st.none() | st.integers(0, 4 * DAY))
        changes.append((user, came, time, price, False))
        if draw(st.booleans()):
            changes.append((user, draw(st.integers(came or 0, 4 * DAY)) + 1, time, price, True))
    return changes


@settings(max_examples=60, deadline=None)
@given(histories(), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4 * DAY)), max_size=8))
def test_what_can_delete_sees_the_rows_that_stand_at_the_query(changes, queries):
    definition = group_by("count", "sum", "average")
    for found, (user, at) in zip(answered(definition, changes, queries), queries, strict=True):
        assert found == oracle.features(definition, standing(changes, user, at), at)


@settings(max_examples=60, deadline=None)
@given(histories(), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4 * DAY)), max_size=8))
def test_what_cannot_delete_sees_the_rows_of_midnight_and_what_came_since(changes, queries):
    definition = group_by("min", "max")
    for found, (user, at) in zip(answered(definition, changes, queries), queries, strict=True):
        midnight = at // DAY * DAY
        came = [
            (time, (price,))
            for own, counting, time, price, gone in changes
            if own == user and counting is not None and midnight <= counting < at and not gone
        ]
        assert found == oracle.features(definition, standing(changes, user, midnight) + came, at)


@settings(max_examples=60, deadline=None)
@given(histories(), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), max_size=8))
def test_values_as_they_are_are_those_of_the_latest_row_that_stands(changes, days):
    definition = group_by(accuracy="snapshot")
    queries = [(user, day * DAY) for user, day in days]
    for found, (user, at) in zip(answered(definition, changes, queries), queries, strict=True):
        latest = latest_row([parse_type("long")], [row for row in standing(changes, user, at) if row[0] < at])
        assert found["price"] == (latest[1][0] if latest else None)


def test_a_row_without_a_time_is_refused():
    with pytest.raises(DataError, match=r"'any'.*no time"):
        answered(group_by("count"), [("a", 5, None, 1, False)], [])


def test_a_query_without_a_time_is_refused_as_a_row_of_the_queries():
    with pytest.raises(DataError, match="'any': a row of the queries has no 'time_ms', its time"):
        answered(group_by("count"), [("a", 5, 5, 1, False)], [("a", None)])


def test_a_query_in_microseconds_is_refused():
    with pytest.raises(DataError, match="'any': time_ms is 1388361600000000, beyond the year 2499"):
        answered(group_by("count"), [], [("a", 1_388_361_600_000_000)])

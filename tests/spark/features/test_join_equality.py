"""The training set of a Join is what the rule says, for random Joins; `tests/features/equality` fetches the same."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.features.point_in_time.column_features import arrow_value
from millpond.features.point_in_time.sorted_rows import edge_values
from millpond.features.types import parse_type
from millpond.spark.features.join_columns import join_types
from millpond.spark.features.training_set import training_set
from tests.features.equality.joins import drawn_joins, requests_of
from tests.features.equality.test_online_equals_offline import MIDNIGHT, cases, moments
from tests.features.oracle import DAY

pytestmark = pytest.mark.spark


def table_of(columns):
    """Give an Arrow table; `columns` are the type and the values of each, by name."""
    return pa.table(
        {
            name: pa.array([arrow_value(one, parse_type(type_)) for one in values], parse_type(type_).arrow())
            for name, (type_, values) in columns.items()
        }
    )


def events_table(group_by, events):
    keys = {field.name: (field.type, [key[n] for key, _, _ in events]) for n, field in enumerate(group_by.keys)}
    inputs = {
        field.name: (field.type, [values[n] for _, _, values in events]) for n, field in enumerate(group_by.inputs)
    }
    return table_of(keys | {"time_ms": ("long", [time for _, time, _ in events])} | inputs)


@given(data=st.data())
@settings(
    max_examples=cases(2),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
def test_the_training_set_of_a_join_is_what_the_rule_says(spark, data):
    drawn = data.draw(drawn_joins(moments(MIDNIGHT - 45 * DAY, MIDNIGHT + DAY - 1)))
    join = drawn.join
    times = moments(MIDNIGHT - DAY, MIDNIGHT + DAY)
    asked = data.draw(st.lists(st.tuples(requests_of(join), times), min_size=2, max_size=6))
    tables = {
        part.group_by.name: spark.createDataFrame(events_table(part.group_by, drawn.events[part.group_by.name]))
        for part in join.parts
    }
    fields = {field.name: field.type for field in (*join.keys, *join.context)}
    columns = {name: (type_, [request[name] for request, _ in asked]) for name, type_ in fields.items()}
    columns |= {"time_ms": ("long", [time for _, time in asked]), "number": ("long", list(range(len(asked))))}
    found = training_set(spark.createDataFrame(table_of(columns)), join, tables=tables).toArrow()
    answers = {
        name: edge_values(found.column(name).combine_chunks(), parse_type(type_))
        for name, type_ in join_types(join).items()
    }
    numbers = found.column("number").to_pylist()
    assert sorted(numbers) == list(range(len(asked)))
    for row, number in enumerate(numbers):
        request, query = asked[number]
        ends = {part.group_by.name: query // DAY * DAY for part in join.parts}
        expected = drawn.answers(request, query, ends=ends)
        assert drawn.differences({name: values[row] for name, values in answers.items()}, expected) == {}

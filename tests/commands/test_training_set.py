"""`millpond training-set`: what it writes and tells, and what it refuses."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands.conftest import DAY_MS, HOUR_MS

pytestmark = pytest.mark.spark


@pytest.fixture
def queries(files):
    table = pa.table({"airport": ["EWR", "JFK", None], "time_ms": [2 * DAY_MS, DAY_MS, DAY_MS], "label": [1, 2, 3]})
    pq.write_table(table, files / "queries.parquet")
    return files / "queries.parquet"


@pytest.fixture
def of_flight(files):
    return (files / "definitions.py", "--table", f"route={files / 'events'}", "--json", "--output", files / "out")


def read(files):
    return sorted(pq.read_table(files / "out").to_pylist(), key=repr)


def test_the_only_join_is_computed_behind_the_columns_of_the_queries(run, of_flight, queries, files):
    told = run("training-set", *of_flight, "--queries", queries)
    assert told == {"name": "flight", "rows": 3, "output": str(files / "out")}
    assert {row["label"]: (row["route_count_1d"], row["route_delay_sum"]) for row in read(files)} == {
        1: (2, 5.0),
        2: (None, None),
        3: (None, None),
    }


def test_without_queries_every_key_is_asked_for_at_each_step(run, of_flight, files):
    span = ("--every", "12h", "--from", "1970-01-02", "--to", "1970-01-03T12:00")
    assert run("training-set", *of_flight, "--name", "route", *span)["rows"] == 4
    assert {(row["origin"], row["time_ms"]) for row in read(files)} == {
        (origin, time) for origin in ("EWR", "JFK") for time in (DAY_MS + 12 * HOUR_MS, 2 * DAY_MS)
    }


def test_logged_answers_are_taken_instead_of_computed_ones(run, of_flight, queries, files):
    logged = pa.table(
        {
            "name": ["flight"],
            "airport": ["EWR"],
            "time_ms": [2 * DAY_MS],
            "route_count_1d": [77],
            "route_delay_sum": [0.5],
            "unavailable": pa.array([[]], pa.list_(pa.string())),
        }
    )
    pq.write_table(logged, files / "logged.parquet")
    run("training-set", *of_flight, "--queries", queries, "--bootstrap", files / "logged.parquet")
    assert {row["label"]: row["route_count_1d"] for row in read(files)} == {1: 77, 2: None, 3: None}


def test_snapshots_of_entities_are_as_of_the_end_that_is_given(run, refused, files):
    pq.write_table(
        pa.table({"origin": ["EWR"] * 2, "time_ms": [2 * DAY_MS, 2 * DAY_MS + 2 * HOUR_MS]}), files / "asked.parquet"
    )
    tables = [f"--table={name}={files / name}" for name in ("fleet", "fleet_changes")]
    asked = (files / "definitions.py", "--name", "planes", *tables, "--queries", files / "asked.parquet", "--json")
    assert "snapshots_end_ms" in refused("training-set", *asked, "--output", files / "out")
    run("training-set", *asked, "--output", files / "out", "--snapshots-end", "1970-01-03")
    assert [row["seats_sum_30d"] for row in read(files)] == [7, 9]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--from", "1970-01-01"], ["--from and --to go together"]),
        (["--queries", "/nowhere"], ["--queries '/nowhere'"]),
        (["--bootstrap", "/nowhere"], ["--bootstrap '/nowhere'"]),
        (["--time-column", "at"], ["time column 'at'"]),
        (["--every", "1h"], ["leave them out, or give no queries"]),
        (["--snapshots-end", "soon"], ["'soon'", "no time"]),
        (["--output", "."], ["--output '.'", "is there already"]),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(refused, of_flight, queries, files, changed, named):
    told = refused("training-set", *of_flight, "--queries", queries, *changed)
    assert all(one in told for one in named), told
    assert not (files / "out").exists()


def test_an_output_that_is_there_is_refused_before_spark_starts(refused_without_spark, of_flight, files):
    for output in (str(files / "events"), f"file://{files / 'events'}"):
        told = refused_without_spark("training-set", *of_flight, "--queries", "/nowhere", "--output", output)
        assert told == f"--output {output!r} is there already; give a new folder, or remove it"


def test_a_table_that_no_source_reads_is_refused_before_spark_starts(refused_without_spark, of_flight):
    told = refused_without_spark("training-set", *of_flight, "--queries", "/nowhere", "--table", "fleat=/x")
    assert told == "--table fleat=/x: no source reads a table 'fleat'; did you mean 'fleet'?"

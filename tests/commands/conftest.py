"""Commands on Spark, run in the session of the tests, and the files that they work on."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from millpond.cli import cli
from millpond.commands.definitions import load_definitions
from millpond.errors import MillpondError

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
DEFINITIONS = """
from millpond.features import Aggregation, EntitySource, Field, GroupBy, Join, JoinPart

route = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=(Aggregation("count", windows=("1d",)), Aggregation("sum", "delay")),
)
planes = GroupBy(
    "planes",
    keys=(Field("origin", "string"),),
    inputs=(Field("seats", "long"),),
    aggregations=(Aggregation("sum", "seats", ("30d",)),),
    sources=(EntitySource("fleet", "fleet_changes"),),
)
flight = Join("flight", (JoinPart(route, {"airport": "origin"}),))
"""
EVENTS = [("EWR", 1.0, DAY_MS), ("JFK", 2.0, DAY_MS + 1), ("EWR", 4.0, 2 * DAY_MS - 1), ("EWR", 8.0, 2 * DAY_MS + 5)]
"""Three before the midnight of the second day, one after it."""


@pytest.fixture
def run(spark, monkeypatch):
    """Runs a command in the session of the tests, and gives what its --json tells; `code` is the exit code."""
    monkeypatch.setattr("millpond.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run(*arguments, code=0):
        ran = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
        assert ran.exit_code == code, ran.output
        return json.loads(ran.stdout)

    return run


@pytest.fixture
def refused(spark, monkeypatch):
    """Runs a command that is refused, and gives why."""
    monkeypatch.setattr("millpond.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    return _refusal


@pytest.fixture
def refused_without_spark(monkeypatch):
    """Runs a command that is refused before it makes a session, and gives why."""

    def session(*_, **__):
        raise AssertionError("a session was made")

    monkeypatch.setattr("millpond.spark.session", session)
    return _refusal


def _refusal(*arguments):
    ran = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if isinstance(ran.exception, SystemExit):
        # Click's own: an option that is missing or malformed.
        assert ran.exit_code == 2
        return ran.output
    # What `main` prints as one line, with exit code 2.
    assert isinstance(ran.exception, MillpondError), ran.exception
    return str(ran.exception)


@pytest.fixture
def files(tmp_path):
    """A folder with definitions, the events of `route`, and the snapshot and changes of `fleet`."""
    (tmp_path / "definitions.py").write_text(DEFINITIONS)
    assert load_definitions([str(tmp_path / "definitions.py")]).joins
    origins, delays, times = zip(*EVENTS, strict=True)
    events = pa.table({"origin": origins, "delay": delays, "time_ms": times})
    for folder, table in {
        "events": events,
        "fleet": pa.table({"origin": ["EWR"], "seats": [7], "time_ms": [DAY_MS]}),
        "fleet_changes": pa.table(
            {
                "origin": ["EWR", "EWR"],
                "seats": [7, 9],
                "time_ms": [DAY_MS, DAY_MS],
                "mutation_time": [2 * DAY_MS + HOUR_MS] * 2,
                "is_before": [True, False],
            }
        ),
    }.items():
        (tmp_path / folder).mkdir()
        pq.write_table(table, tmp_path / folder / "part.parquet")
    return tmp_path


@pytest.fixture
def options(files):
    """What every command on these files is told."""
    return (files / "definitions.py", "--name", "route", "--table", f"route={files / 'events'}", "--json")

"""`millpond check`: its exit code says whether served answers are the training set's."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from millpond.cli import cli
from tests.commands.conftest import DAY_MS, HOUR_MS

pytestmark = pytest.mark.spark


def logged(path, count=2):
    table = pa.table(
        {
            "name": ["route", "route"],
            "origin": ["EWR", "JFK"],
            "time_ms": [2 * DAY_MS, 2 * DAY_MS],
            "count_1d": [2, 1],
            "delay_sum": [5.0, 2.0] if count == 2 else [5.5, 2.0],
            "unavailable": pa.array([[], []], pa.list_(pa.string())),
        }
    )
    path.mkdir()
    pq.write_table(table, path / "part.parquet")
    return path


def test_answers_that_agree_end_in_exit_code_0(run, options, files):
    told = run("check", *options, "--answers", logged(files / "answers"), "--examples", 1)
    assert (told["answers"], told["agrees"]) == (2, True)
    assert told["features"]["delay_sum"] == {
        "exact": True,
        "equal": 2,
        "arrived_later": 0,
        "different": 0,
        "unavailable": 0,
    }
    assert [one["kind"] for one in told["examples"]] == ["equal", "equal"]


def test_an_exact_feature_that_differs_ends_in_exit_code_1_and_is_shown(run, options, files):
    told = run("check", *options, "--answers", logged(files / "answers", count=3), code=1)
    assert told["features"]["delay_sum"]["different"] == 1
    (example,) = [one for one in told["examples"] if one["kind"] == "different"]
    assert (example["feature"], example["logged"], example["computed"]) == ("delay_sum", "5.5", "5.0")


def test_without_json_it_tells_a_table(run, options, files):
    assert run("check", *options, "--answers", logged(files / "answers"))["agrees"]
    asked = [str(option) for option in options if option != "--json"]
    ran = CliRunner().invoke(cli, ["check", *asked, "--answers", str(files / "answers")])
    assert ran.stdout.splitlines() == [
        "2 answers",
        "feature: equal, arrived later, different, unavailable",
        "  count_1d: 2, 0, 0, 0",
        "  delay_sum: 2, 0, 0, 0",
        "the exact features agree",
    ]


def test_without_json_it_shows_the_answers_that_differ_and_no_others(run, options, files):
    answers = logged(files / "answers", count=3)
    asked = [str(option) for option in options if option != "--json"]
    ran = CliRunner().invoke(cli, ["check", *asked, "--answers", str(answers)])
    assert ran.exit_code == 1
    assert ran.stdout.splitlines()[4:] == [
        '  different: delay_sum of {"origin":"EWR"} at 1970-01-03: logged 5.5, computed 5.0',
        "an exact feature differs",
    ]


def test_snapshots_of_entities_are_as_of_the_end_that_is_given(run, refused, files):
    answers = pa.table({"origin": ["EWR"], "time_ms": [2 * DAY_MS + 2 * HOUR_MS], "seats_sum_30d": [9]})
    pq.write_table(answers, files / "answers.parquet")
    tables = [f"--table={name}={files / name}" for name in ("fleet", "fleet_changes")]
    asked = (files / "definitions.py", "--name", "planes", *tables, "--answers", files / "answers.parquet", "--json")
    assert "snapshots_end_ms" in refused("check", *asked)
    assert run("check", *asked, "--snapshots-end", "1970-01-03")["agrees"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--answers", "/nowhere"], ["--answers '/nowhere'"]),
        (["--examples", "-1"], ["--examples"]),
        (["--name", "flight"], ["logged answers of 'flight'", "'airport'"]),
    ],
)
def test_what_cannot_be_checked_is_refused_by_name(refused, options, files, changed, named):
    told = refused("check", *options, "--answers", logged(files / "answers"), *changed)
    assert all(one in told for one in named), told

"""While a command waits it says for what: one line on a terminal, plain lines elsewhere, nothing if it is quiet."""

import io
import threading

import pytest
from click.testing import CliRunner

from millpond.cli import cli
from millpond.commands.spark_waits import spark_wait
from millpond.commands.waiting import Lines, Wait, Waiting
from tests.commands.conftest import HOUR_MS


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")


def test_a_terminal_has_one_line_that_is_written_anew_and_cleared():
    out = Terminal()
    lines = Lines(out)
    lines.show(Wait("stage 1: 1 of 4 tasks done", 1, 4), 0.5)
    lines.show(Wait("stage 1: 4 of 4 tasks done", 4, 4), 1.0)
    lines.end()
    shown = out.getvalue().split("\r\x1b[K")
    assert shown == ["", *shown[1:-1], ""]
    assert [line[:26] for line in shown[1:-1]] == ["[######------------------]", "[########################]"]
    assert max(map(len, shown)) < 60


def test_elsewhere_there_are_plain_lines_where_something_changed_and_ever_fewer():
    out = io.StringIO()
    lines = Lines(out)
    for second in range(3_600):
        lines.show(Wait(f"{second // 10} of 360 tasks done"), second)
    lines.end()
    told = out.getvalue().splitlines()
    assert told[:2] == ["0 of 360 tasks done", "1 of 360 tasks done"]
    assert 60 <= len(told) <= 65
    before = len(told)
    for second in range(3_600, 7_200):
        lines.show(Wait("the same"), second)
    assert len(out.getvalue().splitlines()) == before + 1


def waited(out, **options):
    """The looks that a wait took until it had taken three, of which one found nothing."""
    looked, looks = threading.Event(), []

    def look():
        looks.append(1)
        if len(looks) > 2:
            looked.set()
        if len(looks) == 2:
            raise OSError("the job has just ended")
        return Wait("waiting")

    with Waiting(look, out=out, every_seconds=0.001, **options):
        looked.wait(0.2 if options else 60)
    return looks


def test_what_cannot_be_looked_at_is_no_error_and_the_next_look_is_shown():
    out = Terminal()
    assert len(waited(out)) >= 3
    assert out.getvalue().count("waiting") >= 2
    assert out.getvalue().endswith("\r\x1b[K")


def test_a_quiet_wait_looks_at_nothing_and_says_nothing():
    out = Terminal()
    assert waited(out, quiet=True) == []
    assert out.getvalue() == ""


@pytest.mark.spark
def test_a_job_of_sparks_tells_its_stage_and_how_many_tasks_are_done(spark, tmp_path):
    go = tmp_path / "go"

    def wait(batches):
        for _ in range(6_000):
            if go.exists():
                break
            threading.Event().wait(0.01)
        yield from batches

    job = threading.Thread(target=lambda: spark.range(0, 4, 1, 2).mapInArrow(wait, "id long").count())
    job.start()
    try:
        for _ in range(6_000):
            found = spark_wait(spark)
            if found.of:
                break
            threading.Event().wait(0.01)
    finally:
        go.touch()
        job.join()
    assert found.text.startswith("stage ")
    assert f"0 of {found.of} tasks done" in found.text
    assert spark_wait(spark).text == "Spark plans, or the driver works"


@pytest.mark.spark
def test_a_query_tells_its_newest_batch_and_what_it_does(spark, tmp_path):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
    query = rows.writeStream.format("noop").queryName("sevens").option("checkpointLocation", str(tmp_path)).start()
    try:
        for _ in range(6_000):
            told = spark_wait(spark).text
            if "had 7 rows" in told:
                break
            threading.Event().wait(0.01)
    finally:
        query.stop()
    assert "sevens: batch " in told


@pytest.mark.spark
def test_a_command_says_what_it_does_on_stderr_unless_it_is_quiet(spark, monkeypatch, options, files):
    monkeypatch.setattr("millpond.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    asked = ["backfill", *options, "--hop-table", files / "hops", "--from", 0, "--to", 48 * HOUR_MS]
    loud = CliRunner().invoke(cli, [str(each) for each in asked], catch_exceptions=False)
    assert "collecting route from 1970-01-01 to 1970-01-03\n" in loud.stderr
    quiet = CliRunner().invoke(cli, [*(str(each) for each in asked), "--quiet"], catch_exceptions=False)
    assert (quiet.exit_code, quiet.stderr) == (0, "")

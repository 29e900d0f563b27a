"""`millpond state` shows, compares, saves and imports stored state, of queries and of harnesses."""

import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.cli import cli
from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.spark import keyed
from millpond.state import Harness
from millpond.state.checkpoint import FileStorage, Savepoint
from tests.spark.streams import FileStream


class Visits(StatefulProcessor):
    """Counts the rows of a key, with a timer far off."""

    def init(self, handle):
        self.handle = handle
        self.seen = handle.getValueState("seen", "count long")

    def handleInputRows(self, key, rows, timerValues):
        before = self.seen.get()[0] if self.seen.exists() else 0
        self.seen.update((before + sum(1 for _ in rows),))
        self.handle.registerTimer(10**15)
        yield Row(user=key[0])

    def close(self):
        pass


class Count:
    """Counts the records of a key."""

    def open(self, states):
        self.seen = states.value("seen", int, default=0)

    def process(self, key, record, context):
        self.seen.update(self.seen.get() + 1)
        return []


@pytest.fixture
def run(request, monkeypatch):
    """Runs `millpond state …`: the exit code and what was printed. With `spark`, in the session of the tests."""
    if "spark" in request.fixturenames:
        spark = request.getfixturevalue("spark")
        monkeypatch.setattr("millpond.spark.environment.session", lambda *_, **__: spark)
        monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run(*arguments):
        ran = CliRunner().invoke(cli, ["state", *map(str, arguments)], catch_exceptions=False)
        return ran.exit_code, ran.stdout

    return run


def rows_of(printed):
    code, text = printed
    assert code == 0, text
    return json.loads(text)["rows"]


@pytest.fixture(scope="module")
def keyed_query(spark, tmp_path_factory):
    """The checkpoint of a keyed query with two batches of rows."""
    stream = FileStream(spark, tmp_path_factory.mktemp("keyed"))
    stream.add([("ann", 1, 1), ("ann", 2, 1)])
    stream.add([("ann", 3, 2), ("bob", 4, 2)])
    events = stream.frame().withWatermark("at", "0 seconds")
    stream.run(keyed(events, "user").transformWithState(Visits(), "user string", "Update", "EventTime"))
    return str(stream.folder / "checkpoint")


@pytest.fixture(scope="module")
def pyspark_query(spark, tmp_path_factory):
    """The checkpoint of the same query under PySpark's operator."""
    stream = FileStream(spark, tmp_path_factory.mktemp("pyspark"))
    stream.add([("ann", 1, 1), ("bob", 2, 1)])
    events = stream.frame().withWatermark("at", "0 seconds")
    stream.run(events.groupBy("user").transformWithState(Visits(), "user string", "Update", "EventTime"))
    return str(stream.folder / "checkpoint")


@pytest.fixture
def harness_checkpoints(tmp_path):
    """The checkpoints of a harness, of versions 1 and 2."""
    with Harness(Count, key=str, key_type=str, storage=str(tmp_path / "harness")) as harness:
        for records in (["ann", "ann"], ["ann", "bob"]):
            for record in records:
                harness.process(record)
            harness.checkpoint()
    return str(tmp_path / "harness")


@pytest.mark.spark
def test_ls_lists_the_states_of_a_keyed_query(run, spark, keyed_query):
    rows = rows_of(run("ls", keyed_query, "--json"))
    assert {(row["operator"], row["name"], row["declared"]) for row in rows} == {
        (0, "keyed", "value seen (count: int64)"),
        (0, "keyed", "map $timers (expiry_ms: int64) -> (set: bool)"),
    }
    assert run("ls", keyed_query)[1].startswith("operator  name   versions  partitions  state")


@pytest.mark.spark
def test_ls_lists_the_states_of_pysparks_own_operator(run, spark, pyspark_query):
    rows = rows_of(run("ls", pyspark_query, "--json"))
    assert ("transformWithStateInPySparkExec", "seen", "ValueState") in {
        (row["name"], row["state"], row["declared"]) for row in rows
    }


@pytest.mark.spark
def test_show_prints_values_timers_and_earlier_versions(run, spark, keyed_query):
    shown = rows_of(run("show", keyed_query, "seen", "--json"))
    assert {(row["key"]["user"], row["value"]["count"]) for row in shown} == {("ann", 3), ("bob", 1)}
    earlier = rows_of(run("show", keyed_query, "seen", "--version", 0, "--json"))
    assert [row["value"]["count"] for row in earlier] == [2]
    timers = rows_of(run("show", keyed_query, "--timers", "--json"))
    assert {row["expiration_timestamp_ms"] for row in timers} == {10**15}
    code, text = run("show", keyed_query, "seen", "--limit", 1)
    assert code == 0
    assert len(text.splitlines()) == 4
    assert "--limit 0 prints all rows" in text


@pytest.mark.spark
def test_show_writes_parquet(run, spark, keyed_query, tmp_path):
    code, text = run("show", keyed_query, "seen", "--parquet", tmp_path / "seen", "--json")
    assert (code, json.loads(text)["rows"]) == (0, 2)
    assert sorted(spark.read.parquet(str(tmp_path / "seen")).select("value.count").collect()) == [(1,), (3,)]
    with pytest.raises(UnavailableError, match="PATH_ALREADY_EXISTS"):
        run("show", keyed_query, "seen", "--parquet", tmp_path / "seen")


@pytest.mark.spark
def test_diff_exits_with_1_where_something_changed(run, spark, keyed_query):
    code, text = run("diff", keyed_query, "seen", "--since", 0, "--version", 1, "--json")
    assert code == 1
    assert {(row["change_type"], row["key"]["user"]) for row in json.loads(text)["rows"]} == {
        ("changed", "ann"),
        ("added", "bob"),
    }
    code, text = run("diff", keyed_query, "--timers", "--since", 1, "--json")
    assert (code, json.loads(text)["rows"]) == (0, [])


@pytest.mark.spark
def test_diff_prints_a_table_and_writes_parquet(run, spark, keyed_query, tmp_path):
    code, text = run("diff", keyed_query, "seen", "--since", 0, "--version", 1)
    heading, *lines = text.splitlines()
    assert (code, heading.split()[:1]) == (1, ["change_type"])
    assert sorted(line.split()[0] for line in lines if line.strip(" -─━")) == ["added", "changed"]
    code, _ = run("diff", keyed_query, "seen", "--since", 0, "--parquet", tmp_path / "changes")
    changes = spark.read.parquet(str(tmp_path / "changes"))
    assert (code, sorted(changes.select("key.user", "change_type").collect())) == (
        1,
        [("ann", "changed"), ("bob", "added")],
    )


@pytest.mark.spark
def test_savepoint_and_import_write_savepoints(run, spark, keyed_query, pyspark_query, tmp_path):
    for command, query in (("savepoint", keyed_query), ("import", pyspark_query)):
        location = tmp_path / command
        code, text = run(command, query, location, "--json")
        assert code == 0
        assert {(state["state"], state["rows"]) for state in json.loads(text)["states"]} == {
            ("seen", 2),
            ("$timers", 2),
        }
        assert Savepoint.open(str(location)).table("seen").num_rows == 2
        assert len(rows_of(run("show", location, "--timers", "--json"))) == 2
    assert "value seen (count: int64)" in run("savepoint", keyed_query, tmp_path / "again")[1]


@pytest.mark.spark
def test_import_seals_the_savepoint_with_the_key_that_it_is_given(run, spark, pyspark_query, tmp_path):
    key = bytes(range(32))
    (tmp_path / "key").write_bytes(key)
    assert run("import", pyspark_query, tmp_path / "saved", "--seal", tmp_path / "key")[0] == 0
    assert Savepoint.open(str(tmp_path / "saved"), seal=key).table("seen").num_rows == 2
    with pytest.raises(OptionError, match="is sealed with a key"):
        run("ls", tmp_path / "saved")


@pytest.mark.spark
def test_bad_input_of_a_query_is_refused(run, spark, keyed_query, pyspark_query, tmp_path):
    for arguments, says in (
        (("show", keyed_query, "sen"), "did you mean 'seen'"),
        (("show", keyed_query, "seen", "--operator", 3), "no keyed operator 3"),
        (("show", keyed_query, "seen", "--version", 99), "no version 99"),
        (("diff", keyed_query, "seen", "--since", 1, "--version", 0), "must be an earlier batch"),
        (("show", pyspark_query, "seen"), r'spark\.read\.format\("statestore"\)'),
        (("import", keyed_query, tmp_path / "no"), "is Millpond's already"),
        (("import", pyspark_query, tmp_path / "no", "--ttl", "seen=5"), "'seen', which has no time to live"),
    ):
        with pytest.raises(OptionError, match=says):
            run(*arguments)


def test_checkpoints_of_a_harness_are_read_without_spark(run, harness_checkpoints, tmp_path):
    (listed,) = rows_of(run("ls", harness_checkpoints, "--json"))
    assert (listed["versions"], listed["state"]) == ("1-2", "seen")
    shown = rows_of(run("show", harness_checkpoints, "seen", "--json"))
    assert {(row["key.key"], row["value.value"]) for row in shown} == {("ann", 3), ("bob", 1)}
    code, text = run("diff", harness_checkpoints, "seen", "--since", 1, "--json")
    assert (code, sorted(row["change"] for row in json.loads(text)["rows"])) == (1, ["added", "changed"])
    code, _ = run("show", harness_checkpoints, "seen", "--version", 1, "--parquet", tmp_path / "seen.parquet")
    assert code == 0
    assert pq.read_table(tmp_path / "seen.parquet")["value.value"].to_pylist() == [2]


def test_diff_of_a_harness_prints_a_table_and_writes_parquet(run, harness_checkpoints, tmp_path):
    code, text = run("diff", harness_checkpoints, "seen", "--since", 1, "--parquet", tmp_path / "changes.parquet")
    assert code == 1
    assert sorted(pq.read_table(tmp_path / "changes.parquet")["change"].to_pylist()) == ["added", "changed"]
    code, text = run("diff", harness_checkpoints, "seen", "--since", 1)
    assert (code, "change" in text.splitlines()[0]) == (1, True)
    assert sorted(word for word in text.split() if word in ("added", "changed")) == ["added", "changed"]


def test_a_savepoint_of_a_harness_is_written_and_read_without_spark(run, harness_checkpoints, tmp_path):
    code, text = run("savepoint", harness_checkpoints, tmp_path / "saved", "--version", 1, "--json")
    assert (code, json.loads(text)["states"][0]["rows"]) == (0, 1)
    (row,) = rows_of(run("show", tmp_path / "saved", "seen", "--json"))
    assert row["value.value"] == 2
    assert "seen" in run("ls", tmp_path / "saved")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "{harness}"), "give the name of a STATE, or --timers"),
        (("show", "{harness}", "seen", "--timers"), "give the name of a STATE, or --timers"),
        (("show", "{harness}", "sen"), r"no state 'sen'; it has \['seen'\]"),
        (("show", "{harness}", "--timers"), "has no timers"),
        (("show", "{harness}", "seen", "--version", "9"), "has not version 9"),
        (("show", "{harness}", "seen", "--operator", "0"), "has the state of one operator"),
        (("ls", "{tmp}/nothing"), "has no stored state. Expected a query's checkpointLocation"),
        (("import", "{harness}", "{tmp}/saved"), "is no query's checkpoint"),
        (("savepoint", "{harness}", "{harness}"), "is not empty"),
    ],
)
def test_bad_input_is_refused(run, harness_checkpoints, tmp_path, arguments, says):
    with pytest.raises(OptionError, match=says):
        run(*(argument.format(harness=harness_checkpoints, tmp=tmp_path) for argument in arguments))


@pytest.mark.parametrize("ttl", ["seen", "seen=", "seen=1h"])
def test_a_ttl_that_is_no_number_of_ms_is_refused(run, tmp_path, ttl):
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    with pytest.raises(OptionError, match=f"--ttl {ttl!r}: expected"):
        run("import", tmp_path, tmp_path / "saved", "--ttl", ttl)


def test_a_savepoint_that_was_altered_is_named(run, harness_checkpoints, tmp_path):
    run("savepoint", harness_checkpoints, tmp_path / "saved")
    (tmp_path / "saved" / "MANIFEST").write_bytes(b"")
    with pytest.raises(CorruptionError, match="MANIFEST has 0 bytes"):
        run("show", tmp_path / "saved", "seen")


def test_the_help_names_the_commands(run):
    code, text = run("--help")
    assert code == 0
    assert all(name in text for name in ("diff", "import", "ls", "savepoint", "show"))


def test_sealed_state_is_shown_and_saved_with_its_key(run, tmp_path):
    key, folder = bytes(range(32)), tmp_path / "checkpoints"
    (tmp_path / "key").write_bytes(key)
    storage = lambda shard: FileStorage(str(folder), shard, seal=key)  # noqa: E731 - opened shard by shard
    with Harness(Count, key=str, key_type=str, storage=storage) as harness:
        harness.process_many(["ada", "ada", "bob"])
        harness.checkpoint()
    code, printed = run("show", folder, "seen", "--seal", tmp_path / "key", "--json")
    assert code == 0
    assert sorted(row["value.value"] for row in json.loads(printed)["rows"]) == [1, 2]
    assert run("ls", folder, "--seal", tmp_path / "key")[0] == 0
    assert run("savepoint", folder, tmp_path / "saved", "--seal", tmp_path / "key")[0] == 0
    for location in (folder, tmp_path / "saved"):
        with pytest.raises(OptionError, match="is sealed with a key"):
            run("ls", location)

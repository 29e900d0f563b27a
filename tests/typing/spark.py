"""What type checkers make of `millpond.spark`; PySpark's own types are not looked into."""

from typing import Any, assert_type

from millpond.spark import (
    KeyedData,
    KeyedMetrics,
    ProcessorHarness,
    SparkScan,
    StateConfig,
    keyed,
    read_state,
    savepoint,
    session,
    split_dead_letters,
)


def a_stream_is_keyed_and_transformed(events: Any, processor: Any) -> None:
    by_user = keyed(events, "user")
    assert_type(by_user, KeyedData)
    by_user.transformWithState(processor, "n long", "Update", "None", state=StateConfig("rocksdb", host="inline"))
    assert_type(by_user.late_rows, int)


def metrics_are_numbers(by_user: KeyedData) -> None:
    assert_type(by_user.metrics(), KeyedMetrics)


def what_is_no_option_is_an_error(events: Any) -> None:
    StateConfig(backend=7)  # type: ignore[arg-type]
    StateConfig(max_entries="many")  # type: ignore[arg-type]
    keyed(events, "user").transformWithState()  # type: ignore[call-arg]


def a_harness_gives_rows(processor: Any) -> None:
    with ProcessorHarness(processor, rows="user string", key="user", output="n long") as harness:
        assert_type(harness.process([("ann",)]), list[Any])


def what_is_here_can_be_called(spark: Any, checkpoint: str, events: Any) -> None:
    savepoint(spark, checkpoint, "there")
    read_state(spark, checkpoint, "count")
    split_dead_letters(events)
    SparkScan(lambda: events, ["code"])
    session("here", master="local[2]")

"""The log of answers is a sample, bounded, and whole files; it never slows or fails an answer."""

import os

import pyarrow.parquet as pq
import pytest

from millpond.errors import OptionError
from millpond.serving import AnswerLog, Fetcher

from .world import BATCH_END_MS, EWR, FLIGHT, NOBODY, NOON_MS, PLANE, PLANS, small_world


def test_the_rows_hold_name_keys_time_context_features_and_batch_end(tmp_path):
    store, _, _ = small_world()
    with Fetcher(store, [FLIGHT], answer_log=AnswerLog(tmp_path, sample=1.0)) as fetcher:
        answer = fetcher.fetch("flight", PLANE, NOON_MS, context={"price": 100.0})
    (path,) = tmp_path.iterdir()
    table = pq.read_table(path)
    (row,) = table.to_pylist()
    assert list(table.column_names[:6]) == ["name", "origin", "carrier", "plane", "time_ms", "context_price"]
    features = ["feature_name" if name == "name" else name for name in fetcher.targets["flight"].features]
    assert table.column_names[6:] == [*features, "batch_end_ms", "unavailable"]
    assert (row["plane"], row["time_ms"], row["context_price"]) == ("N7", NOON_MS, 100.0)
    assert row["price_per_flight"] == answer.features["price_per_flight"]
    assert dict(row["batch_end_ms"])["route"] == BATCH_END_MS
    assert row["unavailable"] == [name for name, state in answer.states.items() if state == "unavailable"]


def test_a_share_of_the_answers_is_logged(tmp_path):
    draws = iter([0.05, 0.5, 0.09, 0.1])
    log = AnswerLog(tmp_path, sample=0.1, draw=lambda: next(draws))
    fetcher = Fetcher(small_world()[0], PLANS, answer_log=log)
    for _ in range(4):
        fetcher.fetch("route", EWR, NOON_MS)
    fetcher.close()
    assert log.written == 2


def test_what_has_no_room_is_dropped_and_counted(tmp_path):
    log = AnswerLog(tmp_path, sample=1.0, queue=3, rows_per_file=100, seconds_per_file=3_600)
    fetcher = Fetcher(small_world()[0], PLANS, answer_log=log)
    log._start = lambda: None
    for keys in (EWR, NOBODY) * 5:
        fetcher.fetch("route", keys, NOON_MS)
    fetcher.close()
    assert (log.written, fetcher.stats().log_dropped) == (3, 7)


def test_a_folder_that_cannot_be_written_drops_answers_and_fails_none(tmp_path):
    log = AnswerLog(tmp_path / "log", sample=1.0)
    (tmp_path / "log").rmdir()
    (tmp_path / "log").write_text("a file")
    fetcher = Fetcher(small_world()[0], PLANS, answer_log=log)
    assert fetcher.fetch("route", EWR, NOON_MS).errors == {}
    fetcher.close()
    assert (log.written, log.dropped) == (0, 1)


@pytest.mark.parametrize("option", [{"sample": 2}, {"queue": 0}, {"rows_per_file": 0}])
def test_a_wrong_option_is_named(tmp_path, option):
    with pytest.raises(OptionError, match=next(iter(option))):
        AnswerLog(tmp_path, **option)


def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "log").write_text("")
    with pytest.raises(OptionError, match="log', which cannot be made"):
        AnswerLog(tmp_path / "log")


def test_a_forked_child_writes_its_own_answers_and_leaves_the_others_to_its_parent(tmp_path):
    log = AnswerLog(tmp_path, sample=1.0, rows_per_file=2, seconds_per_file=3_600)
    with Fetcher(small_world()[0], PLANS, answer_log=log) as fetcher:
        fetcher.fetch("route", EWR, NOON_MS)
        child = os.fork()
        if child == 0:
            for at in (1, 2):
                fetcher.fetch("route", NOBODY, NOON_MS + at)
            log._thread.join(0.01)
            while log.written < 2 and log._thread.is_alive():
                log._thread.join(0.01)
            os._exit(0)
        os.waitpid(child, 0)
    written = sorted(row["time_ms"] - NOON_MS for path in tmp_path.iterdir() for row in pq.read_table(path).to_pylist())
    assert written == [0, 1, 2]


def test_the_log_has_the_answer_as_it_was_given(tmp_path):
    keys = dict(EWR)
    with Fetcher(small_world()[0], PLANS, answer_log=AnswerLog(tmp_path, sample=1.0)) as fetcher:
        answer = fetcher.fetch("route", keys, NOON_MS)
        expected = EWR | answer.features | {"tail_last2_6h": list(answer.features["tail_last2_6h"])}
        keys["origin"] = "JFK"
        answer.features["tail_last2_6h"].append("N9")
        answer.features["count_1d"] = -1
    (path,) = tmp_path.iterdir()
    (row,) = pq.read_table(path).to_pylist()
    assert {name: row[name] for name in expected} == expected | {"count_1d": row["count_1d"]}
    assert row["count_1d"] > 0


def test_a_key_that_no_wanted_feature_needs_may_be_missing(tmp_path):
    with Fetcher(small_world()[0], [FLIGHT], answer_log=AnswerLog(tmp_path, sample=1.0)) as fetcher:
        fetcher.fetch("flight", EWR, NOON_MS, features=["r_count_1d"])
    (path,) = tmp_path.iterdir()
    (row,) = pq.read_table(path).to_pylist()
    assert (row["origin"], row["plane"]) == ("EWR", None)

"""FLIP-50's benchmark: its words, and that it counts what it says."""

import gc
import json
from functools import partial

import pytest

from benchmarks import flip50, flip50_limits, flip50_turns
from millpond.state.spi import HeapBackend
from millpond.state.types.ordered_keys import KEY_PREFIX, encode_key


def test_words_are_of_sixteen_characters_and_no_two_are_alike():
    words = {flip50.word(number) for number in range(10_000)}
    assert len(words) == 10_000
    assert {len(word) for word in words} == {16}


def test_the_state_is_of_the_seed_s_size_and_every_key_group_has_as_much():
    words = flip50.words_of(1.0)
    cell = KEY_PREFIX.size + len(encode_key((flip50.word(1),))) + 2
    assert abs(words * cell - 566_000_000) < 0.001 * 566_000_000
    assert words % flip50.PARALLELISM == 0


def test_records_are_known_words_of_their_own_key_group_and_repeat_with_their_seed():
    some = flip50.records(1_000, 500, seed=3)
    known = {flip50.word(number): number % flip50.PARALLELISM for number in range(1_000)}
    assert all(known[word] == key_group for key_group, (word,) in some)
    assert some == flip50.records(1_000, 500, seed=3) != flip50.records(1_000, 500, seed=4)


def test_it_counts_every_record():
    backend = HeapBackend(range(flip50.PARALLELISM))
    flip50.fill(backend, 1_280, lambda _: None)
    flip50.work(backend, backend.value_state(flip50.COUNT), flip50.records(1_280, 700, seed=1))
    total = sum(sum(backend.cells("count", group).values) for group in range(flip50.PARALLELISM))
    assert total == 200 * 1_280 + 700


def test_the_report_has_the_names_that_were_asked_for(tmp_path, capsys):
    speeds = {"rocksdb_all_memory": 200, "heap": 100, "spillable_37": 600, "spillable_57": 700}
    found = {
        part: {"rows_per_second": speeds.get(part, 1), "own_bytes": 1, "ratio": speeds.get(part, 1) / 200}
        for part in flip50.SET_UPS
    }
    found["burst"] = {
        "limit_bytes": 9,
        "peak_rss_bytes": 8,
        "records_in": 7,
        "records_counted": 7,
        "longest_spill_block_ms": 12.5,
    }
    found |= {"checkpoint": {"raw_copy": 1.0, "decoded": 2.0}}
    flip50._report(found, 5, tmp_path)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rows_per_second"]["spillable"].keys() == {"0", "20", "37", "57", "90"}
    assert result["ratio"] == {"heap": 0.5, "spillable_37": 3.0, "spillable_57": 3.5}
    assert result["burst"] == {"limit_bytes": 9, "peak_rss_bytes": 8, "records_in": 7, "records_counted": 7}
    assert result["checkpoint_seconds"] == {"raw_copy": 1.0, "decoded": 2.0}
    assert result["longest_spill_block_ms"] == 12.5


@pytest.fixture
def collecting():
    """Collects garbage again afterwards, whatever a benchmark does to it."""
    yield
    gc.enable()
    gc.unfreeze()


def test_a_plain_loop_and_bare_handles_count_every_record(collecting):
    scale = 1_280 * flip50.PARALLELISM / flip50.words_of(1.0) / 100
    set_ups = (flip50_limits.dictionary, partial(flip50_limits.handles, 0), partial(flip50_limits.handles, 57))
    for set_up in set_ups:
        # What was counted is checked as it ends.
        with set_up(scale) as work_off:
            assert [work_off(number) > 0 for number in range(2)] == [True, True]


def test_a_set_up_takes_turns_with_rocksdb(monkeypatch):
    monkeypatch.setattr(flip50_turns, "WARM_UP_ROCKSDB", 1)
    monkeypatch.setattr(flip50_turns, "TURNS", 2)
    with flip50_turns.InTurn.at(0.0005) as in_turn:
        heap, base = in_turn.measure("heap"), in_turn.measure(flip50_turns.BASE)
    assert base["ratio"] == 1.0
    assert heap["ratio"] > 0
    assert min(base["rows_per_second"], heap["rows_per_second"], heap["own_bytes"]) > 0


def test_a_set_up_that_ends_is_no_measurement():
    with pytest.raises(RuntimeError, match="no_set_up ended with 2"):
        flip50_turns.Served("no_set_up", 0.0005)

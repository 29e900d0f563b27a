"""FLIP-50's benchmark: its words, and that it counts what it says."""

import gc
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import flip50, flip50_limits, flip50_turns
from millpond.state.spi import HeapBackend
from millpond.state.types.ordered_keys import KEY_PREFIX, encode_key

ROOT = Path(__file__).parents[2]


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
    flip50.fill(backend, 1_280)
    flip50.work(backend, backend.value_state(flip50.COUNT), flip50.records(1_280, 700, seed=1))
    total = sum(sum(backend.cells("count", group).values) for group in range(flip50.PARALLELISM))
    assert total == 200 * 1_280 + 700


def test_the_report_has_the_names_that_were_asked_for(tmp_path, capsys):
    speeds = {"rocksdb_all_memory": 200, "rocksdb_same_memory": 100, "heap": 100, "spillable_37": 600}
    found = {
        part: {
            "rows_per_second": speeds.get(part, 1),
            "own_bytes": 1,
            "disk_share": 0.4,
            "ratio": {base: speeds.get(part, 1) / speeds[base] for base in flip50.BASES},
            "ratio_spread": {base: [0.5, 4.0] for base in flip50.BASES},
        }
        for part in flip50.SET_UPS
    }
    found["burst"] = dict.fromkeys(flip50.BURST_KEYS, 7) | {"longest_spill_block_ms": 12.5}
    found |= {"checkpoint": {"raw_copy": 1.0, "decoded": 2.0}}
    flip50._report(found, 5, tmp_path)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rows_per_second"]["spillable"].keys() == {"0", "20", "37", "57", "90"}
    same_memory = {"heap": 1.0, "spillable_37": 6.0, "spillable_57": 0.01}
    assert result["ratio"] == {"heap": 0.5, "spillable_37": 3.0, "spillable_57": 0.01, "same_memory": same_memory}
    assert result["spread"]["same_memory"]["heap"] == [0.5, 4.0]
    assert result["held"] == {"heap by rocksdb_all_memory": False, "spillable_57 by rocksdb_same_memory": False}
    assert result["disk_share"]["57"] == 0.4
    assert result["burst"] == dict.fromkeys(flip50.BURST_KEYS, 7)
    assert result["checkpoint_seconds"] == {"raw_copy": 1.0, "decoded": 2.0}
    assert result["longest_spill_block_ms"] == 12.5


def test_the_clock_of_a_process_stands_still_while_it_is_not_its_turn():
    now = [7]
    clock = flip50_turns.TurnClock(lambda: now[0])
    with clock.stands_still():
        now[0] = 1_000
    assert clock() == 7
    now[0] = 1_002
    assert clock() == 9


def test_parts_of_other_code_and_of_other_hours_are_not_put_together(tmp_path):
    now = 1_000_000_000
    trees = {"heap": ("a", 0), "spillable_0": ("b", 0), "spillable_20": ("a", 7), "spillable_37": ("a", 5)}
    for part, (tree, hours) in trees.items():
        file = flip50.part_file(tmp_path, part, 1.0)
        file.write_text(json.dumps({"tree": tree, "found": {"of": part}}))
        os.utime(file, (now - hours * 3600,) * 2)
    flip50.part_file(tmp_path, "spillable_57", 1.0).write_text('{"rows_per_second": 5}')
    assert flip50.kept_of(1.0, "a", tmp_path) == {"heap": {"of": "heap"}, "spillable_37": {"of": "spillable_37"}}
    assert flip50.kept_of(1.0, "b", tmp_path) == {"spillable_0": {"of": "spillable_0"}}
    assert flip50.kept_of(0.5, "a", tmp_path) == {}
    flip50.part_file(tmp_path, "heap", 1.0).write_text('{"tree": "changed", "found": {}}')
    assert flip50.kept_of(1.0, "changed", tmp_path) == {}


def test_the_monitor_puts_on_disk_what_the_limit_leaves_no_room_for():
    shares = {percent: _disk_share(percent) for percent in (20, 90)}
    assert shares[20] < shares[90]


def _disk_share(percent):
    """In a process of its own: the monitor looks at the memory of all of it."""
    code = (
        "from benchmarks import flip50\n"
        f"with flip50.opened('spillable_{percent}', 0.05) as (backend, _): print(flip50._disk_share(backend))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(ran.stdout)


@pytest.fixture
def collecting():
    """Collects garbage again afterwards, whatever a benchmark does to it."""
    yield
    gc.enable()
    gc.unfreeze()


def test_a_plain_loop_and_bare_handles_count_every_record(collecting):
    scale = 1_280 * flip50.PARALLELISM / flip50.words_of(1.0) / 100
    set_ups = (
        flip50_limits.dictionary,
        flip50_limits.rocksdb,
        partial(flip50_limits.handles, 0),
        partial(flip50_limits.handles, 57),
    )
    for set_up in set_ups:
        # What was counted is checked as it ends.
        with set_up(scale) as work_off:
            assert [work_off(number).rows_per_second > 0 for number in range(2)] == [True, True]


def test_a_set_up_takes_turns_with_rocksdb(monkeypatch):
    monkeypatch.setattr(flip50_turns, "WARM_UP_ROCKSDB", 1)
    monkeypatch.setattr(flip50_turns, "TURNS", 2)
    with flip50_turns.InTurn.at(0.0005) as in_turn:
        heap, base = in_turn.measure("heap"), in_turn.measure(flip50_turns.BASE)
    assert base["ratio"] == {}
    assert heap["ratio"].keys() == heap["ratio_spread"].keys() == set(flip50_turns.BASES)
    assert all(low <= heap["ratio"][base] <= high for base, (low, high) in heap["ratio_spread"].items())
    assert min(base["rows_per_second"], heap["rows_per_second"], heap["own_bytes"]) > 0


def test_a_set_up_that_ends_is_no_measurement():
    with pytest.raises(RuntimeError, match="no_set_up ended with 2"):
        flip50_turns.Served("no_set_up", 0.0005)

"""The lookup benchmark draws the keys, counts the memory and judges the bars that it says."""

import mmap
import socket
import time
from copy import deepcopy

import numpy as np
import pytest

from benchmarks.database_servers import distant
from benchmarks.lookup_join import bars
from benchmarks.lookup_world import best_lru, counted, zipf_keys
from benchmarks.memory import Memory


def test_keys_are_drawn_by_rank_and_spread_over_the_table():
    keys = zipf_keys(1_000, 20_000)
    assert keys.min() >= 0
    assert keys.max() < 1_000
    times = np.sort(np.bincount(keys, minlength=1_000))[::-1]
    # By the law the first rank comes 2 ** 1.1 times as often as the second.
    assert times[0] / times[1] == pytest.approx(2**1.1, rel=0.1)
    assert (zipf_keys(1_000, 20_000) == keys).all()
    assert set(np.argsort(-np.bincount(keys))[:5]) != set(range(5))


def test_the_best_lru_is_one_cache_that_sees_every_event():
    # Misses: 1, 2, 3 (2 goes, as 1 was used since), 2 (1 goes, used before 3), 1.
    assert best_lru(np.array([1, 2, 1, 3, 3, 2, 1]), 2) == 2 / 7


def test_a_file_that_was_removed_but_is_mapped_is_counted_once(tmp_path):
    memory = Memory()
    before = memory.bytes(tmp_path)
    path = tmp_path / "1.table"
    path.write_bytes(bytes(50_000_000))
    with path.open("rb") as file:
        mapped = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for _ in range(2)]
    there = memory.bytes(tmp_path)
    path.unlink()
    assert there - before == pytest.approx(50_000_000, rel=0.2)
    assert memory.bytes(tmp_path) - before == pytest.approx(50_000_000, rel=0.2)
    for each in mapped:
        each.close()
    assert memory.bytes(tmp_path) - before < 10_000_000


def test_what_processes_noted_is_summed_and_forgotten(tmp_path):
    (tmp_path / "1").write_text("3\n4\n")
    (tmp_path / "2").write_text("5\n")
    assert counted(tmp_path) == (3, 12)
    assert counted(tmp_path) == (0, 0)


def test_a_distant_server_gets_every_byte_and_answers_no_sooner_than_over_its_way():
    sent = bytes(range(256)) * 4_000
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        distant(server.getsockname()[1], way_ms=30) as port,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        started = time.monotonic()
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        there, _ = server.accept()
        with there, there.makefile("rb") as received:
            assert received.read() == sent
        assert time.monotonic() - started >= 0.03


def test_a_run_that_just_keeps_every_promise_passes_and_one_that_does_not_is_told():
    kept = {
        "rows_per_second": {"row_by_row": 10, "batched": 200, "full_reloading": 40, "spark_broadcast": 100},
        "ratio": {
            "batched_to_hand": 1.0,
            "partial_10_to_hand_cached": 1.2,
            "partial_10_to_hand_1_ms": 2.0,
            "full_to_persisted_broadcast": 1.5,
        },
        "hit_rate": {"partial_10": 0.75, "best_lru_10": 0.8, "batches": 0.5, "batches_workers_ended": 0.48},
        "reload_stall_ms": 50,
        "full_bytes_per_host": {"at_rest": 20, "reloading": 35},
        "arrow_bytes": 10,
        "memory": {"in_process_at_rest": 1.5, "in_process_reloading": 2.5, "in_process_stall_ms": 50},
        "estimate": {"flat": 0.8, "lists": 1.3},
    }
    assert bars(kept) == []
    for path, worse in {
        ("rows_per_second", "batched"): 199,
        ("rows_per_second", "full_reloading"): 39,
        ("ratio", "batched_to_hand"): 0.99,
        ("ratio", "partial_10_to_hand_cached"): 1.19,
        ("ratio", "partial_10_to_hand_1_ms"): 1.99,
        ("ratio", "full_to_persisted_broadcast"): 1.49,
        ("hit_rate", "partial_10"): 0.74,
        ("hit_rate", "batches_workers_ended"): 0.47,
        ("reload_stall_ms",): 51,
        ("full_bytes_per_host", "at_rest"): 21,
        ("full_bytes_per_host", "reloading"): 36,
        ("memory", "in_process_at_rest"): 1.51,
        ("memory", "in_process_reloading"): 2.51,
        ("memory", "in_process_stall_ms"): 51,
        ("estimate", "flat"): 0.79,
        ("estimate", "lists"): 1.31,
    }.items():
        broken = deepcopy(kept)
        place = broken if len(path) == 1 else broken[path[0]]
        place[path[-1]] = worse
        assert len(bars(broken)) == 1, path

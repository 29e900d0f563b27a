"""FLIP-325's benchmark: every set-up counts every record, in turns."""

import sys

from benchmarks import flip325


def test_a_short_run_counts_every_record_and_keeps_no_result(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flip325", "--records", "6001", "--turns", "3"])
    flip325.main()  # checks what was counted, and the counters of the caches
    told = capsys.readouterr()
    assert all(f"'{name}': " in told.out for name in ("rocksdb", "250", "500", "1000", "heap", "bare rocksdb"))
    assert len(told.err.splitlines()) == 3


def test_a_ratio_is_the_median_of_the_turns_and_its_spread_their_middle_half():
    assert flip325._ratios([10.0, 30.0, 20.0, 90.0], [10.0, 10.0, 10.0, 30.0]) == [1.25, 2.5, 3.0]

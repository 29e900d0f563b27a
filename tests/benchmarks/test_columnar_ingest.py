from benchmarks.columnar_ingest import WORKLOADS, columnar


def test_every_workload_is_collected_both_ways_with_equal_results_and_measured():
    measured = columnar(events=2_000, rounds=1)
    assert set(measured) == {"events_per_second", "row_by_row", "ratio"}
    assert all(set(by_workload) == set(WORKLOADS) for by_workload in measured.values())
    assert all(figure > 0 for by_workload in measured.values() for figure in by_workload.values())

"""The benchmark of features measures what it says, and holds each figure to its bar."""

from benchmarks.features import PARTS, bars
from benchmarks.features_stored import arithmetic_error, stored_bytes, tiles_read

RESULT = {
    "ingest": {
        "dense": {"millpond": 50, "spark": 100},
        "sparse": {"millpond": 99, "spark": 100},
        "combine_ratio": 5.0,
    },
    "columnar": {
        "events_per_second": {},
        "row_by_row": {"count_sum_average_min_max": 1, "last_k": 1, "unique_count": 1},
        "ratio": {"count_sum_average_min_max": 5.0, "last_k": 2.0, "unique_count": 1.9},
    },
    "training_set": {"seconds": 1.0, "spark_seconds": 5.0, "peak_bytes": float(8 << 30)},
    "upload": {"rows_per_second": 1, "spark_seconds": 1.0, "seconds": 3.0, "incremental_seconds": 0.6},
    "faults": {"lost": 0, "twice": 1, "mixed_generations": 0, "half_uploads_seen": 0},
}


def test_each_figure_is_held_to_its_bar():
    missed = [bar.what for bar in bars(RESULT) if not bar.held]
    assert missed == [
        "ingest sparse: events/s by Spark's",
        "columnar unique_count: times row by row",
        "upload: a further day by all",
        "faults: twice",
    ]


def test_what_is_computed_without_spark_meets_its_bars():
    found = {"bytes": stored_bytes(10), "layers": tiles_read(), "arithmetic_error": arithmetic_error(40)}
    assert all(bar.held for bar in bars(found)), found
    assert set(found) | set(RESULT) == set(PARTS)
    assert found["layers"]["tiles_read"]["30d_only"] == 2

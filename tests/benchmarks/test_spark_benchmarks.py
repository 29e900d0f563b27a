"""The streams that the Spark benchmarks measure are those that they say."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq

from benchmarks import spark_large_state
from benchmarks.spark_large_state import write_batch, write_growing
from benchmarks.spark_stateful import BARS, ENGINES, LEFT_OUT, SIZES, Figures, Size, held, write_batches


def _batches(folder):
    files = sorted(folder.glob("*.parquet"))
    numbers = sorted({file.name[:4] for file in files})
    return [
        [row for file in files if file.name.startswith(number) for row in pq.read_table(file).to_pylist()]
        for number in numbers
    ]


def test_every_batch_has_every_key_equally_often_in_another_order(tmp_path):
    write_batches(tmp_path / "stream", Size(60, 20), 2)
    first, second = _batches(tmp_path / "stream")
    for batch in (first, second):
        assert Counter(row["user"] for row in batch) == {f"user-{key:09d}": 3 for key in range(20)}
    assert [row["user"] for row in first] != [row["user"] for row in second]
    assert {row["page"] for row in first} == {f"/page/{key}" for key in range(20)}


def test_every_engine_runs_at_the_sizes_that_are_compared(tmp_path):
    for size in SIZES:
        ran = [engine for engine in ENGINES if (engine, size) not in LEFT_OUT]
        assert {"spark_sql", "spark_rows", "millpond_rows", "millpond_arrow"} <= set(ran)
    assert not [engine for engine, size in LEFT_OUT if size in ("100k_x_100k", "10_x_10")]


def test_state_grows_by_new_keys_and_small_batches_touch_keys_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(spark_large_state, "FILLED", 50)
    monkeypatch.setattr(spark_large_state, "TOUCHED", 5)
    monkeypatch.setattr(spark_large_state, "TOUCHED_AT", (50, 150))
    told = write_growing(tmp_path / "stream")
    held = set()
    for (size, keys), batch in zip(told, _batches(tmp_path / "stream"), strict=True):
        users = [row["user"] for row in batch]
        assert len(set(users)) == len(users) == keys
        assert keys == 50 or set(users) <= held
        held |= set(users)
        assert len(held) == size
    assert told == [(50, 50), *[(50, 5)] * 3, (100, 50), (150, 50), *[(150, 5)] * 3]


def test_batches_come_in_the_order_in_which_they_were_written(tmp_path):
    for number in (1, 0, 2):
        write_batch(tmp_path, number, np.arange(4))
    times = {file.name[:4]: file.stat().st_mtime for file in tmp_path.glob("*.parquet")}
    assert sorted(times, key=times.__getitem__) == ["0000", "0001", "0002"]


def test_figures_are_held_to_their_bars():
    found = held(figures_of(lambda _: [1.0]))
    assert {(bar["of"], bar["by"], bar["size"]) for bar in found} == {
        (*pair, size) for pair, bars in BARS.items() for size in bars
    }
    assert {bar["size"] for bar in found if bar["held"]} == {"100k_x_100k", "500k_x_500k", "1m_x_100k"}
    assert {(bar["of"], bar["by"]) for bar in found if bar["held"]} == {("millpond_rows", "spark_scala")}
    assert all(bar["held"] for bar in held(figures_of(lambda engine: [1 / 60 if "millpond" in engine else 1.0])))


def test_a_ratio_is_the_median_of_each_rounds_own():
    rounds = {"millpond_rows": [1.0, 2.0, 4.0], "spark_scala": [3.0, 2.0, 2.0], "spark_rows": [80.0]}
    found = held(figures_of(lambda engine: rounds.get(engine, [1.0, 1.0, 1.0])))
    told = {bar["by"]: bar for bar in found if bar["of"] == "millpond_rows" and bar["size"] == "500k_x_500k"}
    of_scala, of_spark = told["spark_scala"], told["spark_rows"]
    assert [of_scala[name] for name in ("ratio", "lowest", "highest", "held")] == [1.0, 0.5, 3.0, True]
    # Spark's own operator in Python is in one round only, so the medians are compared.
    assert [of_spark[name] for name in ("ratio", "lowest", "highest")] == [40.0, 40.0, 40.0]


def figures_of(seconds):
    figures = Figures()
    for size in SIZES:
        for engine in ENGINES:
            for took in seconds(engine):
                figures.add(size, engine, took)
    return figures

"""Computing features: speed, bytes, tiles read, exactness and faults, each beside its peer, in one run.

| part | what is measured | beside |
|---|---|---|
| `ingest` | events per second into tiles, dense and sparse | Spark's `window(...).agg(...)` |
| `change` | bytes of checkpoint that 1,000 events write, of 2,000,000 keys | the tiles that changed |
| `columnar` | events per second collected from a table | the same, row by row |
| `training_set` | seconds, and the most memory | the range join in Spark SQL |
| `upload` | seconds; a further day of one percent | the same sums in Spark SQL |
| `bytes` | of rows and tiles | elements stored once |
| `layers` | tiles read 36 hours after a batch | one tile size for all windows |
| `arithmetic_error` | largest error, in units of the last place | exact fractions |
| `faults` | events lost or twice, uploads half seen, after kills of drivers, executors and state hosts | none |

    .venv/bin/python -m benchmarks.features             # about an hour
    .venv/bin/python -m benchmarks.features --quick     # small sizes, to see that it runs
    .venv/bin/python -m benchmarks.features --only upload --only bytes

Each part holds its peer, so parts may be measured by themselves: a run replaces the parts that it measured, and keeps
the others if they were measured on the same code.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import SparkSession

from benchmarks import columnar_ingest, training_set
from benchmarks.code_tree import CHANGED, tree_of_package
from benchmarks.features_change import KEYS as CHANGE_KEYS
from benchmarks.features_change import change
from benchmarks.features_faults import FAULTS, faults
from benchmarks.features_ingest import KEYS, ingest
from benchmarks.features_stored import arithmetic_error, stored_bytes, tiles_read
from benchmarks.features_upload import measure_upload
from benchmarks.report import RESULTS, format_number, report
from millpond.spark import session

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Sizes(NamedTuple):
    """How much is measured."""

    scale: float
    """Share of the rows and keys of training set and upload."""
    ingest_keys: int
    change_keys: int
    columnar_events: int
    rounds: int
    """Of columnar ingest."""
    keys: int
    """Whose bytes are counted."""
    draws: int
    """Of values whose arithmetic is checked."""
    kills: int
    """Of each kind of process of upload and stream."""


WHOLE = Sizes(1.0, KEYS, CHANGE_KEYS, columnar_ingest.EVENTS, columnar_ingest.ROUNDS, 1_000, 2_000, 10)
QUICK = Sizes(0.01, 2_000, 5_000, 20_000, 1, 20, 50, 1)

_Part = Callable[[SparkSession | None, Path, Sizes], Any]


class Bar(NamedTuple):
    """What a figure is held to."""

    what: str
    figure: float
    peer: float | str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def held(self) -> bool:
        """Whether it is met."""
        return (self.at_least is None or self.figure >= self.at_least) and (
            self.at_most is None or self.figure <= self.at_most
        )

    @property
    def margin(self) -> float | None:
        """How many times better than its bar it is; None where that is no number above 0."""
        if self.at_least is not None:
            return self.figure / self.at_least
        return self.at_most / self.figure if self.at_most and self.figure else None

    def line(self) -> tuple[str, str, str, str, str]:
        """A row of the table."""
        bar = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        peer = self.peer if isinstance(self.peer, str) else format_number(self.peer)
        return self.what, format_number(self.figure), peer, bar, "yes" if self.held else "no"


def _training_set(spark: SparkSession | None, folder: Path, sizes: Sizes) -> dict[str, Any]:
    assert spark is not None
    return training_set.measure_keys(spark, folder, sizes.scale)


def _ingest(spark: SparkSession | None, folder: Path, sizes: Sizes) -> dict[str, Any]:
    assert spark is not None
    return ingest(spark, folder, sizes.ingest_keys)


def _change(spark: SparkSession | None, folder: Path, sizes: Sizes) -> dict[str, int]:
    assert spark is not None
    return change(spark, folder / "change", sizes.change_keys)


def _upload(spark: SparkSession | None, folder: Path, sizes: Sizes) -> dict[str, Any]:
    assert spark is not None
    return measure_upload(spark, folder / "upload", sizes.scale)


ON_SPARK: dict[str, _Part] = {"ingest": _ingest, "change": _change, "training_set": _training_set, "upload": _upload}
"""Parts that share one Spark session."""

BY_THEMSELVES: dict[str, _Part] = {
    "columnar": lambda _, __, sizes: columnar_ingest.columnar(sizes.columnar_events, sizes.rounds),
    "bytes": lambda _, __, sizes: stored_bytes(sizes.keys),
    "layers": lambda _, __, ___: tiles_read(),
    "arithmetic_error": lambda _, __, sizes: arithmetic_error(sizes.draws),
    "faults": lambda _, folder, sizes: faults(folder, sizes.kills),
}

PARTS = (*ON_SPARK, *BY_THEMSELVES)


def measure(parts: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Measure some parts, each in a folder of its own."""
    result: dict[str, Any] = {}
    on_spark = [part for part in parts if part in ON_SPARK]
    # The parts without Spark come first: they share the machine with no JVM.
    for part in [part for part in parts if part in BY_THEMSELVES]:
        result[part] = _measured(BY_THEMSELVES[part], part, None, sizes)
    if on_spark:
        spark = spark_session()
        try:
            for part in on_spark:
                result[part] = _measured(ON_SPARK[part], part, spark, sizes)
        finally:
            spark.stop()
    return {part: result[part] for part in PARTS if part in result}


def _measured(part: _Part, name: str, spark: SparkSession | None, sizes: Sizes) -> Any:
    print(f"measuring {name}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        found = part(spark, Path(folder), sizes)
    print(json.dumps({name: found}), flush=True)
    return found


def spark_session() -> SparkSession:
    """The session that all parts on Spark share."""
    spark = session(
        "features",
        master="local[2]",
        spark__ui__enabled="false",
        spark__driver__memory="3g",
        spark__sql__shuffle__partitions="8",
        spark__sql__session__timeZone="UTC",
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def bars(result: dict[str, Any]) -> list[Bar]:
    """What the figures of a result are held to."""
    found: list[Bar] = []
    for part, of_part in _BARS.items():
        if part in result:
            found += of_part(result[part])
    return found


def _ingest_bars(found: dict[str, Any]) -> list[Bar]:
    return [
        Bar(f"ingest {density}: events/s by Spark's", both["millpond"] / both["spark"], both["spark"], at_least=least)
        for density, least in (("dense", 0.5), ("sparse", 1.0))
        for both in [found[density]]
    ]


def _change_bars(found: dict[str, int]) -> list[Bar]:
    changed = found["changed"]
    return [Bar("change: bytes written by bytes changed", found["written"] / changed, changed, at_most=20)]


def _columnar_bars(found: dict[str, Any]) -> list[Bar]:
    least = {"count_sum_average_min_max": 5.0, "last_k": 2.0, "unique_count": 2.0}
    return [
        Bar(f"columnar {name}: times row by row", ratio, found["row_by_row"][name], at_least=least[name])
        for name, ratio in found["ratio"].items()
    ]


def _training_set_bars(found: dict[str, dict[str, float]]) -> list[Bar]:
    times = [
        Bar(
            f"training set, {int(keys):,} keys: times the range join",
            one["spark_seconds"] / one["seconds"],
            one["spark_seconds"],
            at_least=float(training_set.LEAST_SPEED_UP),
        )
        for keys, one in found.items()
    ]
    peak = max(one["peak_bytes"] for one in found.values())
    return [*times, Bar("training set: bytes", peak, "", at_most=float(training_set.MOST_BYTES))]


def _upload_bars(found: dict[str, Any]) -> list[Bar]:
    return [
        Bar("upload: seconds by Spark's", found["seconds"] / found["spark_seconds"], found["spark_seconds"], at_most=3),
        Bar(
            "upload: a further day by all",
            found["incremental_seconds"] / found["seconds"],
            found["seconds"],
            at_most=0.15,
        ),
    ]


def _bytes_bars(found: dict[str, float]) -> list[Bar]:
    once = found["unique_elements_once"]
    return [
        Bar("bytes: row of count, sum, average", found["row_scalar"], "", at_most=300),
        Bar("bytes: row of unique count by its elements", found["row_unique_count"] / once, once, at_most=1.5),
    ]


def _layers_bars(found: dict[str, dict[str, int]]) -> list[Bar]:
    return [
        Bar(f"tiles read: {name}", found["tiles_read"][name], found["without"][name], at_most=most)
        for name, most in (("30d_only", 2), ("1h_and_30d", 60))
    ]


def _error_bars(found: dict[str, float]) -> list[Bar]:
    return [
        Bar(f"error of {name}, units of the last place", error, "", at_most=1 if name in ("skew", "kurtosis") else 0.5)
        for name, error in found.items()
    ]


def _fault_bars(found: dict[str, int]) -> list[Bar]:
    return [Bar(f"faults: {name.replace('_', ' ')}", found[name], "", at_most=0) for name in FAULTS]


_BARS: dict[str, Callable[[Any], list[Bar]]] = {
    "ingest": _ingest_bars,
    "change": _change_bars,
    "columnar": _columnar_bars,
    "training_set": _training_set_bars,
    "upload": _upload_bars,
    "bytes": _bytes_bars,
    "layers": _layers_bars,
    "arithmetic_error": _error_bars,
    "faults": _fault_bars,
}


def with_kept(measured: Mapping[str, Any], kept: Path, tree: str) -> dict[str, Any]:
    """Give the parts just measured, and those that a file keeps from earlier runs of the same code."""
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if tree == CHANGED or found.get("tree") != tree:
        found = {}
    found.update(measured)
    return {part: found[part] for part in PARTS if part in found} | {"tree": tree}


def draw_margins(axes: "Axes", held: Sequence[Bar]) -> None:
    """Draw how many times better each figure is than its bar; those whose bar is 0 have no such ratio."""
    found = {bar.what: margin for bar in reversed(held) if (margin := bar.margin) is not None}
    axes.barh(list(found), list(found.values()))
    axes.axvline(1, color="#333333")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: format_number(value))
    axes.xaxis.set_minor_formatter(lambda value, _: format_number(value))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("times better than its bar")


def main() -> None:
    """Measure and report; a quick run is printed and not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; the figures mean nothing")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part; may be given several times")
    chosen = parser.parse_args()
    result = measure(chosen.only or PARTS, QUICK if chosen.quick else WHOLE)
    if not chosen.quick:
        result = with_kept(result, RESULTS / "features.json", tree_of_package())
    held = bars(result)
    result["held"] = {bar.what: bar.held for bar in held}
    if chosen.quick:
        for bar in held:
            print("  ".join(bar.line()))
        print(json.dumps(result))
        return
    report(
        "features",
        title="Computing features",
        columns=("what", "measured", "beside", "bar", "held"),
        rows=[bar.line() for bar in held],
        result=result,
        draw=lambda axes: draw_margins(axes, held),
    )


if __name__ == "__main__":
    main()

"""What King's case study shows: the table beside the seed's, and one picture for each of the seed's.

`benchmarks.king` measures; here the columns' results and samples become rows and curves. Rates come from
counters that were sampled, so a picture needs no clock and no state.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.report import COLOURS, format_number, grouped_bars, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"single": "one layer", "two_layer": "two layers", "lru": "LruStateCache"}
# max latency (s); blocking min, mean, max (s); checkpoint size (GB)
KING = {"single": (90, 26, 41, 57, 1720), "two_layer": (35, 4, 9, 14, 2150)}


class Sample(NamedTuple):
    """The counters at one moment, in seconds since the stream began; the last two are RocksDB's own."""

    at: float
    events: int
    gets: int
    puts: int
    asked: int
    l1: int
    l2: int
    pending_bytes: int
    compactions: int


def change(before: float, after: float) -> str:
    """In per cent, as the seed's table has it."""
    return f"{(after / before - 1) * 100:+.0f} %"


def table(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """The seed's comparison, ours beside it, and the third column."""
    picks: list[tuple[str, Callable[[dict[str, Any]], float], int | None]] = [
        ("max latency, median of the runs (ms)", lambda found: found["max_latency_ms"], 0),
        ("max latency, least of the runs (ms)", lambda found: found["spread"]["max_latency_ms"][0], None),
        ("max latency, most of the runs (ms)", lambda found: found["spread"]["max_latency_ms"][1], None),
        ("blocking, min (ms)", lambda found: found["blocking_ms"]["min"], 1),
        ("blocking, mean (ms)", lambda found: found["blocking_ms"]["mean"], 2),
        ("blocking, max (ms)", lambda found: found["blocking_ms"]["max"], 3),
        ("checkpoint size, mean (MB)", lambda found: found["checkpoint_bytes"] / 1e6, 4),
        ("checkpoints", lambda found: found["checkpoints"], None),
        ("p99.9 latency (ms)", lambda found: found["p999_latency_ms"], None),
        ("p99 latency (ms)", lambda found: found["p99_latency_ms"], None),
        ("median latency (ms)", lambda found: found["median_latency_ms"], None),
        ("state reads per event", lambda found: found["gets_per_record"], None),
        ("blocking, mean (ms of CPU)", lambda found: found["blocking_cpu_ms"], None),
        ("state writes in a blocking part", lambda found: found["puts_per_checkpoint"], None),
        ("state writes per event", lambda found: found["puts_per_record"], None),
        ("hit rate", lambda found: found["hit_rate"], None),
    ]
    rows = []
    for label, pick, seed in picks:
        single, two, lru = (pick(results[name]) for name in LABELS)
        theirs = "" if seed is None else change(KING["single"][seed], KING["two_layer"][seed])
        ours = change(single, two) if single else ""
        rows.append((label, theirs, ours, *map(format_number, (single, two, lru))))
    return rows


def per_second(samples: list[Sample], counter: str) -> tuple[list[float], list[float]]:
    """The times of the samples, and by how much a counter grew per second up to each."""
    times, rates = [], []
    for old, new in pairwise(samples):
        times.append(new.at)
        rates.append((getattr(new, counter) - getattr(old, counter)) / (new.at - old.at))
    return times, rates


def draw_latency(found: dict[str, dict[str, Any]], rate: float, axes: "Axes") -> None:
    """The largest latency of every tenth of a second of arrivals."""
    step = max(1, int(rate / 10))
    for name, label in LABELS.items():
        latency = found[name]["latency"]
        worst = [max(latency[at : at + step]) for at in range(0, len(latency), step)]
        axes.plot([at * step / rate for at in range(len(worst))], worst, label=label)
    finish(axes, "largest latency, s")


def draw_events(found: dict[str, dict[str, Any]], axes: "Axes") -> None:
    """Events worked off."""
    for name, label in LABELS.items():
        times, rates = per_second(found[name]["samples"], "events")
        axes.plot(times, [rate * 60 for rate in rates], label=label)
    finish(axes, "events per minute")


def draw_state(found: dict[str, dict[str, Any]], axes: "Axes") -> None:
    """What reached RocksDB."""
    for (name, label), colour in zip(LABELS.items(), COLOURS, strict=False):
        axes.plot(*per_second(found[name]["samples"], "puts"), label=f"{label}, writes", color=colour)
        axes.plot(
            *per_second(found[name]["samples"], "gets"), "--", label=f"{label}, reads", color=colour, linewidth=1.2
        )
    finish(axes, "state reads and writes per second")


def draw_rocksdb(found: dict[str, dict[str, Any]], axes: "Axes") -> None:
    """What RocksDB has to do because of it."""
    right = axes.twinx()
    for (name, label), colour in zip(LABELS.items(), COLOURS, strict=False):
        samples = found[name]["samples"]
        times = [sample.at for sample in samples]
        axes.plot(times, [sample.pending_bytes / 1e6 for sample in samples], label=label, color=colour)
        right.plot(times, [sample.compactions for sample in samples], ":", color=colour, linewidth=1.2)
    right.set_ylabel("running compactions (dotted)")
    right.grid(visible=False)
    right.set_ylim(0, 4)
    finish(axes, "pending compaction, MB")


def draw_hits(found: dict[str, dict[str, Any]], axes: "Axes") -> None:
    """Where reads of the two-layer cache ended."""
    samples = found["two_layer"]["samples"]
    (times, asked), (_, l1), (_, l2) = (per_second(samples, each) for each in ("asked", "l1", "l2"))
    misses = [every - first - second for every, first, second in zip(asked, l1, l2, strict=True)]
    for label, rates in {"L1 hits": l1, "L2 hits": l2, "misses": misses}.items():
        axes.plot(times, rates, label=label)
    finish(axes, "reads per second")


def finish(axes: "Axes", ylabel: str) -> None:
    """What all pictures over time share."""
    axes.set_xlabel("seconds")
    axes.set_ylabel(ylabel)
    axes.margins(y=0.25)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
    axes.legend(loc="upper left", ncols=3, fontsize=9)


def draw_checkpoints(results: dict[str, dict[str, Any]], axes: "Axes") -> None:
    """The blocking part of the checkpoints."""
    found = {
        LABELS[name]: [result["blocking_ms"][each] for each in ("min", "mean", "max")]
        for name, result in results.items()
    }
    grouped_bars(axes, ["min", "mean", "max"], found, ylabel="blocking part of a checkpoint, ms")


def write_pictures(found: dict[str, dict[str, Any]], rate: float, folder: Path) -> None:
    """One for each of the seed's, over time."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, tuple[str, Callable[[Axes], None]]] = {
        "latency": ("Latency over time", partial(draw_latency, found, rate)),
        "events": ("Events per minute", partial(draw_events, found)),
        "state": ("State reads and writes", partial(draw_state, found)),
        "rocksdb": ("RocksDB's compactions", partial(draw_rocksdb, found)),
        "hits": ("Hits of the two layers", partial(draw_hits, found)),
    }
    for name, (title, draw) in pictures.items():
        write_picture(folder / f"king_{name}.png", f"{title}: {rate:,.0f} events arrive per second", draw)

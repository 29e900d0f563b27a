"""Hit-rate curves against the truth: LRU at twelve sizes, the advice that follows from them, and a split budget.

Each trace is told to a recording, request by request, as a cache does. The true hit rate of LRU at every size comes
from all reuse distances of the whole trace.

The traces are the tail numbers of the flights, Zipf with exponents 0.8, 1.0 and 1.2, and two recorded ones (`REAL`)
where they are at hand. The twelve sizes lie at equal ratios between `LEAST_PART` of the keys and all of them. All
is drawn from seeds, so each run gives the same figures.

    .venv/bin/python -m benchmarks.curves

Source: Waldspurger, Park, Garthwaite, Ahmad: "Efficient MRC construction with SHARDS" (FAST 2015), whose traces have a
mean absolute error below 0.01 too.
"""

import gc
import lzma
import random
import sys
import tracemalloc
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from benchmarks.report import report
from millpond.cache import new_cache
from millpond.cache.curves import HitRateCurve, Share, best_split
from millpond.cache.curves.recording import Recording
from millpond.demo.data import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = 12
LEAST_PART = 1 / 256
WANTED_PARTS = (0.75, 0.9, 0.95, 0.98)
"""The hit rates that advice is asked for, as parts of the highest that LRU reaches."""

ZIPF_REQUESTS = 1_000_000
ZIPF_KEYS = 100_000
SEED = 25
BUDGET_STEPS = 100
REAL = ("web07", "orm-busy")

Keys = Sequence[int]


@dataclass(frozen=True)
class Truth:
    """The reuse distances of a whole trace: `hits[n]` requests hit in an LRU cache of `n` entries."""

    hits: npt.NDArray[np.int64]
    requests: int

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.hits) - 1

    def hit_rate(self, entries: float) -> float:
        """The hit rate of LRU."""
        return float(self.hits[min(self.keys, max(0, round(entries)))]) / self.requests


def true_lru(keys: Keys) -> Truth:
    """Count all reuse distances, by a binary indexed tree over the requests."""
    tree, last, counts = array("i", bytes(4 * (len(keys) + 1))), {}, [0] * (len(set(keys)) + 1)
    for now, key in enumerate(keys, 1):
        before = last.get(key)
        if before is not None:
            used, place = len(last), before
            while place:
                used -= tree[place]
                place &= place - 1
            counts[used + 1] += 1
            place = before
            while place <= len(keys):
                tree[place] -= 1
                place += place & -place
        place = now
        while place <= len(keys):
            tree[place] += 1
            place += place & -place
        last[key] = now
    return Truth(np.cumsum(counts), len(keys))


def zipf(exponent: float) -> Keys:
    """Independent requests, of which each key has its share whenever it is asked for."""
    generator = random.Random(SEED)
    names = [generator.getrandbits(60) for _ in range(ZIPF_KEYS)]
    shares = [1 / rank**exponent for rank in range(1, ZIPF_KEYS + 1)]
    return generator.choices(names, shares, k=ZIPF_REQUESTS)


def flights() -> Keys:
    """The aircraft of each flight of a year, in the order of departure."""
    generator = random.Random(SEED)
    names: dict[str, int] = {}
    tail_numbers = load().flights.column("tailnum").to_pylist()
    return [names.setdefault(one, generator.getrandbits(60)) for one in tail_numbers if one is not None]


def real(name: str) -> Keys | None:
    """A recorded trace; None where it is not beside this checkout."""
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "traces" / f"{name}.trace.xz"
        if path.exists():
            keys = array("I", lzma.decompress(path.read_bytes()))
            if sys.byteorder == "little":
                keys.byteswap()
            return keys
    return None


def told(keys: Keys, entry_bytes: int = 1) -> Recording:
    """A recording that was told of a trace."""
    recording = Recording(_CACHE)
    for key in keys:
        recording.asked(key)
        recording.wrote(key, None, lambda _key, _value: entry_bytes)
    return recording


def taken_bytes(keys: Keys) -> int:
    """The bytes that a recording takes once it is full."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        recording = told(keys)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
        assert recording.requests == len(keys)
        return taken
    finally:
        tracemalloc.stop()


def lru_curve(recording: Recording) -> HitRateCurve:
    """The curve of LRU."""
    curve = recording.curve("lru")
    assert curve is not None
    return curve


def sizes_of(truth: Truth) -> list[int]:
    """The sizes that the curves are compared at."""
    return [round(size) for size in np.geomspace(truth.keys * LEAST_PART, truth.keys, SIZES)]


def errors_of(curve: HitRateCurve, truth: Truth) -> list[float]:
    """The estimate less the truth at each of the sizes."""
    return [curve.at_entries(size) - truth.hit_rate(size) for size in sizes_of(truth)]


def advice_errors(curve: HitRateCurve, truth: Truth) -> list[float]:
    """By how many points the true hit rate at each advised size misses the one that was wanted."""
    highest = truth.hit_rate(truth.keys)
    advised = [(part * highest, curve.smallest(part * highest)) for part in WANTED_PARTS]
    return [100 * (truth.hit_rate(truth.keys if size is None else size.entries) - wanted) for wanted, size in advised]


@dataclass(frozen=True)
class Split:
    """What a split of a budget over three caches gives, in points of all their requests.

    Attributes:
        gain: over equal shares, by the recorded curves.
        best_gain: over equal shares, the best of all splits in steps, by the true hit rates.
    """

    gain: float
    best_gain: float


def split_of(traces: Mapping[str, tuple[Keys, int]], budget: int) -> Split:
    """Split a budget over the caches of some traces with entries of so many bytes."""
    truths = {name: true_lru(keys) for name, (keys, _) in traces.items()}
    entry_bytes = {name: each for name, (_, each) in traces.items()}
    shares = {name: Share(lru_curve(told(*traces[name])), len(traces[name][0])) for name in traces}

    def rate(split: Mapping[str, float]) -> float:
        hits = sum(truths[name].hits[_within(truths[name], size / entry_bytes[name])] for name, size in split.items())
        return 100 * float(hits) / sum(truth.requests for truth in truths.values())

    equal = rate(dict.fromkeys(traces, budget / len(traces)))
    step = budget / BUDGET_STEPS
    pairs = [(one, other) for one, other in product(range(BUDGET_STEPS + 1), repeat=2) if one + other <= BUDGET_STEPS]
    best = max(
        rate(dict(zip(traces, (one * step, other * step, budget - (one + other) * step), strict=True)))
        for one, other in pairs
    )
    return Split(rate(best_split(shares, budget)) - equal, best - equal)


def _within(truth: Truth, entries: float) -> int:
    return min(truth.keys, int(entries))


def main() -> None:
    """Compare, print, and write the results."""
    given: dict[str, Keys | None] = {"flights": flights(), "zipf 0.8": zipf(0.8), "zipf 1.0": zipf(1.0)}
    given |= {"zipf 1.2": zipf(1.2)} | {name: real(name) for name in REAL}
    traces = {name: keys for name, keys in given.items() if keys is not None}
    errors: dict[str, list[float]] = {}
    advice: dict[str, list[float]] = {}
    for name, keys in traces.items():
        truth, curve = true_lru(keys), lru_curve(told(keys))
        errors[name], advice[name] = errors_of(curve, truth), advice_errors(curve, truth)
        print(f"{name}: {truth.requests:,} requests, {truth.keys:,} keys", flush=True)
    loop = [key for _ in range(100) for key in range(_LOOP_KEYS)]
    split = split_of(
        {"flights": (traces["flights"], 400), "zipf": (traces["zipf 1.0"], 100), "loop": (loop, 200)}, BUDGET
    )
    mean = {name: float(np.mean(np.abs(each))) for name, each in errors.items()}
    worst = {name: max(map(abs, each)) for name, each in advice.items()}
    report(
        "curves",
        title=f"Hit-rate curves of LRU against the truth at {SIZES} sizes",
        columns=("trace", "mean absolute error", "largest error", "advice misses by at most, points"),
        rows=[(name, mean[name], max(map(abs, errors[name])), worst[name]) for name in traces],
        result={
            "mean_absolute_error": mean,
            "bytes": taken_bytes(traces["zipf 0.8"][:300_000]),
            "advice_error_points": worst,
            "split_gain_points": split.gain,
            "best_split_gain_points": split.best_gain,
        },
        draw=lambda axes: draw(axes, errors),
    )


def draw(axes: "Axes", errors: Mapping[str, list[float]]) -> None:
    """The error at each size."""
    parts = np.geomspace(LEAST_PART, 1, SIZES)
    for name, each in errors.items():
        axes.plot(parts, [100 * error for error in each], marker="o", label=name)
    axes.axhline(0, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("size of the cache, as a part of all keys")
    axes.set_ylabel("estimated less true hit rate, points")
    axes.legend(ncols=3)


BUDGET = 1_500_000
"""Bytes for three caches, about a fifth of what all their keys would take."""

_LOOP_KEYS = 3_000
_CACHE = new_cache("trace", max_entries=1_000)

if __name__ == "__main__":
    main()

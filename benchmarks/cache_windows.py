"""The window of W-TinyLFU: Millpond's choice by miniatures against fixed windows, a hill climber, and LRU.

The hill climber has the constants and the rule of Caffeine: it begins with a window of 1 % and with a step of 6.25 % of
the cache, downwards. After ten requests per entry it goes on if the hit rate has risen, and turns round if it has
fallen. Its step shrinks to 98 % each time, and is whole again after a change of the hit rate by 5 points or more. The
rest of the cache (sketch, admission) is Millpond's in every column, so only the choice of the window differs.

The traces are the tail numbers of the flights, Zipf with exponent 1.0, and two recorded ones where they are at hand.
Only hits are counted, so each run gives the same figures.

    .venv/bin/python -m benchmarks.cache_windows

Source: Einziger, Eytan, Friedman, Manes: "Adaptive software cache management" (Middleware 2018); Caffeine's
`BoundedLocalCache` (`climb`, `determineAdjustment`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.curves import REAL, Keys, flights, real, zipf
from benchmarks.report import report
from millpond.cache.best_window import BestWindow
from millpond.cache.order import LruOrder
from millpond.cache.tinylfu import TinyLfuOrder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (500, 1_000, 2_000, 5_000)

_NO_HASH = -(1 << 63)
_FIRST = 0.01
_STEP = 0.0625
_DECAY = 0.98
_RESTART = 0.05


class HillClimber:
    """Moves the window as Caffeine does. It is asked after each sample of requests.

    Attributes:
        limit: no key is passed to `use`, because only the hit rate counts.
        hits: of all requests so far.
        requests: all requests so far.
    """

    def __init__(self) -> None:
        self.limit = _NO_HASH
        self.hits = self.requests = 0
        self._seen = (0, 0)
        self._rate = 0.0
        self._share, self._step = _FIRST, -_STEP

    def use(self, spread: int) -> None:
        """Nothing to record."""

    def choose(self, entries: int) -> float | None:
        """Return the next share of the window."""
        hits, requests = self.hits - self._seen[0], self.requests - self._seen[1]
        self._seen = self.hits, self.requests
        if not requests:
            return None
        rate = hits / requests
        change = rate - self._rate
        self._rate = rate
        move = self._step if change >= 0 else -self._step
        self._step = (_STEP if move > 0 else -_STEP) if abs(change) >= _RESTART else _DECAY * move
        self._share = min(max(self._share + move, 1 / entries), 1 - 1 / entries)
        return self._share


def hit_rate(
    keys: Keys, order: LruOrder[int] | TinyLfuOrder[int], size: int, climber: HillClimber | None = None
) -> float:
    """The share of the requests that a cache of this size has hit."""
    held: set[int] = set()
    counted = climber or HillClimber()
    for key in keys:
        counted.requests += 1
        if key in held:
            counted.hits += 1
            order.read(key)
            continue
        order.added(key, 1)
        held.add(key)
        while len(held) > size:
            victim = order.victim()
            order.removed(victim)
            held.remove(victim)
    return counted.hits / len(keys)


def climbed(keys: Keys, size: int) -> float:
    """The hit rate with a window that a hill climber moves."""
    climber = HillClimber()
    return hit_rate(keys, TinyLfuOrder(size, None, _FIRST, climber), size, climber)


POLICIES: Mapping[str, Callable[[Keys, int], float]] = {
    "lru": lambda keys, size: hit_rate(keys, LruOrder(), size),
    "window_1": lambda keys, size: hit_rate(keys, TinyLfuOrder(size, None, 0.01), size),
    "window_20": lambda keys, size: hit_rate(keys, TinyLfuOrder(size, None, 0.2), size),
    "hill_climber": climbed,
    "miniatures": lambda keys, size: hit_rate(keys, TinyLfuOrder(size, None, windows=BestWindow()), size),
}


def main() -> None:
    """Compare, print, and write the results."""
    given: dict[str, Keys | None] = {"flights": flights(), "zipf 1.0": zipf(1.0)} | {name: real(name) for name in REAL}
    rates: dict[str, dict[str, float]] = {}
    for name, keys in given.items():
        if keys is None:
            continue
        for size in SIZES:
            rates[f"{name}, {size:,}"] = {policy: 100 * run(keys, size) for policy, run in POLICIES.items()}
            print(f"{name}, {size:,}: {rates[f'{name}, {size:,}']}", flush=True)
    report(
        "cache_windows",
        title="Hit rate in percent, by the window of W-TinyLFU",
        columns=("trace, entries", "LRU", "window of 1 %", "window of 20 %", "hill climber", "miniatures"),
        rows=[(name, *each.values()) for name, each in rates.items()],
        result={"hit_rate_percent": rates},
        draw=lambda axes: draw(axes, rates),
    )


def draw(axes: "Axes", rates: Mapping[str, Mapping[str, float]]) -> None:
    """What each window adds to LRU."""
    for policy in ("hill_climber", "miniatures"):
        above = [each[policy] - each["lru"] for each in rates.values()]
        axes.plot(above, marker="o", linestyle="", label=policy.replace("_", " "))
    axes.axhline(0, color="#333333", linewidth=1)
    axes.set_xticks(range(len(rates)), list(rates), rotation=45, ha="right")
    axes.set_ylabel("hit rate above LRU's, points")
    axes.legend()


if __name__ == "__main__":
    main()

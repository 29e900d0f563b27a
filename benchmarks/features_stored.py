"""What features take in the store, how many tiles a reader takes, and how exact they are: pure computation.

For `benchmarks.features`. The peers: elements stored once, one tile size for all windows, exact fractions.
"""

import math
import random
from fractions import Fraction
from statistics import mean

import msgspec

from millpond.features import Aggregation, Field, GroupBy, GroupByPlan, Tile, compile_group_by
from millpond.features.windows import DAY_MS, HOUR_MS, MINUTE_MS

EVENTS_PER_KEY = 60
WINDOWS = ("1d", "7d", "30d", None)
B = 20_000 * DAY_MS
HISTORY_MS = 40 * DAY_MS
TITLES = 1000
ONE_TILE_MS = 5 * MINUTE_MS
"""The tile of a design that has one size for all windows."""

OPERATIONS = ("sum", "average", "variance", "skew", "kurtosis")
LEAST_KEPT_BITS = 400


def planned(*aggregations: Aggregation) -> GroupByPlan:
    """A plan over a price and a title."""
    inputs = (Field("price", "double"), Field("title", "string"))
    return compile_group_by(GroupBy("visits", (Field("user", "long"),), inputs, aggregations))


def stored_bytes(keys: int) -> dict[str, float]:
    """Bytes of a key's batch row and of its tiles, in the mean over some keys."""
    scalar = planned(*(Aggregation(operation, "price", WINDOWS) for operation in ("count", "sum", "average")))
    unique = planned(Aggregation("unique_count", "title", WINDOWS))
    rng = random.Random(3)
    rows: dict[str, list[int]] = {"row_scalar": [], "row_unique_count": [], "unique_elements_once": []}
    for user in range(keys):
        events = [
            (B - rng.randrange(1, HISTORY_MS), (round(rng.lognormvariate(3, 1), 2), f"title {rng.randrange(TITLES)}"))
            for _ in range(EVENTS_PER_KEY)
        ]
        key = scalar.encode_key((user,))
        assert key is not None
        rows["row_scalar"].append(len(scalar.encode_batch(key, scalar.batch_ir(events, B))))
        rows["row_unique_count"].append(len(unique.encode_batch(key, unique.batch_ir(events, B))))
        titles = sorted({title for _, (_, title) in events})
        rows["unique_elements_once"].append(len(msgspec.msgpack.encode(titles)))
    tiles = [
        len(scalar.encode_tile(key, Tile(B, scalar.tile_ms, ir=scalar.collect([B], [(round(price, 2), None)]))))
        for price in (rng.lognormvariate(3, 1) for _ in range(keys))
    ]
    return {name: mean(sizes) for name, sizes in rows.items()} | {
        "tile_scalar": mean(tiles),
        "events_per_key": EVENTS_PER_KEY,
    }


def tiles_read() -> dict[str, dict[str, int]]:
    """Tiles that a reader takes of a busy key, 36 hours after a batch."""
    query = B + 36 * HOUR_MS
    found: dict[str, dict[str, int]] = {"tiles_read": {}, "without": {}}
    for name, windows in (("30d_only", ("30d",)), ("1h_and_30d", ("1h", "30d"))):
        plan = planned(Aggregation("sum", "price", windows))
        spans = plan.spans(B, query, query, plan.window_starts(query))
        found["tiles_read"][name] = sum((end - start) // plan.layers[layer] for layer, start, end in spans)
        found["without"][name] = (query - B) // ONE_TILE_MS
    return found


def arithmetic_error(rounds: int) -> dict[str, float]:
    """The largest error of each operation against exact fractions, in units of the last place."""
    plans = {operation: planned(Aggregation(operation, "price")) for operation in OPERATIONS}
    worst = dict.fromkeys(OPERATIONS, 0.0)
    rng = random.Random(5)
    for _ in range(rounds):
        values = _drawn(rng)
        exact = _exact([Fraction(value) for value in values])
        for operation, plan in plans.items():
            ir = plan.collect([0] * len(values), [(value, None) for value in values])
            (feature,) = plan.cells.features
            got = feature.finish(*[ir[position] for position in feature.positions])
            if exact[operation] is None:
                assert got is None, (operation, got, values)
            elif not math.isinf(got):
                error = abs(Fraction(got) - exact[operation]) / Fraction(math.ulp(got))
                worst[operation] = max(worst[operation], float(error))
    return worst


def _drawn(rng: random.Random) -> list[float]:
    """Some values: of one size, of very different ones, or close to each other and far from 0."""
    count = rng.randrange(2, 40)
    kind = rng.randrange(3)
    if kind == 0:
        return [rng.gauss(0, 30) for _ in range(count)]
    if kind == 1:
        return [math.ldexp(rng.uniform(-1, 1), rng.randrange(-60, 60)) for _ in range(count)]
    return [1e9 + rng.random() for _ in range(count)]


def _exact(values: list[Fraction]) -> dict[str, Fraction | None]:
    count = len(values)
    average = sum(values, Fraction(0)) / count
    second, third, fourth = (sum((value - average) ** power for value in values) / count for power in (2, 3, 4))
    if not second:
        return {"sum": average * count, "average": average, "variance": Fraction(0), "skew": None, "kurtosis": None}
    return {
        "sum": average * count,
        "average": average,
        "variance": second,
        "skew": third / (second * _root(second)),
        "kurtosis": fourth / second**2 - 3,
    }


def _root(value: Fraction) -> Fraction:
    """The square root to several hundred bits, which is exact beside 53."""
    shift = LEAST_KEPT_BITS + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction(math.isqrt((value.numerator << 2 * shift) // value.denominator), 1 << shift)

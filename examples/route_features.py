"""Declares features of routes and computes them from events with `millpond.features`, in pure functions.

Events before the batch end become a batch IR, and later ones tiles. Both are merged as the fetcher does it.

    python examples/route_features.py
"""

from collections.abc import Sequence

from millpond.features import DAY_MS, MINUTE_MS, Aggregation, Field, GroupBy, Tile, compile_group_by, tile_start

TILE_MS = 5 * MINUTE_MS

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=(
        Aggregation("count", windows=("7d",)),
        Aggregation("average", "delay", windows=("7d",)),
    ),
)


def features_of(events: Sequence[tuple[int, float]], batch_end_ms: int, query_ms: int) -> dict[str, object]:
    """Compute the features of one key as of a time.

    Args:
        events: time in ms and delay of each event, in any order.
        batch_end_ms: events before it are in the batch, later ones in the stream.
        query_ms: the query time; at or after the batch end.
    """
    plan = compile_group_by(ROUTE)
    before = [(at_ms, (delay,)) for at_ms, delay in events if at_ms < batch_end_ms]
    tiles: list[Tile] = []
    for at_ms, delay in sorted(events):
        if batch_end_ms <= at_ms < query_ms:
            ir = plan.collect([at_ms], [(delay,)])
            start_ms = tile_start(at_ms, TILE_MS)
            if tiles and tiles[-1].start_ms == start_ms:
                ir = plan.merge(tiles.pop().ir, ir)
            tiles.append(Tile(start_ms, TILE_MS, False, 0, ir))
    return plan.finish(query_ms, batch_end_ms, plan.batch_ir(before, batch_end_ms), tiles)


def main() -> None:
    """Print the features of a route at noon, with one event in the batch and two in the stream."""
    midnight = 19_000 * DAY_MS
    noon = midnight + DAY_MS // 2
    print(features_of([(midnight - DAY_MS, 10.0), (midnight + 1, 20.0), (noon - 1, 60.0)], midnight, noon))


if __name__ == "__main__":
    main()

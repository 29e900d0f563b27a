"""A store filled by the plans alone, without Spark: what uploads and streams of the demo would write."""

from collections import defaultdict

import pyarrow as pa

from millpond.demo.definitions import AIRCRAFT, AIRPORT, ROUTE
from millpond.features import (
    SERVING_INFO_DATASET,
    GroupBy,
    GroupByPlan,
    ServingInfo,
    Tile,
    batch_dataset,
    compile_group_by,
    serving_info_key,
    stream_dataset,
    tile_start,
)
from millpond.kv import KVStore, Put

EVENTS = pa.schema(
    {
        "flight_id": pa.int64(),
        "sched_ms": pa.int64(),
        "time_ms": pa.int64(),
        "origin": pa.string(),
        "carrier": pa.string(),
        "tailnum": pa.string(),
        "dest": pa.string(),
        "dep_delay": pa.float64(),
        "delayed_15": pa.float64(),
    }
)


def fill(store: KVStore, events: pa.Table, batch_end_ms: int, landing_ms: int = 1) -> None:
    """Write batch rows, tiles and serving infos of all three GroupBys."""
    for group_by in (ROUTE, AIRCRAFT, AIRPORT):
        _fill(store, group_by, compile_group_by(group_by), events.to_pylist(), batch_end_ms, landing_ms)


def _fill(
    store: KVStore, group_by: GroupBy, plan: GroupByPlan, events: list[dict], batch_end_ms: int, landing_ms: int
) -> None:
    batch, stream = (
        batch_dataset(group_by.name, batch_end_ms, landing_ms),
        stream_dataset(group_by.name, plan.generation),
    )
    for key, seen in _by_key(group_by, plan, events).items():
        rows = plan.batch_ir(seen, batch_end_ms)
        if group_by is AIRPORT:
            values = plan.finish(batch_end_ms, batch_end_ms, rows, [])
            row = plan.encode_values(key, [values[name] for name in plan.feature_names], batch_end_ms)
        else:
            row = plan.encode_batch(key, rows)
            tiles = [Put(key, plan.encode_tile(key, tile), tile.start_ms) for tile in _tiles(plan, seen, batch_end_ms)]
            store.put_many(stream, tiles)
        store.put_many(batch, [Put(key, row, batch_end_ms)])
    info = ServingInfo(
        group_by.name,
        plan.definition_hash,
        batch_end_ms,
        landing_ms,
        batch,
        stream,
        plan.generation,
        plan.batch_form,
        plan.layers,
        group_by.accuracy,
    )
    store.put_many(SERVING_INFO_DATASET, [Put(serving_info_key(group_by.name), info.encode())])


def _by_key(group_by: GroupBy, plan: GroupByPlan, events: list[dict]) -> dict[bytes, list]:
    of_key: dict[bytes, list] = defaultdict(list)
    for event in events:
        row = event | {"airport": event["origin"]}
        key = plan.encode_key([row[field.name] for field in group_by.keys])
        if key is not None:
            of_key[key].append((row["time_ms"], tuple(row[field.name] for field in group_by.inputs)))
    return of_key


def _tiles(plan: GroupByPlan, seen: list, batch_end_ms: int) -> list[Tile]:
    irs: dict[int, tuple] = {}
    for time_ms, inputs in seen:
        if time_ms >= batch_end_ms:
            start = tile_start(time_ms, plan.tile_ms)
            irs[start] = plan.merge(irs.get(start, plan.new_ir()), plan.collect([time_ms], [inputs]))
    return [Tile(start, plan.tile_ms, ir=ir) for start, ir in irs.items()]

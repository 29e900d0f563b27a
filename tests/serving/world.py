"""A small world to fetch from: a GroupBy, an upload and tiles written the way the real ones write them."""

from collections import defaultdict

from millpond.errors import UnavailableError
from millpond.features import (
    DAY_MS,
    HOUR_MS,
    Aggregation,
    Field,
    GroupBy,
    ServingInfo,
    Tile,
    batch_dataset,
    compile_group_by,
    stream_dataset,
    tile_start,
)
from millpond.kv import MemoryStore, Put

BATCH_END_MS = 100 * DAY_MS

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=(Field("dep_delay", "double"),),
    aggregations=(
        Aggregation("count", windows=("1h", "1d", "30d", None)),
        Aggregation("average", "dep_delay", windows=("1h", "7d", None)),
        Aggregation("max", "dep_delay", windows=("6h",)),
    ),
)
AIRCRAFT = GroupBy(
    "aircraft",
    keys=(Field("tail", "string"),),
    inputs=(Field("dep_delay", "double"),),
    aggregations=(Aggregation("sum", "dep_delay", windows=("1d",)),),
)
ROUTE_PLAN = compile_group_by(ROUTE)
AIRCRAFT_PLAN = compile_group_by(AIRCRAFT)
PLANS = (ROUTE_PLAN, AIRCRAFT_PLAN)

EWR = {"origin": "EWR", "carrier": "UA"}
JFK = {"origin": "JFK", "carrier": "B6"}
NOBODY = {"origin": "XXX", "carrier": "ZZ"}


def upload(store, plan, events_by_key, batch_end_ms=BATCH_END_MS, landing_ms=1):
    """Write a batch whole, then flip the serving info, as the upload does."""
    dataset = batch_dataset(plan.name, batch_end_ms, landing_ms)
    puts = []
    for key, events in events_by_key.items():
        ir = plan.batch_ir(events, batch_end_ms)
        encoded = plan.encode_key(key)
        puts.append(Put(encoded, plan.encode_batch(encoded, ir), batch_end_ms))
    store.put_many(dataset, puts)
    info = info_of(plan, batch_end_ms, landing_ms, dataset)
    store.put_many("serving_info", [Put(plan.name.encode(), info.encode())])
    return info


def info_of(plan, batch_end_ms, landing_ms, dataset):
    """The serving info of an upload."""
    return ServingInfo(
        plan.name,
        plan.definition_hash,
        batch_end_ms,
        landing_ms,
        dataset,
        stream_dataset(plan.name, plan.generation),
        plan.generation,
        plan.batch_form,
        plan.layers,
    )


def stream(store, plan, events_by_key):
    """Write all tiles of the events, as the stream does: those before the batch end too."""
    puts = []
    for key, events in events_by_key.items():
        by_tile = defaultdict(list)
        for time_ms, inputs in events:
            by_tile[tile_start(time_ms, plan.tile_ms)].append((time_ms, inputs))
        encoded = plan.encode_key(key)
        for start_ms, of_tile in by_tile.items():
            tile = Tile(start_ms, plan.tile_ms, ir=plan.collect(*zip(*of_tile, strict=True)))
            puts.append(Put(encoded, plan.encode_tile(encoded, tile), start_ms))
    store.put_many(stream_dataset(plan.name, plan.generation), puts)


def read_directly(store, plan, info, key, query_ms):
    """What a fetch must equal: the rows of the key, read one by one, decoded, finished."""
    from millpond.kv import Get

    encoded = plan.encode_key(key)
    batch = store.get_many([Get(info.batch_dataset, encoded)])[0]
    tiles = store.get_many([Get(info.streaming_dataset, encoded)])[0]
    return plan.finish(
        query_ms,
        info.batch_end_ms,
        plan.decode_batch(encoded, batch[0].value) if batch else None,
        [plan.decode_tile(encoded, row.value) for row in tiles],
    )


def small_world():
    """A store with one batch of `route`, and tiles: EWR flies every 7 hours for 40 days, JFK only before."""
    store = MemoryStore()
    ewr = [(BATCH_END_MS - 38 * DAY_MS + hour * 7 * HOUR_MS, (float(hour % 11),)) for hour in range(137)]
    jfk = [(BATCH_END_MS - 3 * HOUR_MS, (5.0,))]
    events = {("EWR", "UA"): ewr, ("JFK", "B6"): jfk}
    info = upload(store, ROUTE_PLAN, events)
    stream(store, ROUTE_PLAN, events)
    return store, info


class Clock:
    """Milliseconds that a test moves."""

    def __init__(self):
        self.now_ms = 0

    def __call__(self):
        return self.now_ms


class FailingStore(MemoryStore):
    """A store that fails while `failing` is set, and counts what it is asked."""

    failing = False

    def __init__(self):
        super().__init__()
        self.asked = []

    def get_many(self, gets):
        self.asked.append([get.dataset for get in gets])
        if self.failing:
            raise UnavailableError("the store is away")
        return super().get_many(gets)

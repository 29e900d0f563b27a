"""A small world to fetch from: definitions, an upload, and a stream written the way the real one writes."""

from collections import defaultdict

from millpond.errors import UnavailableError
from millpond.features import (
    CLOSING_KEY,
    DAY_MS,
    HOUR_MS,
    MARKER_ADDRESS,
    MINUTE_MS,
    Aggregation,
    ClosingTime,
    Field,
    GroupBy,
    Join,
    JoinPart,
    ServingInfo,
    Tile,
    batch_dataset,
    compile_group_by,
    encode_closing_time,
    encode_marker,
    layer_of,
    stream_dataset,
    tile_address,
)
from millpond.features.derivations import Derivation
from millpond.kv import Get, MemoryStore, Put

BATCH_END_MS = 100 * DAY_MS
NOON_MS = BATCH_END_MS + 12 * HOUR_MS

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=(Field("dep_delay", "double"), Field("tail", "string")),
    aggregations=(
        Aggregation("count", windows=("1h", "1d", "30d", None)),
        Aggregation("average", "dep_delay", windows=("1h", "7d", None)),
        Aggregation("max", "dep_delay", windows=("6h",)),
        Aggregation("last_k", "tail", windows=("6h", "1d", "7d"), k=2),
        Aggregation("unique_count", "tail", windows=("1d",)),
    ),
)
AIRCRAFT = GroupBy(
    "aircraft",
    keys=(Field("tail", "string"),),
    inputs=(Field("dep_delay", "double"),),
    aggregations=(Aggregation("sum", "dep_delay", windows=("30m", "1d")),),
)
ROUTE_PLAN = compile_group_by(ROUTE)
AIRCRAFT_PLAN = compile_group_by(AIRCRAFT)
PLANS = (ROUTE_PLAN, AIRCRAFT_PLAN)

OWNER = GroupBy(
    "owner",
    keys=(Field("tail", "string"),),
    inputs=(Field("name", "string"), Field("since", "date"), Field("seats", "array<int>")),
    accuracy="snapshot",
)
OWNER_PLAN = compile_group_by(OWNER)
FLIGHT = Join(
    "flight",
    parts=(
        JoinPart(ROUTE, prefix="r"),
        JoinPart(AIRCRAFT, key_mapping={"plane": "tail"}),
        JoinPart(OWNER, key_mapping={"plane": "tail"}, prefix=""),
    ),
    context=(Field("price", "double"),),
    derivations=(
        Derivation("price_per_flight", "price / r_count_1d"),
        Derivation("is_known", "name is not null"),
    ),
)
PLANE = {"origin": "EWR", "carrier": "UA", "plane": "N7"}

EWR = {"origin": "EWR", "carrier": "UA"}
JFK = {"origin": "JFK", "carrier": "B6"}
NOBODY = {"origin": "XXX", "carrier": "ZZ"}


def upload(store, plan, events_by_key, batch_end_ms=BATCH_END_MS, landing_ms=1):
    """Write a batch whole, then flip the serving info, as the upload does."""
    dataset = batch_dataset(plan.name, batch_end_ms, landing_ms)
    puts = []
    for key, events in events_by_key.items():
        encoded = plan.encode_key(key)
        batch = plan.batch_ir([event for event in events if event[0] < batch_end_ms], batch_end_ms)
        if batch.segments:
            puts.append(Put(encoded, plan.encode_batch(encoded, batch), batch_end_ms))
    store.put_many(dataset, puts)
    return flip(store, plan, dataset, batch_end_ms, landing_ms)


def upload_values(store, plan, values_by_key, batch_end_ms=BATCH_END_MS, landing_ms=1):
    """Write a batch of finished values, as the upload does for snapshots."""
    dataset = batch_dataset(plan.name, batch_end_ms, landing_ms)
    puts = []
    for key, values in values_by_key.items():
        encoded = plan.encode_key(key)
        puts.append(Put(encoded, plan.encode_values(encoded, values, batch_end_ms), batch_end_ms))
    store.put_many(dataset, puts)
    return flip(store, plan, dataset, batch_end_ms, landing_ms)


def flip(store, plan, dataset, batch_end_ms, landing_ms):
    """Write the serving info."""
    info = ServingInfo(
        plan.name,
        plan.definition_hash,
        batch_end_ms,
        landing_ms,
        dataset,
        stream_dataset(plan.name, plan.generation),
        plan.generation,
        plan.batch_form,
        plan.layers,
        plan.group_by.accuracy,
    )
    store.put_many("serving_info", [Put(plan.name.encode(), info.encode())])
    return info


class Stream:
    """Writes tiles of all layers, markers and closing times, as the stream processor does."""

    def __init__(self, store, plan):
        self.store = store
        self.plan = plan
        self.dataset = stream_dataset(plan.name, plan.generation)
        self.events = defaultdict(list)
        self.closed_ms = -(1 << 40)
        self.amendments = defaultdict(int)
        self.versions = defaultdict(int)

    def add(self, key, events):
        """Take events of one key; those of closed tiles amend them."""
        encoded = self.plan.encode_key(key)
        self.events[encoded] += events
        starts = {time_ms // self.plan.tile_ms * self.plan.tile_ms for time_ms, _ in events}
        puts = {}
        is_late = False
        for start in starts:
            if start + self.plan.tile_ms <= self.closed_ms:
                is_late = True
                for layer, size in enumerate(self.plan.layers):
                    begin = start // size * size
                    if begin + size <= self.closed_ms:
                        self.versions[encoded, layer, begin] += 1
                        puts[layer, begin] = self._put(encoded, layer, begin)
            else:
                puts[0, start] = self._put(encoded, 0, start)
        rows = list(puts.values())
        if is_late:
            self.amendments[encoded] += 1
            rows.append(Put(encoded, encode_marker(encoded, self.amendments[encoded]), MARKER_ADDRESS))
        self.store.put_many(self.dataset, rows)

    def close(self, closed_ms, *, publish=True):
        """Close every tile that ends here or before, and say so."""
        closed_ms = closed_ms // self.plan.tile_ms * self.plan.tile_ms
        before, self.closed_ms = self.closed_ms, max(closed_ms, self.closed_ms)
        for encoded, events in self.events.items():
            for layer, size in enumerate(self.plan.layers):
                begins = {time_ms // size * size for time_ms, _ in events}
                puts = [self._put(encoded, layer, one) for one in begins if before < one + size <= closed_ms]
                self.store.put_many(self.dataset, puts)
        if publish:
            self.publish(closed_ms)

    def restart(self, back_ms):
        """Begin again without state, somewhat before the published closing time: later tiles are open again."""
        tile_ms = self.plan.tile_ms
        closed_ms = (self.published_ms - back_ms) // tile_ms * tile_ms
        self.publish(closed_ms)
        self.closed_ms = closed_ms
        for encoded, events in self.events.items():
            starts = {time_ms // tile_ms * tile_ms for time_ms, _ in events}
            self.store.put_many(self.dataset, [self._put(encoded, 0, start) for start in starts])

    def publish(self, closed_ms, started_ms=None):
        """Write a closing time."""
        self.published_ms = closed_ms
        row = Put(CLOSING_KEY, encode_closing_time(ClosingTime(0, 1, closed_ms, started_ms)), 0)
        self.store.put_many(self.dataset, [row])

    def _put(self, encoded, layer, begin):
        plan, size = self.plan, self.plan.layers[layer]
        inside = [(time_ms, inputs) for time_ms, inputs in self.events[encoded] if begin <= time_ms < begin + size]
        times, inputs = [time_ms for time_ms, _ in inside], [values for _, values in inside]
        complete = begin + size <= self.closed_ms
        tile = Tile(begin, size, complete, self.versions[encoded, layer, begin], plan.collect(times, inputs))
        return Put(encoded, plan.encode_tile(encoded, tile), tile_address(layer, begin))


def read_directly(store, plan, info, key, query_ms):
    """What a fetch must equal: the rows of the key and its smallest tiles, read one by one, decoded, finished."""
    encoded = plan.encode_key(key)
    batch = store.get_many([Get(info.batch_dataset, encoded)])[0]
    rows = store.get_many([Get(info.streaming_dataset, encoded)])[0]
    return plan.finish(
        query_ms,
        info.batch_end_ms,
        plan.decode_batch(encoded, batch[0].value) if batch else None,
        [plan.decode_tile(encoded, r.value) for r in rows if layer_of(r.time_ms) == 0 and r.time_ms != MARKER_ADDRESS],
    )


def small_world():
    """A store with one batch of `route`, and tiles closed up to noon: EWR flies every 7 hours, JFK only before."""
    store = MemoryStore()
    ewr = [(BATCH_END_MS - 38 * DAY_MS + hour * 7 * HOUR_MS, (float(hour % 11), f"N{hour % 5}")) for hour in range(137)]
    ewr += [(BATCH_END_MS + minutes * 13 * MINUTE_MS, (3.0, "N7")) for minutes in range(60)]
    jfk = [(BATCH_END_MS - 3 * HOUR_MS, (5.0, "N1"))]
    info = upload(store, ROUTE_PLAN, {("EWR", "UA"): ewr, ("JFK", "B6"): jfk})
    stream = Stream(store, ROUTE_PLAN)
    stream.add(("EWR", "UA"), [event for event in ewr if event[0] >= BATCH_END_MS])
    stream.close(NOON_MS)
    return store, info, stream


class Clock:
    """Milliseconds that a test moves."""

    def __init__(self):
        self.now_ms = 0

    def __call__(self):
        return self.now_ms


class Later:
    """Keeps what is to run in the background, until a test runs it."""

    def __init__(self):
        self.work = []

    def __call__(self, work):
        self.work.append(work)

    def run(self):
        while self.work:
            self.work.pop(0)()


class WatchedStore(MemoryStore):
    """A store that fails while `failing` is set, and keeps what it was asked."""

    failing = False

    def __init__(self):
        super().__init__()
        self.asked = []

    def get_many(self, gets):
        self.asked.append(list(gets))
        if self.failing:
            raise UnavailableError("the store is away")
        return super().get_many(gets)

"""Random processors over random streams: Millpond's output and final state are those of PySpark's own operator.

A processor is drawn with its states, their times to live, and what it does when a timer fires; a stream is
drawn with keys, times, late rows, and what each row has the processor do. Both run twice, through PySpark's
operator and through Millpond's, and every batch's output and the state in both checkpoints are compared.

Processing time is the machine's, so there only what does not depend on how long a batch takes is drawn: a
time to live is over by the next batch or never, and so is the wait for a timer.

`MILLPOND_EQUIVALENCE_STREAMS=20` draws so many streams per time mode; a failure names its seed.
"""

import json
import os
import random

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed
from millpond.spark.shuffle.pack import SHARD
from millpond.state.checkpoint import Manifest, Shard
from millpond.state.spi import HeapBackend
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

STREAMS = int(os.environ.get("MILLPOND_EQUIVALENCE_STREAMS", "1"))
OUTPUT = "user string, part long, told string"
HOUR_MS = 3_600_000
SHAPES = {
    "value": ("n long, word string", "update/0 update/1 update/2 get exists clear"),
    "list": ("n long", "put/2 put/1 appendValue appendValue appendList/3 get exists clear"),
    "map": (
        "n long",
        "updateValue/a updateValue/b updateValue/ removeKey/a getValue/a containsKey/b iterator keys clear",
    ),
}
"""The schema of each kind of state, and what may be done to it, with an argument."""


def drawn_acts(rng, states, mode, most):
    """What a row, or a timer, has the processor do."""
    chosen = (rng.choice(states) for _ in range(rng.randint(0, most)))
    acts = [[name, *rng.choice(SHAPES[shape][1].split()).split("/")] for name, shape, _ in chosen]
    if mode != "None":
        waits = [1, 5_000, 20_000, 60_000] if mode == "EventTime" else [0, 1, HOUR_MS]
        acts += [
            ["timer", rng.choice(["register", "register", "delete"]), rng.choice(waits)]
            for _ in range(rng.choice([0, 0, 1, 2]))
        ]
    return acts


class Drawn(StatefulProcessor):
    """Does what its rows say, and tells all it sees."""

    def __init__(self, rng, mode):
        ttls = [None, None, 1, HOUR_MS] if mode == "ProcessingTime" else [None]
        shapes = [*SHAPES, *rng.sample(sorted(SHAPES), 2)]
        self.states = [(f"{shape}{at}", shape, rng.choice(ttls)) for at, shape in enumerate(shapes)]
        self.mode = mode
        self.when_fired = [drawn_acts(rng, self.states, mode, 3) for _ in range(3)]

    def init(self, handle):
        self.handle = handle
        self.found = {}
        self.clock = handle.getValueState("clock", "ms long")
        for name, shape, ttl in self.states:
            schema = SHAPES[shape][0]
            if shape == "value":
                self.found[name] = handle.getValueState(name, schema, ttl)
            elif shape == "list":
                self.found[name] = handle.getListState(name, schema, ttl)
            else:
                self.found[name] = handle.getMapState(name, "k string", schema, ttl)

    def handleInputRows(self, key, rows, timerValues):
        self.clock.update((timerValues.getCurrentProcessingTimeInMs(),))
        told = []
        for row in sorted(rows, key=lambda row: row.id):
            at = None if row.at is None else int(row.at.timestamp() * 1000)
            told += [self.act(act, row.id, at, timerValues) for act in json.loads(row.acts)]
        yield Row(user=key[0], part=key[1], told=json.dumps([told, self.timers()]))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        acts = self.when_fired[expiry % len(self.when_fired) if self.mode == "EventTime" else 0]
        told = [self.act(act, 1000, expiry, timerValues) for act in acts]
        fired = expiry if self.mode == "EventTime" else None
        yield Row(user=key.user, part=key.part, told=json.dumps(["fired", fired, told, self.timers()]))

    def timers(self):
        """In processing time their moments are the machine's business."""
        if self.mode == "None":
            return None
        timers = sorted(self.handle.listTimers())
        return timers if self.mode == "EventTime" else len(timers)

    def act(self, act, number, at, times):
        name, method, *given = act
        if name == "timer":
            return self.act_on_timer(method, given[0], at, times)
        state = self.found[name]
        if method == "update":
            return state.update((number or None, "x" * int(given[0])))
        if method == "appendValue":
            return state.appendValue((number,))
        if method in {"put", "appendList"}:
            return getattr(state, method)([(number + more,) for more in range(int(given[0]))])
        if method == "updateValue":
            return state.updateValue((given[0] or None,), (number,))
        result = getattr(state, method)(*[(each,) for each in given])
        return sorted(result, key=repr) if method in {"iterator", "keys", "values"} else listed(result)

    def act_on_timer(self, method, wait_ms, at, times):
        event_time = self.mode == "EventTime"
        now = times.getCurrentWatermarkInMs() if event_time else times.getCurrentProcessingTimeInMs()
        moment = max(now, at or 0) + wait_ms if event_time else now + wait_ms
        if method == "register":
            self.handle.registerTimer(moment)
        else:
            self.handle.deleteTimer(moment)
        return moment if event_time else wait_ms

    def close(self):
        pass


def listed(result):
    return list(result) if hasattr(result, "__next__") else result


class DrawnStream(FileStream):
    schema = "user string, part long, id long, at timestamp, acts string"

    def add(self, rows):
        self.write([dict(zip(("user", "part", "id", "at", "acts"), row, strict=True)) for row in rows])


def drawn_batches(rng, processor):
    """Batches of rows that mostly go on in time, some of them late, some without a time."""
    users, clock, number, batches = ["ann", "bob", None], 100.0, 0, []
    for _ in range(4):
        rows = []
        for _ in range(rng.randint(1, 12)):
            number += 1
            at = rng.choice([clock, clock + rng.randint(0, 30), clock - rng.randint(0, 60), None])
            acts = json.dumps(drawn_acts(rng, processor.states, processor.mode, 4))
            rows.append((rng.choice(users), rng.choice([0, 0, 1]), number, at, acts))
        batches.append(rows)
        clock += rng.choice([0, 10, 50])
    # The last rows read all there is, and say when to stop.
    reads = {"value": "get", "list": "get", "map": "iterator"}
    everything = json.dumps([[name, reads[shape]] for name, shape, _ in processor.states])
    last = [(user, part, number + 1, clock + 100, everything) for user in users for part in (0, 1)]
    return [*batches, [*last, ("end", 0, number + 2, clock + 100, "[]")]]


def sorted_tuples(batch):
    return sorted((tuple(row) for row in batch), key=repr)


@pytest.mark.parametrize("number", range(STREAMS))
@pytest.mark.parametrize("mode", [pytest.param("None", marks=pytest.mark.soak), "EventTime", "ProcessingTime"])
def test_random_processors_and_streams_give_what_pyspark_gives(spark, tmp_path, mode, number, record_property):
    seed = f"{mode}-{number}"
    print(f"seed {seed}")
    record_property("streams", 1)
    rng = random.Random(seed)
    processor = Drawn(rng, mode)
    batches = drawn_batches(rng, processor)
    backend = rng.choice(["heap", "rocksdb"])
    outputs, states = {}, {}
    for engine in ("pyspark", "millpond"):
        (tmp_path / engine).mkdir()
        stream = DrawnStream(spark, tmp_path / engine)
        for batch in batches:
            stream.add(batch)
        events = stream.frame() if mode == "None" else stream.frame().withWatermark("at", "5 seconds")
        if engine == "pyspark":
            operated = events.groupBy("user", "part").transformWithState(processor, OUTPUT, "Update", mode)
        else:
            operated = keyed(events, "user", "part").transformWithState(
                processor, OUTPUT, "Update", mode, state=StateConfig(backend)
            )
        ran = stream.run_until(operated, {("end", 0)}) if mode == "ProcessingTime" else stream.run(operated)
        last = next(at for at, batch in enumerate(ran) if any(row.user == "end" for row in batch))
        # In processing time Spark goes on with batches without rows as long as it is not stopped.
        ran = ran[: last + 1] if mode == "ProcessingTime" else ran
        outputs[engine] = [sorted_tuples(batch) for batch in ran]
        read = pysparks_state if engine == "pyspark" else millponds_state
        states[engine] = read(spark, stream.folder / "checkpoint", len(ran) - 1, processor)
    assert outputs["millpond"] == outputs["pyspark"]
    assert states["millpond"] == states["pyspark"]
    assert any(states["pyspark"].values())
    fired = any("fired" in told for batch in outputs["pyspark"] for _, _, told in batch)
    assert fired == (mode != "None"), "a stream whose timers are never due tests none"


def pysparks_state(spark, checkpoint, batch, processor):
    """Every state as Spark's own data source shows it: rows of key, map key and value."""
    found = {}
    for name, shape, ttl in processor.states:
        rows = _stored(spark, checkpoint, batch, name)
        field = {"value": "value", "list": "list_element", "map": "user_map_value"}[shape]
        values = [row[field] if ttl is None else row[field].value for row in rows]
        map_keys = [tuple(row.user_map_key) if shape == "map" else None for row in rows]
        found[name] = sorted(
            (
                (tuple(row.key), map_key, tuple(value))
                for row, map_key, value in zip(rows, map_keys, values, strict=True)
            ),
            key=repr,
        )
    return found


def millponds_state(spark, checkpoint, batch, processor):
    """Every state as it is restored from manifests and segments."""
    manifests = {row.key[SHARD]: bytes(row.value.head) for row in _stored(spark, checkpoint, batch, "head")}
    segments = {routing_key: {} for routing_key in manifests}
    for row in _stored(spark, checkpoint, batch, "segments"):
        segments[row.key[SHARD]][row.user_map_key.id] = bytes(row.user_map_value.data)
    found, shards = {name: [] for name, _, _ in processor.states}, []
    for routing_key, data in manifests.items():
        manifest = Manifest.decode(data, "the manifest")
        shard = Shard(manifest, HeapBackend(manifest.key_groups))
        shard.restore(segments[routing_key])
        shards.append(shard)
    clocks = [
        ms
        for shard in shards
        for group in shard.manifest.key_groups
        for (ms,) in shard.backend.cells("clock", group).values
    ]
    for shard in shards:
        shard.backend.context.now_ms = max(clocks)
        for name, _, _ in processor.states:
            for key_group in shard.manifest.key_groups:
                cells = shard.living_cells(name, key_group)
                for key, map_key, value in zip(
                    cells.keys, cells.map_keys or [None] * len(cells), cells.values, strict=True
                ):
                    found[name] += [(key, map_key, each) for each in (value if type(value) is list else [value])]
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def _stored(spark, checkpoint, batch, name):
    source = spark.read.format("statestore").option("path", str(checkpoint)).option("batchId", batch)
    return source.option("stateVarName", name).load().collect()

"""The states and timers of one shard, as plain as can be: what a `TileProcessor` sees, without Spark."""

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues


def blobs_of(rows):
    """Rows as an operator packs them, as one Arrow batch of one blob."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return pa.record_batch({"blob": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


class OneShard:
    """Runs a processor batch by batch; its key is one whole number named `slot`."""

    def __init__(self, processor):
        self.maps, self.timers, self.watermark = {}, set(), 0
        self.processor = processor
        processor.init(self)

    def getMapState(self, name, key_schema, value_schema):
        return PlainMap(self.maps)

    def registerTimers(self, keys, times):
        self.timers.update(zip(keys["slot"].to_pylist(), times.to_pylist(), strict=True))

    def batch(self, rows, watermark=None):
        """Run one micro-batch of rows (dicts), then the timers that are due; give what was emitted."""
        self.watermark = self.watermark if watermark is None else watermark
        times = TimerValues(0, self.watermark)
        emitted = []
        if rows:
            names = list(dict.fromkeys(row["slot"] for row in rows))
            table = pa.Table.from_pylist(rows)
            index = pa.array([names.index(row["slot"]) for row in rows])
            keys = pa.table({"slot": pa.array(names, pa.int32())})
            emitted += self._called(self.processor.handleInputTable(keys, table, index, times))
        due = sorted(timer for timer in self.timers if timer[1] <= self.watermark)
        due.sort(key=lambda timer: timer[1])
        if due:
            keys = pa.table({"slot": pa.array([slot for slot, _ in due], pa.int32())})
            expiry = pa.array([time for _, time in due])
            emitted += self._called(self.processor.handleExpiredTimers(keys, expiry, times))
            self.timers -= set(due)
        return emitted

    @staticmethod
    def _called(tables):
        return [row for table in tables for row in table.to_pylist()]


class PlainMap:
    """A map state in a dict of all states: by slot, address, and whatever else its map keys have."""

    def __init__(self, entries):
        self.entries = entries

    @staticmethod
    def places(keys, map_keys):
        return list(zip(keys["slot"].to_pylist(), *(column.to_pylist() for column in map_keys.columns), strict=True))

    def get_many(self, keys, map_keys):
        found = [self.entries.get(place) for place in self.places(keys, map_keys)]
        return pa.table({"value": pa.array(found, pa.binary())})

    def update_many(self, keys, map_keys, values):
        self.entries.update(zip(self.places(keys, map_keys), values["value"].to_pylist(), strict=True))

    def remove_many(self, keys, map_keys):
        for place in self.places(keys, map_keys):
            self.entries.pop(place, None)

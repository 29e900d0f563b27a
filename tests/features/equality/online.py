"""The online side without Spark: upload, combined events, the real operator, the real writer, and a store."""

from collections import defaultdict
from itertools import chain
from types import SimpleNamespace

import pyarrow as pa

from millpond.features import compile_group_by, stream_dataset
from millpond.features.point_in_time.column_features import arrow_value
from millpond.features.types import parse_type
from millpond.kv import MemoryStore
from millpond.spark.features.tiles.combine import EventCounts, combiner
from millpond.spark.features.tiles.processor import TileProcessor
from millpond.spark.features.tiles.writer import tile_writer
from tests.serving.world import upload, upload_values
from tests.spark.features.arrow_states import OneShard, blobs_of


class PlainFrame:
    """What a ``foreachBatch`` function is given, as far as the writer of tiles uses it."""

    def __init__(self, partitions):
        self.partitions = partitions
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def coalesce(self, count):
        return PlainFrame([list(chain.from_iterable(self.partitions[number::count])) for number in range(count)])

    def mapInArrow(self, function, schema):
        written = []
        for partition in self.partitions:
            for batch in function(iter(partition)):
                written += [SimpleNamespace(**row) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: written)


def land(store, group_by, batch_end_ms, events, watermark_ms):
    """Bring the events of a GroupBy into a store, before the batch end by an upload and after it by a stream.

    Args:
        store: where to.
        group_by: the definition.
        batch_end_ms: where the two meet.
        events: (key, time, inputs) of any keys.
        watermark_ms: up to when the stream has come.
    """
    online = Online(group_by, batch_end_ms, store=store)
    keys = {key for key, _, _ in events}
    past = {key: [(time, inputs) for own, time, inputs in events if own == key] for key in keys}
    if group_by.accuracy == "snapshot":
        plan, end = online.plan, batch_end_ms
        values = {
            key: plan.finish(end, end, plan.batch_ir([one for one in own if one[0] < end], end), [])
            for key, own in past.items()
        }
        rows = {key: [answer[name] for name in plan.feature_names] for key, answer in values.items()}
        upload_values(store, plan, rows, batch_end_ms)
    else:
        online.upload(past)
        online.micro_batch([[(*event, False) for event in events]], watermark_ms)
    return online.plan


class Online:
    """A GroupBy whose events go through the parts of upload and stream into a store.

    Args:
        group_by: the definition.
        batch_end_ms: events before it are in the upload.
        shards: how many shards the operator has.
        store: where upload and tiles go; one of its own if None.
    """

    def __init__(self, group_by, batch_end_ms, shards=1, store=None):
        self.plan = compile_group_by(group_by)
        self.batch_end_ms = batch_end_ms
        self.store = MemoryStore() if store is None else store
        self.landings = 0
        self.counts = EventCounts()
        self.shards = [OneShard(TileProcessor(group_by)) for _ in range(shards)]
        self.combine = combiner(self.plan, batch_end_ms, self.counts)
        dataset = stream_dataset(self.plan.name, self.plan.generation)
        self.write = tile_writer(dataset, self.plan.name, self.store, self.counts)
        types = [parse_type(field.type) for field in group_by.inputs]
        self.schema = pa.schema(
            [
                *((f"key_{n}", parse_type(field.type).arrow()) for n, field in enumerate(group_by.keys)),
                ("time_ms", pa.int64()),
                *((f"input_{n}", type_.arrow()) for n, type_ in enumerate(types)),
                ("event_time", pa.timestamp("us", tz="UTC")),
                ("is_delete", pa.bool_()),
                *([("own_ms", pa.int64())] if group_by.sources else []),
            ]
        )
        self.types = types

    def restart(self, group_by):
        """Go on from the state of the operator with a changed definition of the same generation."""
        self.plan = compile_group_by(group_by)
        self.combine = combiner(self.plan, self.batch_end_ms, self.counts)
        for shard in self.shards:
            shard.processor = TileProcessor(group_by)
            shard.processor.init(shard)

    def upload(self, events_by_key, batch_end_ms=None):
        """Publish what is known before a batch end."""
        self.landings += 1
        self.batch_end_ms = self.batch_end_ms if batch_end_ms is None else batch_end_ms
        return upload(self.store, self.plan, events_by_key, self.batch_end_ms, self.landings)

    def micro_batch(self, partitions, watermark_ms):
        """Run one micro-batch.

        Each row of a partition is (key, time, inputs, is taken away); of an entity also the row's own time.
        """
        combined = defaultdict(list)
        for rows in partitions:
            for batch in self.combine(iter(self.arrow_batches(rows))):
                for row in batch.to_pylist():
                    # A slot is a shard's own, as is the slot of the closing time.
                    combined[row["slot"] % len(self.shards)].append(row)
        written = []
        for number, shard in enumerate(self.shards):
            rows = shard.batch(combined[number], watermark_ms)
            if rows:
                names = ("key", "address", "value", "change", "amount")
                types = (pa.binary(), pa.int64(), pa.binary(), pa.int32(), pa.int64())
                columns = [
                    pa.array([row[name] for row in rows], type_) for name, type_ in zip(names, types, strict=True)
                ]
                written.append([blobs_of(pa.table(columns, names=list(names)))])
        self.write(PlainFrame(written), 0)

    def arrow_batches(self, rows, at_once=3):
        """Give rows as the Arrow batches of one partition."""
        for first in range(0, len(rows), at_once):
            columns = [
                [
                    *key,
                    time_ms,
                    *(arrow_value(one, type_) for one, type_ in zip(inputs, self.types, strict=True)),
                    None if time_ms is None else time_ms * 1_000,
                    is_gone,
                    *own_ms,
                ]
                for key, time_ms, inputs, is_gone, *own_ms in rows[first : first + at_once]
            ]
            yield pa.record_batch(
                [
                    pa.array(column, field.type)
                    for column, field in zip(zip(*columns, strict=True), self.schema, strict=True)
                ],
                schema=self.schema,
            )

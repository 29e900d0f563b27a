"""Uploads of one GroupBy with and without a hop table, for the tests of hop tables."""

from millpond.features import DAY_MS, Aggregation, Field, GroupBy, compile_group_by
from millpond.kv import Get, LmdbStore
from millpond.metrics import MemoryRecorder
from millpond.spark.features.upload import upload

B = 16_000 * DAY_MS
NOW = B + 40 * DAY_MS
SCHEMA = "k string, x double, s string, m map<string,double>, time_ms bigint"
GROUP_BY = GroupBy(
    "spent",
    keys=(Field("k", "string"),),
    inputs=(Field("x", "double"), Field("s", "string"), Field("m", "map<string,double>")),
    aggregations=(
        Aggregation("count", windows=("1h", "7d")),
        Aggregation("average", "x", ("1d", "12d", None)),
        Aggregation("variance", "x", ("1d",)),
        Aggregation("sum", "x", ("7d",), buckets=("s",)),
        Aggregation("unique_count", "s", ("12d",)),
        Aggregation("last_k", "s", ("7d",), k=2),
        Aggregation("max", "m", ("7d",)),
    ),
)
PLAN = compile_group_by(GROUP_BY)
KEYS = "abcdef"


def drawn(rng, count, begin, end):
    return [
        (
            rng.choice((*KEYS, None)),
            rng.choice((None, rng.gauss(0, 30))),
            rng.choice((None, "u", "v")),
            rng.choice((None, {"p": rng.random(), "q": 1.0})),
            rng.choice((None, *(rng.randrange(begin, end) for _ in range(9)))),
        )
        for _ in range(count)
    ]


class Uploads:
    """Uploads into one store, with or without a hop table."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder / "hops"
        self.store = LmdbStore(folder / "kv", sync=False)
        self.landed = 0
        self.recorder = MemoryRecorder()

    def table_of(self, rows, group_by=GROUP_BY):
        return {group_by.name: self.spark.createDataFrame(rows, SCHEMA)}

    def rows(self, rows, end, *, hop_table, group_by=GROUP_BY):
        self.landed += 1
        info = upload(
            group_by,
            end,
            self.store,
            tables=self.table_of(rows, group_by),
            landing_ms=NOW + self.landed,
            clock=lambda: NOW,
            recorder=self.recorder,
            hop_table=self.folder if hop_table else None,
        )
        keys = [compile_group_by(group_by).encode_key((k,)) for k in KEYS]
        found = self.store.get_many([Get(info.batch_dataset, key) for key in keys])
        return info.rows, info.checksum, [row[0].value if row else None for row in found]

    def check(self, rows, end, group_by=GROUP_BY):
        """Both uploads; gives how many events that from the table read."""
        before = self.recorder.total("millpond_upload_events_total", name=group_by.name)
        from_table = self.rows(rows, end, hop_table=True, group_by=group_by)
        read = self.recorder.total("millpond_upload_events_total", name=group_by.name) - before
        assert from_table == self.rows(rows, end, hop_table=False, group_by=group_by)
        return read

    def files(self):
        return {path.name for path in self.folder.iterdir()}


def events_between(rows, begin, end):
    return sum(row[4] is not None and begin <= row[4] < end for row in rows)


def altered(data, place):
    return data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]

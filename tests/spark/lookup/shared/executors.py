"""Executors that share a table's cache, all in one process, with real sockets between them."""

import pyarrow as pa

from millpond.lookup import LookupTable, PythonLookup
from millpond.spark.lookup.invalidations import Invalidated
from millpond.spark.lookup.rows import PartialRows, RowsWanted
from millpond.spark.lookup.shared.near import divided
from millpond.spark.lookup.shared.rows import SharedTable, Sharing

KEYS, ROWS = pa.schema([("n", pa.int64())]), pa.schema([("text", pa.string())])
PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 8_000}


class Clock:
    """Milliseconds that the test moves."""

    def __init__(self):
        self.ms = 1_000_000

    def __call__(self):
        return self.ms


class Executor:
    """One executor: its source, which notes what it is asked for, and its part of the shared cache."""

    def __init__(self, name, directory, find, clock, options=PARTIAL, *, dead_letter=False):
        self.name, self.asked = name, []

        def noted(n):
            self.asked.append(n)
            return find(n)

        table, near = divided(LookupTable("numbers", PythonLookup(noted, KEYS, ROWS), options))
        self.lookup = table.open_in_columns(clock)
        self.version = 0
        self.wanted = RowsWanted("numbers", "numbers", ("text",), (pa.field("text", pa.string()),), dead_letter)
        self.shared = SharedTable(Sharing(directory.address, near), name, KEYS, self.own, clock)
        self.shared.members.attend()

    def own(self, told):
        heard = Invalidated.decode(told)
        if heard.version > self.version:
            self.lookup.invalidate(heard.since(self.version))
            self.version = heard.version
        return PartialRows(self.wanted, self.lookup, self.name)

    def matches(self, keys, invalidated=b""):
        """What a partition gets that begins now: the answer itself."""
        return self.shared.open(invalidated).match([pa.array(keys, pa.int64())])

    def texts(self, keys, invalidated=b""):
        """What a partition gets that begins now: the texts of each key."""
        found = self.matches(keys, invalidated)
        texts, ends = found.rows[0].to_pylist(), (found.starts + found.counts).tolist()
        return [texts[first:end] for first, end in zip(found.starts.tolist(), ends, strict=True)]

    def forget(self):
        """The keys that its source was asked for, and from now on none."""
        asked, self.asked = self.asked, []
        return asked

    def close(self):
        self.shared.close()
        self.lookup.close()

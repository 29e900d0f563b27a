"""Every decoder of bytes that a disk, a store or a network gives, with right bytes and how they get their checksum.

A decoder may give a value, or raise one of Millpond's errors. `expected` says which: corrupt bytes and bad
data are told apart from a wrong URL, which is an option, and from a peer that went away in a frame.
"""

import atexit
import os
import socket
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from millpond.errors import CorruptionError, DataError, MillpondError, OptionError, UnavailableError
from millpond.features.stored.value_header import HEADER, with_header
from millpond.kv import Get, MemoryStore, Put, open_store
from millpond.kv.redis.layout import decode_row, encode_expiring_row
from millpond.kv.redis.operations import _UNDECLARED, _decode_entry
from millpond.lookup import HttpLookup, KvLookup, MappedTable, PythonLookup, write_kv_table
from millpond.lookup.caches.partial_columns import ColumnCachingLookup
from millpond.lookup.column_cache.cache import ColumnCache, ColumnCacheLimits
from millpond.lookup.sources.http_client import JsonClient
from millpond.lookup.sources.redis import RedisLookup
from millpond.serving.client.address import address_of
from millpond.serving.client.conversation import Conversation
from millpond.serving.client.exchange import Answer
from millpond.serving.http.bodies.arrow_bodies import read_table, write_table
from millpond.serving.http.bodies.json_bodies import JsonFetch
from millpond.serving.http.limits import Limits
from millpond.serving.messages import Target
from millpond.spark.features.hops.manifest import HopManifest
from millpond.spark.host.wire import Connection, Found
from millpond.spark.lookup import invalidations
from millpond.spark.lookup.invalidations import Invalidated
from millpond.spark.lookup.rows import PartialRows, RowsWanted
from millpond.spark.lookup.shared.directory import Member, decoded_members
from millpond.spark.lookup.shared.owner import answered, decoded_answer, encoded_ask
from millpond.spark.shuffle.pack import Layout, _blob, read_blob
from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells
from millpond.state.checkpoint import Manifest, new_manifest
from millpond.state.checkpoint.format.raw import raw_table
from millpond.state.checkpoint.format.savepoint_manifest import SavepointFile, SavepointManifest
from millpond.state.checkpoint.format.seal import SEAL_BYTES, Seal
from millpond.state.checkpoint.format.segment import (
    CellCodec,
    checked_body,
    decode_segment,
    encode_segments,
    with_checksum,
)
from millpond.state.types.descriptor import StateDescriptor, StateKind
from tests.fuzz.feature_values import FEATURE_DECODERS
from tests.fuzz.shelf import SHELF
from tests.fuzz.spilled import SPILLED

TABLE_PATH = SHELF / f"millpond-fuzz-{os.getpid()}.table"
atexit.register(TABLE_PATH.unlink, missing_ok=True)
CODE = pa.schema([("code", pa.string())])
GATE = pa.schema([("gate", pa.int32()), ("price", pa.decimal128(10, 2)), ("open", pa.timestamp("us", "UTC"))])
ROWS = pa.table(
    {
        "code": ["EWR", "JFK", "JFK"],
        "gate": pa.array([1, None, 3], pa.int32()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
        "open": pa.array([0, None, 5], pa.timestamp("us", "UTC")),
    }
)
HEADER_BYTES = 24
"""Of a part of a checkpoint, before its body."""


class Fuzzed(NamedTuple):
    """A decoder.

    `begin` is where the body begins, which `with_header` puts behind a header that fits it, and `head` how much of the
    body stays as it is.
    """

    decode: Callable[[bytes], object]
    right: bytes
    with_header: Callable[[bytes], bytes] | None = None
    begin: int = 0
    head: int = 0
    expected: tuple[type[MillpondError], ...] = (CorruptionError, DataError)


# --- checkpoints

KEY = pa.schema([("user", pa.string()), ("n", pa.int64())])
PAIR = pa.schema([("text", pa.string()), ("numbers", pa.list_(pa.int64()))])
PAGE = pa.schema([("page", pa.string())])


def _segment(kind: StateKind, raw: bool) -> Fuzzed:
    state = StateDescriptor("s", kind, PAIR, PAGE if kind is StateKind.MAP else None)
    values: list[Any] = [("a" * 40, [1, None, 3]), (None, []), ("b", None)]
    cells = Cells(
        [0, 0, 0],
        [("ada", 1), ("bob", None), (None, 3)],
        [("p",), ("q",), ("r",)] if kind is StateKind.MAP else None,
        [[value, value] for value in values] if kind is StateKind.LIST else values,
    )
    codec = CellCodec(state, KEY)
    if raw:
        form = cell_bytes(state, 0)
        table = (
            {key: {page: value} for key, page, value in zip(cells.keys, cells.map_keys, cells.values, strict=True)}
            if cells.map_keys is not None
            else dict(zip(cells.keys, cells.values, strict=True))
        )
        pairs, _ = form.pairs(table, list(table))
        columns = raw_table(0, Pairs([place for place, _ in pairs], [stored for _, stored in pairs]))
    else:
        columns = codec.table(cells)
    ((_, right),) = encode_segments(columns)
    magic = right[:4]
    return Fuzzed(
        lambda data: codec.cells(decode_segment(data, "the segment")),
        right,
        lambda body: with_checksum(magic, body),
        HEADER_BYTES,
    )


MANIFEST = new_manifest("abc", 0, 1, 8, KEY).encode()
SAVEPOINT = SavepointManifest(8, b"", 5, ({"a": 1},), (SavepointFile("f", "s", 0, 3, 9, 99, 1),))


def _savepoint(data: bytes) -> SavepointManifest:
    return SavepointManifest.decode(checked_body(b"MPSP", data, "the manifest"), "the manifest")


def _stored_savepoint() -> bytes:
    import msgspec

    return with_checksum(b"MPSP", msgspec.msgpack.encode(SAVEPOINT))


KEYED = Seal(bytes(range(32)))


def _under_key(data: bytes) -> Manifest:
    return Manifest.decode(KEYED.opened(data, "manifest", "the manifest"), "the manifest")


CHECKPOINTS = {
    "manifest that is sealed with a key": Fuzzed(
        _under_key,
        KEYED.closed(MANIFEST, "manifest"),
        lambda body: KEYED.closed(with_checksum(b"MPHD", body), "manifest"),
        SEAL_BYTES + HEADER_BYTES,
        expected=(CorruptionError, OptionError),
    ),
    "manifest": Fuzzed(
        lambda data: Manifest.decode(data, "m"), MANIFEST, lambda body: with_checksum(b"MPHD", body), HEADER_BYTES
    ),
    "savepoint's manifest": Fuzzed(
        _savepoint, _stored_savepoint(), lambda body: with_checksum(b"MPSP", body), HEADER_BYTES
    ),
    **{f"segment of a {kind.name.lower()} state": _segment(kind, raw=False) for kind in StateKind},
    **{f"raw segment of a {kind.name.lower()} state": _segment(kind, raw=True) for kind in StateKind},
}

# --- lookups


def _mapped(data: bytes) -> object:
    path = TABLE_PATH
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    table = MappedTable(path)
    return table.find([("JFK",), ("EWR",), ("LGA",)])


def _table_bytes(rows: pa.Table) -> bytes:
    path = TABLE_PATH
    MappedTable.of(rows, ["code"], path)
    return path.read_bytes()


def _seal_table(body: bytes) -> bytes:
    """A table of other bytes: its length, checksum and tail are made right again."""
    numbers, tail = body[-56:-16], TABLE[-12:]
    body = body[:-64] + max(len(body), 64).to_bytes(8, "little") + numbers.rjust(40, b"\0")
    return body + zlib.crc32(tail, zlib.crc32(body)).to_bytes(4, "little") + tail


TABLE = _table_bytes(ROWS)
STORE = MemoryStore()
write_kv_table(STORE, "gates", ROWS, ["code"])
((KV_ROW,),) = STORE.get_many([Get("gates", b"\x91\xa3JFK")])
(((KV_KEY, _),),) = [STORE.next_keys("gates", None, 1)]


def _kv(data: bytes) -> object:
    store = MemoryStore()
    store.put_many("gates", [Put(b"\x91\xa3JFK", data)])
    return KvLookup(store, "gates", CODE, GATE).lookup_many([("JFK",)])


def _kv_key(data: bytes) -> object:
    store = MemoryStore()
    store.put_many("gates", [Put(data, b"\x92\x93\xa4gate\xa5price\xa4open\x90")])
    return KvLookup(store, "gates", CODE, GATE).scan()


def _seal_kv(body: bytes) -> bytes:
    return b"\x02" + zlib.crc32(body, zlib.crc32(b"gates\x91\xa3JFK")).to_bytes(4, "big") + body


class _Canned(JsonClient):
    """A client that got this body."""

    text = b""

    def get(self, target: str) -> Any:
        return self._body(target, 200, self.text)


def _http(data: bytes) -> object:
    lookup = HttpLookup("http://host/{code}", CODE, GATE)
    canned = _Canned("http://host/", {}, 1)
    canned.text = data
    lookup._client = canned
    return lookup.lookup(("JFK",))


class _Pipeline:
    """Redis, which answers every read with the same bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._answers: list[Any] = []

    def pipeline(self, transaction: bool) -> "_Pipeline":
        return _Pipeline(self._data)

    def get(self, name: str) -> None:
        self._answers.append(self._data)

    def hmget(self, name: str, columns: list[str]) -> None:
        self._answers.append([self._data] * len(columns))

    def execute(self) -> list[Any]:
        return self._answers


def _redis(value: str, schema: pa.Schema) -> Callable[[bytes], object]:
    lookup = RedisLookup("redis://host", "gate:{code}", CODE, schema, value=value)

    def decode(data: bytes) -> object:
        lookup._client = _Pipeline(data)
        return lookup.lookup_many([("JFK",)])

    return decode


JSON_ROW = (
    b'[{"gate": 12, "price": "1E+1", "open": "2013-01-01T00:00:00+01:00"}, {"gate": null, "price": 1.5, "open": null}]'
)
TYPES = {
    "integer": (pa.int64(), b"123456789012345678"),
    "decimal": (pa.decimal128(10, 2), b"1.25E+3"),
    "date": (pa.date32(), b"2013-01-01"),
    "moment": (pa.timestamp("us", "UTC"), b"2013-01-01T00:00:00+01:00"),
    "number": (pa.float64(), b"-1.5e300"),
    "flag": (pa.bool_(), b"true"),
    "text": (pa.string(), "Größe".encode()),
}

LOOKUPS = {
    "mapped table": Fuzzed(_mapped, TABLE, _seal_table),
    "row of a KV table": Fuzzed(_kv, KV_ROW.value, _seal_kv, 5),
    "key of a KV table": Fuzzed(_kv_key, KV_KEY),
    "JSON over HTTP": Fuzzed(_http, JSON_ROW),
    "JSON in Redis": Fuzzed(_redis("json", GATE), JSON_ROW),
    **{
        f"{name} in a hash of Redis": Fuzzed(_redis("hash", pa.schema([("value", kind)])), right)
        for name, (kind, right) in TYPES.items()
    },
}

# --- stores, sockets, services

GET = Get("gates", b"JFK")
HOPS = HopManifest(1, "c0ffee", 5, 8, {}, ("f",))


def _frame(data: bytes) -> object:
    """What a peer hears that sends these bytes and goes."""
    there, here = socket.socketpair()
    with Connection(here) as connection:
        with there:
            there.sendall(data[:60_000])
        return connection.receive()


def _frame_bytes() -> bytes:
    there, here = socket.socketpair()
    with here, Connection(there) as connection:
        connection.send(Found(b"starts", b"counts", b"counted"), b"an Arrow stream")
        return here.recv(60_000)


LAYOUT = Layout(4, 128)
BLOB = _blob(pa.table({"a": [1, 2], "b": ["x", None]}), LAYOUT)
ROUTE = Target("route", "group_by", "c0ffee", {"origin": "string", "n": "long"}, {}, {"count": "long"}, ("route",))
ASKED = b'{"requests": [{"keys": {"origin": "EWR", "n": 1}, "at": 0}], "features": ["count"]}'
ASKED_IN_ARROW = write_table(pa.table({"origin": ["EWR", None], "n": [1, 2]}))
FETCH = JsonFetch(ROUTE, Limits())
ANSWERED = b'{"results": [{"at": 5, "features": {"count": 3}, "states": {}, "errors": {}, "batch_end_ms": 4}]}'


def _answer(data: bytes) -> object:
    from millpond.serving.client.conversation import Batch
    from millpond.serving.messages import FetchRequest

    talk = Conversation(address_of("http://host"), None)
    batch = Batch("route", None, False, [0], [FetchRequest("route", {"origin": "EWR"})])
    return talk.responses(batch, Answer(200, {}, data, keeps_alive=True))


def _url(open_url: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: open_url(data.decode(errors="replace"))


GATES = pa.schema([("gate", pa.string())])
GATES_OPEN = PartialRows(
    RowsWanted("gates", "gates", ("gate",), (GATES.field(0),)),
    ColumnCachingLookup(PythonLookup(lambda code: [(code,)], CODE, GATES), ColumnCache(ColumnCacheLimits(max_rows=9))),
)

OTHERS = {
    "row in Redis": Fuzzed(lambda data: decode_row(data, GET), encode_expiring_row(5, b"value", 9)),
    "manifest of a hop table": Fuzzed(
        lambda data: HopManifest.decode(data, "m"),
        HOPS.encode(),
        lambda body: with_header(2, body, b"hop table"),
        HEADER.size,
    ),
    "invalidated keys": Fuzzed(
        lambda data: Invalidated.decode(data).since(3),
        Invalidated(4, 2, pa.table({"__version": [3, 4], "code": ["JFK", "EWR"]})).encode(),
        lambda body: with_header(invalidations.FORMAT_VERSION, body, invalidations.ADDRESS),
        HEADER.size,
    ),
    "answer of an owner": Fuzzed(
        lambda data: decoded_answer(data, GATES, 2),
        answered(encoded_ask([pa.array(["JFK", "EWR"])], b""), lambda _: GATES_OPEN),
    ),
    "members of a shared cache": Fuzzed(decoded_members, msgspec.msgpack.encode([Member("one", "host", 1, "PEM")])),
    "frame of a host": Fuzzed(_frame, _frame_bytes(), expected=(CorruptionError, UnavailableError)),
    "packed rows": Fuzzed(lambda data: read_blob(data, LAYOUT), BLOB),
    "body of a fetch": Fuzzed(FETCH.read, ASKED),
    "body of a fetch in Arrow": Fuzzed(lambda data: read_table(data, ROUTE, Limits()), ASKED_IN_ARROW),
    "entry of the catalogue in Redis": Fuzzed(lambda data: _decode_entry("gates", data), _UNDECLARED),
    "answer of the service": Fuzzed(_answer, ANSWERED, expected=(UnavailableError,)),
    "URL of a store": Fuzzed(_url(open_store), b"lmdb:///a/b?sync=false&map_bytes=4mb", expected=(OptionError,)),
    "URL of Redis": Fuzzed(_url(open_store), b"redis+cluster://ada:pw@one:7000,two?prefix=x", expected=(OptionError,)),
    "URL of the service": Fuzzed(_url(address_of), b"https://ada:pw@[::1]:8765/", expected=(OptionError,)),
    "URL of a lookup": Fuzzed(
        _url(lambda url: HttpLookup(url, CODE, GATE)), b"https://host:443/a/{code}?x=1#y", expected=(OptionError,)
    ),
}

DECODERS = {
    **{name: Fuzzed(*given) for name, given in FEATURE_DECODERS.items()},
    **CHECKPOINTS,
    **{name: Fuzzed(*given) for name, given in SPILLED.items()},
    **LOOKUPS,
    **OTHERS,
}

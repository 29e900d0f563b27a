"""Segments and manifests of every format version are read for ever: files written once, and what is in them.

The files of a version are never edited. Those of a new version are written by

    python -m tests.state.checkpoint.test_golden

into the folder of the present `FORMAT_VERSION`, which must not be there yet.
"""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from millpond.state.checkpoint import Manifest, Shard, new_manifest
from millpond.state.checkpoint.format.segment import FORMAT_VERSION, CellCodec, decode_segment
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

GOLDEN = Path(__file__).parent / "golden"
KEY = pa.schema([("user", pa.string()), ("number", pa.int64())])
EVERYTHING = pa.schema(
    [
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("money", pa.decimal128(38, 4)),
        ("wait", pa.duration("us")),
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.float64())),
        ("struct", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ]
)
STATES = {
    "everything": StateDescriptor("everything", StateKind.VALUE, EVERYTHING),
    "log": StateDescriptor("log", StateKind.LIST, pa.schema([("at", pa.int64()), ("words", pa.list_(pa.string()))])),
    "visits": StateDescriptor(
        "visits", StateKind.MAP, pa.schema([("count", pa.int64())]), pa.schema([("page", pa.string())])
    ),
}
MOMENT = dt.datetime(2013, 12, 30, 23, 59, 59, 999_999, tzinfo=dt.UTC)
LOWEST = (
    *(-(1 << bits) for bits in (7, 15, 31, 63)),
    *(-math.inf, -0.0, False, "", b"", dt.date(1, 1, 1), dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
    dt.datetime(1, 1, 1),  # noqa: DTZ001 - a time without a zone
    *(Decimal("-9999999999999999999999999999999999.9999"), dt.timedelta(-1), [], {}, (None, None)),
)
HIGHEST = (
    *((1 << bits) - 1 for bits in (7, 15, 31, 63)),
    *(1.5, math.pi, True, "Mühle 🌊", b"\x00\xff", dt.date(9999, 12, 31), MOMENT, MOMENT.replace(tzinfo=None)),
    *(Decimal("1.0000"), dt.timedelta(microseconds=1), [1, None], {"a": 0.5, "b": None}, (1, ["x", None])),
)
NULLS = (None,) * len(EVERYTHING)
EXPECTED = {
    ("everything", 7, ("ann", 1), None): LOWEST,
    ("everything", 7, (None, None), None): NULLS,
    ("everything", 12, ("zoë", -1), None): HIGHEST,
    ("log", 7, ("ann", 1), None): [(1, ["a"]), (None, None), (3, [])],
    ("log", 8, ("bob", 2), None): [],
    ("visits", 7, ("ann", 1), ("/home",)): (3,),
    ("visits", 7, ("ann", 1), (None,)): (None,),
}


GROWN = ("log", 9, ("eve", 3), None)
"""A list that was there and grew: from version 2 on its delta has what was added."""
EXPECTED_OF = {1: EXPECTED, 2: EXPECTED | {GROWN: [(1, ["a"]), (2, None), (3, ["b", "c"])]}}


def _contents(shard):
    found = {}
    for name in STATES:
        for group in shard.manifest.key_groups:
            cells = shard.backend.cells(name, group)
            map_keys = cells.map_keys or [None] * len(cells)
            for key, map_key, value in zip(cells.keys, map_keys, cells.values, strict=True):
                found[name, group, key, map_key] = value
    return found


def _files(version):
    folder = GOLDEN / f"v{version}"
    segments = {int(path.stem.removeprefix("segment-")): path.read_bytes() for path in folder.glob("segment-*.bin")}
    return Manifest.decode((folder / "head.bin").read_bytes(), "the golden manifest"), segments


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_a_shard_written_by_every_version_is_restored(version):
    manifest, segments = _files(version)
    shard = Shard(manifest, HeapBackend(manifest.key_groups))
    shard.restore(segments)
    found = _contents(shard)
    assert found == EXPECTED_OF[version]
    lowest = found["everything", 7, ("ann", 1), None]
    assert math.copysign(1, lowest[5]) == -1, "minus zero keeps its sign"
    assert shard.begin_at(manifest)


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_a_manifest_written_by_every_version_says_what_it_said(version):
    manifest, segments = _files(version)
    assert (manifest.lineage, manifest.shard, manifest.shards, manifest.max_parallelism) == ("golden", 1, 3, 20)
    assert (manifest.version, manifest.token, manifest.watermark_ms) == (2, "attempt 2", 1_388_447_999_999)
    assert manifest.key_groups == range(7, 14)
    assert pa.ipc.read_schema(pa.py_buffer(manifest.key_schema)) == KEY
    assert {plain["name"]: StateDescriptor.decode(plain) for plain in manifest.states} == STATES
    assert {ref.id for ref in manifest.segments} == set(segments)
    assert {ref.id: ref.bytes for ref in manifest.segments} == {at: len(data) for at, data in segments.items()}
    assert {(ref.state, ref.base) for ref in manifest.segments} == {
        (name, base) for name in STATES for base in (True, False)
    }
    assert manifest.next_segment > max(segments)


def test_a_manifest_of_version_1_is_read_with_a_processing_time_and_without():
    """It came into manifests within version 1: readers that do not know it pass over it."""
    before, _ = _files(1)
    assert before.processing_ms == -1
    data = (GOLDEN / "v1" / "head-with-processing-time.bin").read_bytes()
    assert Manifest.decode(data, "the golden manifest") == msgspec.structs.replace(
        before, processing_ms=1_388_448_000_001
    )


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_any_reader_of_arrow_can_read_a_golden_segment(version):
    manifest, segments = _files(version)
    for ref in manifest.segments:
        table = decode_segment(segments[ref.id], f"golden segment {ref.id}")
        assert table.num_rows == ref.rows
        assert table.column_names[:4] == ["key_group", "deleted", "key.user", "key.number"]
        cells = CellCodec(STATES[ref.state], KEY).cells(table)
        assert (min(cells.key_groups), max(cells.key_groups)) == (ref.first_group, ref.last_group)


def _write(folder):
    """Two versions of a shard: cells that stay, change and go, so that there are deltas, deletions and bases."""
    shard = Shard(new_manifest("golden", 1, 3, 20, KEY), HeapBackend(range(7, 14)))
    stored = {}
    for version in (1, 2):
        assert shard.begin_at(shard.manifest)
        for descriptor in STATES.values():
            shard.declare(descriptor)
        backend = shard.backend
        everything, log = backend.value_state(STATES["everything"]), backend.list_state(STATES["log"])
        visits = backend.map_state(STATES["visits"])
        if version == 1:
            for group, key in ((7, ("ann", 1)), (13, ("gone", 0))):
                backend.enter(group)
                backend.context.key = key
                everything.update(HIGHEST)
                log.append((0, None))
                visits.put(("/gone",), (1,))
            backend.enter(GROWN[1])
            backend.context.key = GROWN[2]
            log.append(EXPECTED_OF[FORMAT_VERSION][GROWN][0])
        else:
            backend.enter(13)
            backend.context.key = ("gone", 0)
            for state in (everything, log, visits):
                state.clear()
            backend.enter(7)
            backend.context.key = ("ann", 1)
            visits.clear()
            backend.enter(GROWN[1])
            backend.context.key = GROWN[2]
            log.extend(EXPECTED_OF[FORMAT_VERSION][GROWN][1:])
            for (name, group, key, map_key), value in EXPECTED.items():
                backend.enter(group)
                backend.context.key = key
                if name == "visits":
                    visits.put(map_key, value)
                else:
                    {"everything": everything.update, "log": log.put}[name](value)
        commit = shard.commit(f"attempt {version}", watermark_ms=1_388_447_999_999)
        stored |= commit.segments
        for segment_id in commit.dropped:
            del stored[segment_id]
    folder.mkdir(parents=True)
    (folder / "head.bin").write_bytes(commit.manifest.encode())
    for segment_id, data in stored.items():
        (folder / f"segment-{segment_id}.bin").write_bytes(data)


def test_version_2_has_what_was_added_to_a_list():
    _, segments = _files(2)
    tables = [decode_segment(data, "a golden segment") for data in segments.values()]
    [grew] = [table for table in tables if "added" in table.column_names]
    rows = {row["key.user"]: row for row in grew.to_pylist()}
    assert {user: row["added"] for user, row in rows.items()} == {
        "ann": False,
        "bob": False,
        "eve": True,
        "gone": False,
    }
    assert rows["eve"]["value"] == [{"at": 2, "words": None}, {"at": 3, "words": ["b", "c"]}]


def test_the_writer_of_golden_files_writes_what_is_expected(tmp_path, monkeypatch):
    _write(tmp_path / f"v{FORMAT_VERSION}")
    monkeypatch.setattr(f"{__name__}.GOLDEN", tmp_path)
    test_a_shard_written_by_every_version_is_restored(FORMAT_VERSION)
    test_a_manifest_written_by_every_version_says_what_it_said(FORMAT_VERSION)


if __name__ == "__main__":
    _write(GOLDEN / f"v{FORMAT_VERSION}")

"""A table in a mapped file gives what the same table in memory gives, and is seen whole or not at all."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.lookup import MappedTable
from millpond.lookup.caches import mapped_table
from millpond.lookup.column_cache.key_hash import hashes, plain_column

KEYS = st.one_of(
    st.none(), st.tuples(st.text("aé", max_size=20), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 3))
)


def rows_of(rows):
    return pa.table(
        {
            "code": pa.array([key and key[0] for key, _ in rows], pa.string()),
            "hour": pa.array([key and key[1] for key, _ in rows], pa.int64()),
            "value": pa.array([value for _, value in rows], pa.int64()),
        }
    )


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=40), others=st.lists(KEYS, max_size=5), seed=st.data()
)
def test_a_mapped_table_finds_what_a_walk_over_all_rows_finds(rows, others, seed, tmp_path_factory):
    table = rows_of(rows)
    cut = seed.draw(st.integers(0, len(rows)))
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    asked = list(dict.fromkeys(key for key in [*(key for key, _ in rows), *others] if key is not None))
    folder = tmp_path_factory.mktemp("mapped")
    batches = table.to_reader(max_chunksize=seed.draw(st.integers(1, 9)))
    in_batches = MappedTable.of(batches, ["code", "hour"], folder / "batches.table")
    mapped = MappedTable.of(table, ["code", "hour"], folder / "t.table")
    assert in_batches.table == mapped.table
    assert in_batches.find(asked) == mapped.find(asked)
    assert sorted(path.name for path in folder.iterdir()) == ["batches.table", "t.table"]
    found = mapped.find(asked)
    assert found == {key: [(*key, value) for row_key, value in rows if row_key == key] for key in asked}
    assert mapped.key_count == len({key for key, _ in rows if key is not None})
    assert mapped.find(asked, ["value"]) == {key: [row[2:] for row in rows] for key, rows in found.items()}


@pytest.mark.parametrize(
    ("key_type", "values", "other"),
    [
        (pa.int8(), [1, -1], 5),
        (pa.bool_(), [True], False),
        (pa.date32(), [date(2013, 1, 1)], date(2014, 1, 1)),
        (pa.timestamp("s"), [datetime(2013, 1, 1)], datetime(2014, 1, 1)),  # noqa: DTZ001 - local times
        (pa.timestamp("ms", "Europe/Vienna"), [datetime(2013, 1, 1, tzinfo=UTC)], datetime(2014, 1, 1, tzinfo=UTC)),
        (pa.binary(), [b"", b"ab", b"ab\0", b"12345678", b"123456789"], b"a"),
        (pa.large_string(), ["", "ab", "ä" * 100], "b"),
        (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("2.00")], Decimal("3.25")),
    ],
)
def test_keys_of_every_type_are_found(key_type, values, other, tmp_path):
    table = pa.table({"key": pa.array(values, key_type), "place": range(len(values))})
    mapped = MappedTable.of(table, ["key"], tmp_path / "t.table")
    asked = [(value,) for value in [*values, other]]
    expected = {(value,): [(place,)] for place, value in enumerate(values)}
    assert mapped.find(asked, ["place"]) == {**expected, (other,): []}


def test_numbers_are_compared_by_value_whatever_their_type(tmp_path):
    whole = MappedTable.of(pa.table({"key": pa.array([2], pa.int32())}), ["key"], tmp_path / "whole")
    exact = MappedTable.of(pa.table({"key": pa.array([Decimal("2.0")], pa.decimal128(9, 1))}), ["key"], tmp_path / "ex")
    for table in (whole, exact):
        for column in (pa.array([2, 3_000_000_000]), pa.array([Decimal("2.00"), Decimal("2.01")])):
            assert table.search([column]).counts.tolist() == [1, 0]


def test_many_rows_of_one_key_are_one_entry(tmp_path):
    table = pa.table({"key": ["a"] * 10_000 + ["b"], "place": range(10_001)})
    mapped = MappedTable.of(table, ["key"], tmp_path / "t.table")
    assert mapped.key_count == 2
    assert mapped.find([("a",)], ["place"])[("a",)] == [(place,) for place in range(10_000)]


def test_keys_that_share_a_hash_are_told_apart_by_the_next_seed(tmp_path, monkeypatch):
    seeds = []

    def clash(columns, seed=0):
        seeds.append(seed)
        return hashes(columns, seed) if seed else np.zeros(len(columns[0]), np.uint64)

    monkeypatch.setattr(mapped_table, "hashes", clash)
    table = pa.table({"key": ["a", "b", "a"], "place": [0, 1, 2]})
    mapped = MappedTable.of(table, ["key"], tmp_path / "t.table")
    assert mapped.find([("a",), ("b",), ("c",)], ["place"]) == {("a",): [(0,), (2,)], ("b",): [(1,)], ("c",): []}
    assert seeds == [0, 1, 1]


def test_an_absent_key_with_the_tag_of_another_is_not_taken_for_it(tmp_path, monkeypatch):
    mapped = MappedTable.of(pa.table({"key": ["a"]}), ["key"], tmp_path / "t.table")
    of_a = hashes([plain_column(pa.array(["a"]), pa.string())])
    monkeypatch.setattr(mapped_table, "hashes", lambda columns, _: np.repeat(of_a, len(columns[0])))
    assert mapped.search([pa.array(["a", "b"])]).counts.tolist() == [1, 0]


def test_a_torn_file_is_refused_by_name(tmp_path):
    path = tmp_path / "t.table"
    MappedTable.of(pa.table({"code": ["JFK"] * 9}), ["code"], path)
    whole = path.read_bytes()
    for torn in (b"", whole[:-20], whole[:64] + whole[128:], whole[:-1] + b"!"):
        path.write_bytes(torn)
        with pytest.raises(CorruptionError, match=r"t\.table"):
            MappedTable(path)


@pytest.mark.parametrize("keys", [["JFK", "EWR", "LGA"], ["JFK", "JFK", "LGA"]], ids=["unique", "repeated"])
def test_no_bit_can_be_flipped_unnoticed(keys, tmp_path):
    path = tmp_path / "t.table"
    MappedTable.of(pa.table({"code": keys, "gate": [1, 2, 3]}), ["code"], path)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        other = tmp_path / f"{bit}.table"
        other.write_bytes(altered)
        with pytest.raises(CorruptionError, match=r"\.table"):
            MappedTable(other)
        other.unlink()


def test_a_value_that_python_cannot_represent_is_refused_by_the_file_name(tmp_path):
    times = pa.array([0], pa.timestamp("us", tz="Mars/Phobos"))
    table = MappedTable.of(pa.table({"code": ["JFK"], "at": times}), ["code"], tmp_path / "t.table")
    with pytest.raises(DataError, match=r"t\.table.*Mars/Phobos"):
        table.find([("JFK",)])


def test_a_file_of_another_version_is_refused_with_both_versions(tmp_path):
    path = tmp_path / "t.table"
    MappedTable.of(pa.table({"code": ["JFK"]}), ["code"], path)
    whole = bytearray(path.read_bytes())
    whole[-12] = 2
    path.write_bytes(whole)
    with pytest.raises(CorruptionError, match="version 2, expected 3"):
        MappedTable(path)


def test_a_process_checks_a_file_once_and_a_file_that_took_its_place_again(tmp_path, monkeypatch):
    sums = []
    monkeypatch.setattr(mapped_table, "check_sum", lambda path, *_: sums.append(path.name))
    path = tmp_path / "t.table"
    for code in ("JFK", "EWR"):
        MappedTable.of(pa.table({"code": [code]}), ["code"], path)
        assert MappedTable(path).find([(code,)]) == {(code,): [(code,)]}
    assert sums == ["t.table"] * 2


def held_bytes(path):
    """How many bytes of a mapped file this process has in its memory."""
    held, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            ours = line.endswith(path.name)
        elif ours and name == "Rss:":
            held += 1024 * int(rest.split()[0])
    return held


def test_a_table_that_was_only_checked_holds_no_pages_until_they_are_read(tmp_path):
    numbers = pa.array(range(300_000))
    table = MappedTable.of(pa.table({"code": numbers, "gate": numbers}), ["code"], tmp_path / "gates.table")
    assert table.file_bytes > 6_000_000
    assert held_bytes(table.path) < table.file_bytes / 10
    assert int(table.search([numbers]).counts.sum()) == len(numbers)
    assert held_bytes(table.path) > table.file_bytes / 3


def test_a_table_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match="'hour' is not in the scanned table"):
        MappedTable.of(pa.table({"code": ["JFK"]}), ["hour"], tmp_path / "t.table")
    with pytest.raises(OptionError, match="exact equality"):
        MappedTable.of(pa.table({"code": [1.5]}), ["code"], tmp_path / "t.table")
    with pytest.raises(UnavailableError, match="make room"):
        MappedTable.of(pa.table({"code": ["JFK"]}), ["code"], tmp_path / "nowhere" / "t.table")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [UnavailableError, ConnectionError, TimeoutError])
def test_batches_that_break_off_in_the_middle_leave_their_error_and_nothing_else(kind, tmp_path):
    def batches():
        yield pa.RecordBatch.from_pydict({"code": ["JFK"]})
        raise kind("the source went down")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("code", pa.string())]), batches())
    with pytest.raises(kind, match="the source went down"):
        MappedTable.of(reader, ["code"], tmp_path / "t.table")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_in_the_middle_of_batches_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(mapped_table, "write_columns", full)
    with pytest.raises(UnavailableError, match=r"no space left.*make room"):
        MappedTable.of(pa.table({"code": ["JFK"]}).to_reader(), ["code"], tmp_path / "t.table")
    assert list(tmp_path.iterdir()) == []


def test_an_index_takes_at_most_sixteen_bytes_a_key(tmp_path):
    table = pa.table({"key": range(100_000), "value": range(100_000)})
    mapped = MappedTable.of(table, ["key"], tmp_path / "t.table")
    assert mapped.file_bytes - table.nbytes < 16 * 100_000 + 2_000

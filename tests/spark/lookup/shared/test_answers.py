"""What an owner tells of the keys that it is asked for."""

import msgspec
import pyarrow as pa
import pytest

from millpond.errors import CorruptionError
from millpond.lookup import DefaultLookupCache, LookupTable, PartialCachingLookupProvider, PythonLookup
from millpond.spark.lookup.rows import PartialRows, RowsWanted
from millpond.spark.lookup.shared.owner import answered, decoded_answer, encoded_ask
from tests.spark.lookup.shared.executors import KEYS, PARTIAL, ROWS

WANTED = RowsWanted("numbers", "numbers", ("text",), (pa.field("text", pa.string()),))
SOURCE = PythonLookup(lambda n: [(str(n),)], KEYS, ROWS)


@pytest.fixture
def owner():
    """Opens a table, and returns its answers to numbers."""
    opened = []

    def answers_of(*table, clock=None):
        lookup = LookupTable("numbers", *table).open_in_columns(*([] if clock is None else [clock]))
        opened.append(lookup)
        return lambda numbers: answered(
            encoded_ask([pa.array(numbers)], b""), lambda _: PartialRows(WANTED, lookup, "owner")
        )

    yield answers_of
    for lookup in opened:
        lookup.close()


def test_an_owner_tells_the_ages_of_the_rows_that_it_had(owner, clock):
    ask = owner(SOURCE, PARTIAL, clock=clock)
    ask([1, 2])
    clock.ms += 7
    ask([3])
    clock.ms += 5
    answer = decoded_answer(ask([3, 4, 1]), ROWS, 3)
    assert answer.ages_ms.tolist() == [5, -1, 12]
    assert answer.rows[0].take(pa.array(answer.starts)).to_pylist() == ["3", "4", "1"]


def test_an_owner_with_a_cache_of_python_rows_knows_no_ages(owner):
    ask = owner(PartialCachingLookupProvider.of(SOURCE, DefaultLookupCache(max_rows=5)))
    for _ in range(2):
        answer = decoded_answer(ask([1, 2]), ROWS, 2)
        assert answer.ages_ms is None
        assert answer.rows[0].to_pylist() == ["1", "2"]


def test_an_answer_with_the_ages_of_other_keys_is_an_error(owner):
    told = msgspec.msgpack.decode(owner(SOURCE, PARTIAL)([1, 2]))
    told["ages_ms"] = told["ages_ms"][:8]
    with pytest.raises(CorruptionError, match="for 2 keys"):
        decoded_answer(msgspec.msgpack.encode(told), ROWS, 2)


def test_an_answer_that_ends_after_its_schema_is_an_error(owner):
    told = msgspec.msgpack.decode(owner(SOURCE, PARTIAL)([1, 2]))
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, ROWS).close()
    told["rows"] = sink.getvalue().to_pybytes()
    with pytest.raises(CorruptionError, match="a schema and no rows"):
        decoded_answer(msgspec.msgpack.encode(told), ROWS, 2)

"""Values that sources give as text: they are read as declared, or refused."""

import pyarrow as pa
import pytest

from millpond.errors import DataError
from millpond.lookup.sources.values import readers


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.bool_(), ["true", b"0", False], ["yes", 2]),
        (pa.int32(), ["-7", b"7", 7], ["7.5", 7.5, True]),
        (pa.float64(), ["1e3", 1, 1.5], ["x", True]),
        (pa.decimal128(9, 2), ["1.50", 2, 1.5], ["x", True]),
        (pa.string(), ["x", b"x"], [1, b"\xff"]),
        (pa.binary(), [b"\xff", "x"], [1]),
        (pa.date32(), ["2013-01-02"], ["02/01/2013", 5]),
        (pa.timestamp("us"), ["2013-01-02T03:04:05"], ["2013-01-02T03:04:05Z", 5]),
        (pa.timestamp("us", "UTC"), ["2013-01-02T03:04:05+01:00"], ["2013-01-02T03:04:05"]),
    ],
    ids=str,
)
def test_values_are_read_as_declared_or_refused(kind, good, bad):
    (read,) = readers("gates", pa.schema([("gate", kind)]))
    assert read(None) is None
    assert pa.array([read(value) for value in good], kind).null_count == 0
    for value in bad:
        with pytest.raises(DataError, match="'gate'"):
            read(value)

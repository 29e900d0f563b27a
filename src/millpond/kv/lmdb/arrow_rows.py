"""Rows of Arrow columns, as LMDB takes them: `encoded_rows` for `ArrowPuts`, without a Python object for each step.

Place on the data path: beside `layout`, before a writer's turn.

Invariant: equal rows give equal bytes, in equal order, as those that `layout.encoded_rows` makes of a list of `Put`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.kv.arrow_puts import ArrowPuts
from millpond.kv.lmdb.expiry import packed_expiry
from millpond.kv.lmdb.layout import Dataset, EncodedRows, address_prefix
from millpond.kv.store import MAX_KEY_BYTES, MAX_TIME_MS, MAX_VALUE_BYTES, check_put, encode_dataset

_TIME_BYTES = 8
_SIGN = np.int64(-(1 << 63))
_NOTHING = pa.scalar(b"", pa.binary())


def check_columns(dataset: str, puts: ArrowPuts) -> None:
    """Raise `DataError`, which names dataset and fault, if not every store can hold the rows."""
    encode_dataset(dataset)
    if len(puts) and not _all_fit(puts):
        for put in puts:
            check_put(dataset, put)


def _all_fit(puts: ArrowPuts) -> bool:
    times, kept = (pc.min_max(column).as_py() for column in (puts.times_ms, puts.keep_until_ms))
    return bool(
        pc.max(pc.binary_length(puts.keys)).as_py() <= MAX_KEY_BYTES
        and pc.max(pc.binary_length(puts.values)).as_py() <= MAX_VALUE_BYTES
        and -MAX_TIME_MS < times["min"] <= times["max"] < MAX_TIME_MS
        and 0 <= kept["min"] <= kept["max"] < MAX_TIME_MS
    )


def encoded_columns(dataset: Dataset, puts: ArrowPuts, now_ms: int) -> EncodedRows:
    """Encode rows for `layout.write_rows`, sorted; of rows with equal addresses the last is the one that stays."""
    times = _packed_times(puts.times_ms)
    one, values = dataset.rows == "one", puts.values
    # Many rows share few key lengths and expiries, so each of these is packed once.
    prefixes, of_rows = _packed(pc.binary_length(puts.keys), lambda size: address_prefix(dataset.id, size))
    addresses = _joined(_array(prefixes).take(of_rows), puts.keys, *([] if one else [times]))
    order = pc.sort_indices(addresses)  # It is stable: of equal addresses the last comes last, and replaces the others.
    if one:
        values = _joined(times, values)
    if not dataset.timed:
        return EncodedRows(dataset, addresses.take(order).to_pylist(), values.take(order).to_pylist(), [])
    expiries, of_rows = _packed(puts.keep_until_ms, lambda kept: packed_expiry(kept, now_ms, dataset.ttl_ms))
    of_rows = of_rows.take(order)
    values = _joined(_array(expiries).take(of_rows), values.take(order))
    each = list(map(expiries.__getitem__, of_rows.to_pylist()))
    return EncodedRows(dataset, addresses.take(order).to_pylist(), values.to_pylist(), each)


def _packed(numbers: pa.Array, pack: Callable[[int], bytes]) -> tuple[list[bytes], pa.Array]:
    """Pack each distinct number once. Return what they are packed to, and for each row which of them it has."""
    found = numbers.dictionary_encode()
    return list(map(pack, found.dictionary.to_pylist())), found.indices


def _packed_times(times_ms: pa.Array) -> pa.Array:
    """Return times as addresses have them: big-endian, with the sign bit flipped."""
    packed = (times_ms.to_numpy() ^ _SIGN).astype(">i8").tobytes()
    sized = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_TIME_BYTES), len(times_ms), [None, pa.py_buffer(packed)])
    return sized.cast(pa.binary())


def _array(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def _joined(*columns: pa.Array) -> Any:
    """Return the bytes of some columns, joined row by row."""
    return pc.binary_join_element_wise(*columns, _NOTHING)

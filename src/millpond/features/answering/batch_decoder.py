"""Decodes stored batch rows for a fetcher: only the cells that a query needs.

Place on the data path: between the KV store and the finisher.

A batch row has a column for each cell, with an entry for each segment, hundreds of them. A scalar column holds
suffixes, and a window reads one of them. So MessagePack splits the row into columns of stored cells, in C, and a cell
is decoded when a window asks for it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from millpond.features.batch import BatchIr
from millpond.features.plan import GroupByPlan
from millpond.features.stored.value_codec import VALUE_FORMAT_VERSION
from millpond.features.stored.value_header import DECODE_ERRORS, HEADER, checked_body

_FORM_BYTES = 4
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch row split into columns; immutable.

    Attributes:
        batch_end_ms: the end of the batch, in milliseconds UTC.
        segments: the numbers of the segments that have events, ascending.
        columns: a column for each cell of the plan, with an entry for each segment.
        is_decoded: whether the columns hold cells, and not their stored form.
    """

    batch_end_ms: int
    segments: Sequence[int]
    columns: Sequence[Sequence[Any]]
    is_decoded: bool = False


class BatchDecoder:
    """Splits the batch rows of one plan into columns.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> plan = compile_group_by(GroupBy("route", (Field("origin", "string"),), (), (Aggregation("count"),)))
    >>> row = plan.encode_batch(b"EWR", plan.batch_ir([(0, ()), (1, ())], 86_400_000))
    >>> BatchDecoder(plan).decode(b"EWR", row).columns
    [[2]]
    """

    __slots__ = ("_cells", "_form", "_plan", "_what")

    def __init__(self, plan: GroupByPlan) -> None:
        self._plan = plan
        self._form = bytes.fromhex(plan.batch_form)[:_FORM_BYTES]
        self._cells = len(plan.cells.cells)
        self._what = f"batch row of GroupBy {plan.name!r}"

    def decode(self, key: bytes, data: bytes) -> StoredBatch:
        """Return the columns of a batch row.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or definition.
        """
        if data[:1] == bytes((VALUE_FORMAT_VERSION,)) and data[HEADER.size : HEADER.size + _FORM_BYTES] == self._form:
            body = checked_body(VALUE_FORMAT_VERSION, data, self._what, b"batch" + key)
            try:
                batch_end_ms, segments, *columns = _decode(body[_FORM_BYTES:])
                if len(columns) == self._cells and all(len(column) == len(segments) for column in columns):
                    return StoredBatch(batch_end_ms, segments, columns)
            except DECODE_ERRORS:
                pass
        batch: BatchIr = self._plan.decode_batch(key, data)
        return StoredBatch(batch.batch_end_ms, batch.segments, batch.columns, is_decoded=True)

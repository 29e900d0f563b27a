"""Time to live: how long a value is state after it was last written, or last used.

A state with a TTL keeps, beside each value (each element of a list, each entry of a map), the time
at which its life began, in ms, as the batch or the watermark tells it, never a machine's clock. What
has expired is judged by the same time, so a replayed batch expires the same values.

Source: Flink's StateTtlConfig.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from millpond.state.codec import ValueCodec

LIFE_FIELD = pa.field("$alive_since_ms", pa.int64())
"""The column that a state with a TTL has in segments, after those of its values."""

Refresh = Literal["write", "read-and-write"]
Visibility = Literal["never", "until-cleaned"]
CleanUp = Literal["snapshot", "incremental", "compaction"]


@dataclass(frozen=True)
class Ttl:
    """The time to live of one state's values.

    Attributes:
        duration_ms: a value is expired when this much time has passed since its life began.
        refresh: what begins a value's life anew: a `"write"`, or `"read-and-write"`.
        visibility: whether expired values are `"never"` returned, or `"until-cleaned"`: while they are still there.
        clean_up: when expired values are removed: `"snapshot"` leaves them out of every full snapshot,
            `"incremental"` looks at a few cells with every access, `"compaction"` removes those of a key group
            when the checkpoint rewrites it.
    """

    duration_ms: int
    refresh: Refresh = "write"
    visibility: Visibility = "never"
    clean_up: tuple[CleanUp, ...] = ("snapshot", "compaction")


class TtlCodec:
    """A `ValueCodec` for pairs `(value, alive_since_ms)` over the codec of the values."""

    def __init__(self, inner: ValueCodec) -> None:
        self._inner = inner
        self.schema = inner.schema.append(LIFE_FIELD)
        self.mutable = inner.mutable

    def check(self, stamped: tuple[Any, int]) -> tuple[Any, int]:
        return self._inner.check(stamped[0]), stamped[1]

    def copy(self, stamped: tuple[Any, int]) -> tuple[Any, int]:
        return self._inner.copy(stamped[0]), stamped[1]

    def dumps(self, stamped: tuple[Any, int]) -> bytes:
        return stamped[1].to_bytes(8, "big", signed=True) + self._inner.dumps(stamped[0])

    def loads(self, data: bytes) -> tuple[Any, int]:
        return self._inner.loads(data[8:]), int.from_bytes(data[:8], "big", signed=True)

    def columns(self, values: Sequence[tuple[Any, int]]) -> list[pa.Array]:
        inner = self._inner.columns([value for value, _ in values])
        return [*inner, pa.array([alive_since for _, alive_since in values], type=pa.int64())]

    def rows(self, columns: Sequence[pa.Array]) -> Iterator[tuple[Any, int]]:
        return zip(self._inner.rows(columns[:-1]), columns[-1].to_pylist(), strict=True)


def alive(cells: "Cells", ttl: Ttl, now_ms: int) -> "Cells":
    """The cells whose values have not expired, lists and maps included."""
    raise NotImplementedError

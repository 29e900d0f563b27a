"""The rows of the features in the KV store: datasets, addresses, and the small records beside the data.

    serving_info                      GroupBy's name -> ServingInfo
    {name}.batch.{end}.{landing}      key -> batch row, at the batch end
    {name}.stream.{generation}        key -> tiles of every layer, and the amendment marker
                                      CLOSING_KEY -> a closing time for each shard

The rows of a key in the stream's dataset differ by their time. Each layer of tiles has its own range of
times, 2**45 ms wide (it reaches to the year 3084). The marker stands above all tiles of the smallest
layer. So one range, from any start to the marker, reads the open tiles and the marker.

Order of writing: a late event's tiles and the marker in one step; a closing time after every tile that
it covers. So a marker is never visible before its tile, and a closing time is too early after a crash, never
too late.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, unreadable, with_header

FORMAT_VERSION = 1
"""The format of the marker and of a closing time."""

CLOSING_KEY = b"\xff"
"""The key of the closing times; no key of a GroupBy begins with this byte."""

NEVER_CLOSED_MS = -(1 << 62)
"""The closing time of a stream that has closed no tile: before every tile."""

_LAYER_WIDTH = 1 << 45
_HALF = _LAYER_WIDTH >> 1

MARKER_ADDRESS = _HALF - 1
"""The time of the amendment marker of a key."""

MAX_QUERY_MS = 16_725_225_600_000
"""The end of what may be asked for, excluded: the year 2500. A range of tiles up to a query, rounded up to whole tiles,
ends well before the marker.
"""


def batch_dataset(group_by: str, batch_end_ms: int, landing_ms: int) -> str:
    """Return the name of the dataset of one batch.

    >>> batch_dataset("route", 86400000, 86500000)
    'route.batch.86400000.86500000'
    """
    return f"{group_by}.batch.{batch_end_ms}.{landing_ms}"


def stream_dataset(group_by: str, generation: str) -> str:
    """Return the name of the dataset of the tiles of one generation.

    >>> stream_dataset("route", "c0ffee00")
    'route.stream.c0ffee00'
    """
    return f"{group_by}.stream.{generation}"


def tile_address(layer: int, start_ms: int) -> int:
    """Return the time under which a tile is stored.

    >>> tile_address(0, 300_000), tile_address(1, 300_000) == 2**45 + 300_000
    (300000, True)
    """
    return layer * _LAYER_WIDTH + start_ms


def tile_range(layer: int, start_ms: int, end_ms: int) -> tuple[int, int]:
    """Return the range of times that holds the tiles of a layer that start in ``[start_ms, end_ms)``.

    >>> tile_range(0, 0, 600_000)
    (0, 600000)
    """
    return tile_address(layer, start_ms), tile_address(layer, end_ms)


def layer_of(address: int) -> int:
    """Return the layer of an address.

    >>> layer_of(tile_address(2, 300_000)), layer_of(0)
    (2, 0)
    """
    return (address + _HALF) // _LAYER_WIDTH


def start_of(address: int) -> int:
    """Return the start of the tile at an address.

    >>> start_of(tile_address(2, 300_000)), start_of(tile_address(1, -1))
    (300000, -1)
    """
    return address - layer_of(address) * _LAYER_WIDTH


class ClosingTime(msgspec.Struct, frozen=True, array_like=True):
    """The time up to which the tiles of one shard are closed: each is complete, or absent and empty.

    Args:
        shard: the number of the part of the keys.
        shards: how many parts there are.
        closed_ms: the watermark, rounded down to a whole number of the smallest tiles. It never goes back,
            unless the stream was restarted without its state.
        started_ms: the stream has all events from this time on; None if that is not known, as in older records.
    """

    shard: int
    shards: int
    closed_ms: int
    started_ms: int | None = None


def encode_closing_time(closing: ClosingTime) -> bytes:
    """Return the bytes of a closing time; they are put under ``CLOSING_KEY``, with the shard's number as the time."""
    fields = msgspec.structs.astuple(closing)
    stored = fields[:-1] if closing.started_ms is None else fields
    return with_header(FORMAT_VERSION, msgspec.msgpack.encode(stored), CLOSING_KEY)


def closing_time(values: Sequence[bytes]) -> int | None:
    """Return the time up to which all shards are closed; None while one of them has not written its own.

    Args:
        values: the rows under ``CLOSING_KEY``.

    Raises:
        CorruptionError: one of them does not decode.

    >>> first, second = (encode_closing_time(ClosingTime(n, 2, closed_ms=n * 60_000)) for n in (0, 1))
    >>> closing_time([first]), closing_time([first, second])
    (None, 0)
    """
    times = [_decoded(value, ClosingTime, "closing time", CLOSING_KEY) for value in values]
    shards = max((time.shards for time in times), default=0)
    closed = {time.shard: time.closed_ms for time in times if time.shards == shards}
    return min(closed.values()) if shards and len(closed) == shards else None


def stream_start(values: Sequence[bytes]) -> int | None:
    """Return the time from which all shards have all events; None if one of them does not say.

    Raises:
        CorruptionError: one of the rows under ``CLOSING_KEY`` does not decode.

    >>> stream_start([encode_closing_time(ClosingTime(0, 1, 0, started_ms)) for started_ms in (60_000,)])
    60000
    """
    starts = [_decoded(value, ClosingTime, "closing time", CLOSING_KEY).started_ms for value in values]
    return None if not starts or None in starts else max(starts)


def encode_marker(key: bytes, amendments: int) -> bytes:
    """Return the bytes of a key's amendment marker, which counts how often its closed tiles were amended."""
    return with_header(FORMAT_VERSION, msgspec.msgpack.encode(amendments), b"marker" + key)


def decode_marker(key: bytes, value: bytes) -> int:
    """Return how often closed tiles of a key were amended.

    Raises:
        CorruptionError: the bytes are torn, altered or of another key.

    >>> decode_marker(b"EWR", encode_marker(b"EWR", 3))
    3
    """
    amendments: int = _decoded(value, int, "amendment marker", b"marker" + key)
    return amendments


def _decoded(value: bytes, kind: Any, what: str, address: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(checked_body(FORMAT_VERSION, value, what, address), type=kind)
    except DECODE_ERRORS as cause:
        raise unreadable(what, str(cause)) from cause

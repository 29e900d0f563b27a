"""What happens when a batch lands: the hottest keys are read from it, and outdated entries are dropped.

Place on the data path: beside the fetches, on the thread that refreshes the serving info; never in a
request's time.

Without this, every cached key would miss at once when a batch lands, and latency would jump. So the
hottest keys of the former batch are read from the new one *before* it is served. Once it is served, the rows
that were read replace the old entries. The other entries of the former batch are dropped in slices, so that
no request waits long for the lock of a cache. An entry that is still there answers only for the former batch,
so correctness does not depend on when it is dropped.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from millpond.cache import Cache
from millpond.errors import MillpondError
from millpond.kv import KVStore, TimedValue
from millpond.serving.caches.batch_rows import BatchRow, batch_get, decoded_row
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import LandedBatch

SLICE = 500
"""How many entries are checked, or keys read, at a time."""


def hottest_rows(group: ServedGroup, landed: LandedBatch, store: KVStore, most: int) -> dict[bytes, BatchRow]:
    """Read the batch rows of the hottest keys of a GroupBy from a batch that is about to be served.

    Rows that do not decode, and failures of the store, are left to the requests, which report them.
    """
    cache = group.batch_cache
    if cache is None or not most or not group.skips_batch_get:
        return {}
    # Closed tiles alone answer a hot key, so their cache knows which keys are hot.
    hottest = cache if group.tile_cache is None else group.tile_cache
    keys = [key for key, _ in hottest.items()][-most:]
    found: dict[bytes, BatchRow] = {}
    for part in _slices(keys):
        gets = [batch_get(landed, key) for key in part]
        try:
            answers = store.get_many(gets)
        except MillpondError:
            return found
        for key, rows in zip(part, answers, strict=True):
            row = _decoded(group, landed, key, rows)
            if row is not None:
                found[key] = row
    return found


def replace_entries(group: ServedGroup, landed: LandedBatch, rows: dict[bytes, BatchRow]) -> None:
    """Put the rows that were read beforehand into the caches, and drop every entry of another batch."""
    cache = group.batch_cache
    if cache is not None:
        for key, row in rows.items():
            cache.put(key, row)
        _drop_outdated(cache, landed)
    if group.tile_cache is not None:
        _drop_outdated(group.tile_cache, landed)


def _drop_outdated(cache: Cache[bytes, Any], landed: LandedBatch) -> None:
    entries = [key for key, entry in cache.items() if entry.landed is not landed]
    for part in _slices(entries):
        for key in part:
            entry = cache.peek(key)
            if entry is not None and entry.landed is not landed:
                cache.invalidate(key)


def _decoded(group: ServedGroup, landed: LandedBatch, key: bytes, rows: Sequence[TimedValue]) -> BatchRow | None:
    """Return the decoded row; None also if it is absent: absence is believed only after the batch is served."""
    if not rows:
        return None
    try:
        return decoded_row(group, landed, key, rows)
    except MillpondError:
        return None


def _slices(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    remaining = iter(keys)
    while part := list(islice(remaining, SLICE)):
        yield part

"""The cache of decoded batch IRs, one for each GroupBy, and how its size is said.

Place on the data path: between the fetcher and the store's batch rows. A hit saves the get and the
decoding, which together are most of a request (CHIP-1, steps 1 and 2).

Invariant: an entry answers only for the very data it was made from. Its key carries the dataset, the
batch end and the landing time, so an upload that is run again for the same batch end is another key, and
the entries of the old one die of disuse.

Idea: absence is cached like a row (`None` for a key that the batch does not know), since asking for keys
without history is what new users do. W-TinyLFU keeps a scan of rare keys from washing out the hot ones.

Trade-off: an IR is weighed by the length of the bytes it came from, times what Python objects take more
than packed bytes. Walking each IR would be exact to the byte and cost more than decoding it.
"""

import re
from collections.abc import Mapping

import msgspec

from millpond.cache import Cache
from millpond.errors import OptionError
from millpond.features import BatchIr

BatchKey = tuple[str, bytes, int, int]
"""Dataset, encoded key, batch end and landing time."""

CacheSize = int | str
"""Entries as a number (`10_000`, `"10000"`), or bytes as a text (`"50MB"`, `"64 MiB"`)."""

_ENTRY_BYTES = 700
"""What an entry takes beside its IR: nodes of the cache, the key's tuple, names and numbers."""

_OBJECT_BYTES_PER_ENCODED_BYTE = 12
"""A cell is 1 to 9 bytes when packed, and about 40 as an object with a place in a tuple; tuples come on top."""

_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "KI": 1 << 10,
    "MI": 1 << 20,
    "GI": 1 << 30,
}
_SIZE = re.compile(r"(\d+)\s*(?:([KMG]I?)?(B))?", re.IGNORECASE)


class CachedBatch(msgspec.Struct, frozen=True):
    """What the batch has of one key, None for nothing, and the length of the row it was decoded from."""

    ir: BatchIr | None
    row_bytes: int


def batch_cache(group_by: str, size: CacheSize) -> Cache[BatchKey, CachedBatch]:
    """Make the cache of one GroupBy; size 0 keeps nothing.

    - Key: `BatchKey`. Capacity: entries or estimated bytes. Freshness: by key, nothing expires.
    - Concurrent miss: both read, the last stays; the values are equal.

    >>> cache = batch_cache("route", "50MB")
    >>> cache.put(("route.batch.0.1", b"EWR", 0, 1), CachedBatch(None, 0))
    >>> cache.stats().bytes
    706
    """
    entries, max_bytes = parse_cache_size(group_by, size)
    return Cache(
        f"fetcher.{group_by}.batch",
        max_entries=entries,
        max_bytes=max_bytes,
        weigher=_weigh,
        policy="w-tinylfu",
        shared=True,
    )


def parse_cache_size(group_by: str, size: CacheSize) -> tuple[int | None, int | None]:
    """Read a `fetcher_cache_size` as (entries, bytes), one of which is None.

    >>> parse_cache_size("route", 10_000), parse_cache_size("route", "50MB"), parse_cache_size("route", "1 KiB")
    ((10000, None), (None, 50000000), (None, 1024))
    """
    match = _SIZE.fullmatch(str(size).strip())
    if match is None or isinstance(size, bool):
        raise OptionError(
            f"fetcher_cache_size of GroupBy {group_by!r} is {size!r}; give a number of entries (10000), "
            "bytes with a unit ('50MB', '64MiB'), or 0 for no cache."
        )
    number, unit, in_bytes = match.groups()
    return (None, int(number) * _UNITS[(unit or "").upper()]) if in_bytes else (int(number), None)


def sizes_by_name(size: CacheSize | Mapping[str, CacheSize], names: list[str]) -> dict[str, CacheSize]:
    """The size for each GroupBy, from one size for all or a mapping by name, where absent means 0.

    >>> sizes_by_name({"route": "50MB"}, ["route", "aircraft"])
    {'route': '50MB', 'aircraft': 0}
    """
    if not isinstance(size, Mapping):
        return dict.fromkeys(names, size)
    unknown = sorted(set(size) - set(names))
    if unknown:
        raise OptionError(f"fetcher_cache_size names the GroupBys {unknown}, served are {sorted(names)}.")
    return {name: size.get(name, 0) for name in names}


def _weigh(key: BatchKey, cached: CachedBatch) -> int:
    return _ENTRY_BYTES + 2 * len(key[1]) + _OBJECT_BYTES_PER_ENCODED_BYTE * cached.row_bytes

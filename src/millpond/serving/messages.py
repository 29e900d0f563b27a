"""What goes into the fetcher and what comes out of it.

Place on the data path: the last step before the model. Invariant: a feature that is in `features` is
what `plan.finish` gives (exact on a five-minute mark), and None there means that the key is known to
have no data; what could not be answered is not in `features` at all, and `error` says why. So no failure
can be read as "no data".
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from millpond.cache import CacheStats


class FetchRequest(msgspec.Struct, frozen=True):
    """Asks for all features of one key of a GroupBy as of `query_ms`, in milliseconds UTC.

    >>> FetchRequest("route", {"origin": "EWR"}, query_ms=1_388_361_600_000).group_by
    'route'
    """

    group_by: str
    keys: Mapping[str, Any]
    query_ms: int


class FetchResponse(msgspec.Struct, frozen=True):
    """The features of one request, by name.

    `batch_end_ms` is the end of the batch that answered, None if none did. `error` tells why features
    are missing: all of them, or those in `stale`, whose windows the batch is too old to answer.

    >>> FetchResponse("route", {"origin": "EWR"}, {"count_1h": 3}, batch_end_ms=0).error is None
    True
    """

    group_by: str
    keys: Mapping[str, Any]
    features: dict[str, Any]
    batch_end_ms: int | None = None
    error: str | None = None
    stale: tuple[str, ...] = ()


class FetcherStats(msgspec.Struct, frozen=True):
    """What a fetcher did since it was made; all counts only grow.

    `kv_calls` are the `get_many`s to the store, of which each answers many gets: `batch_gets` for batch
    rows, `stream_gets` for ranges of tiles, `info_gets` for serving infos. `errors` are responses with an
    error. `caches` has one entry per GroupBy.

    >>> FetcherStats(requests=2, kv_calls=1, batch_gets=1, stream_gets=2, info_gets=1, errors=0, caches={}).requests
    2
    """

    requests: int
    kv_calls: int
    batch_gets: int
    stream_gets: int
    info_gets: int
    errors: int
    caches: dict[str, CacheStats]

"""The protocol of a fetcher as the HTTP service uses it, so that the service can be tested without a fetcher.

Place on the data path: between `millpond.serving.http` and `Fetcher`.

Invariant: the service uses a fetcher only through these methods. The async methods never block the event loop: a
store in this process answers at once, Redis through asyncio, a blocking store on threads. The fetcher chooses which.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from millpond.features import GroupBy, Join, ServingInfo
from millpond.serving.groups.cache_options import CacheBound
from millpond.serving.messages import FetchRequest, FetchResponse, Target

if TYPE_CHECKING:
    import pyarrow as pa


class Served(Protocol):
    """A fetcher, as the HTTP service sees it."""

    @property
    def targets(self) -> Mapping[str, Target]:
        """Every GroupBy and Join that can be requested, resolved, by name."""
        ...

    @property
    def definitions(self) -> Mapping[str, GroupBy | Join]:
        """The definitions of these GroupBys and Joins, by name."""
        ...

    @property
    def cache_bounds(self) -> Mapping[str, CacheBound]:
        """How large each cache may become, by its name in the statistics."""
        ...

    async def fetch_many_async(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer the requests in their order.

        Raises:
            OptionError: a GroupBy, Join or feature is not served.
            DataError: a key, time or context is missing or not of its declared type.
            UnavailableError: the store failed for all of them.
            CorruptionError: the record that says which batch is served does not decode.
        """
        ...

    def fetch_now(self, requests: Sequence[FetchRequest]) -> list[FetchResponse] | None:
        """Like `fetch_many_async`, if nothing must be waited for; else None."""
        ...

    def fetch_table(
        self, target: str, table: "pa.Table", *, at: int | None = None, features: Sequence[str] | None = None
    ) -> "pa.Table":
        """Answer one request per row of keys and context. Called on a thread; raises as `fetch_many_async` does."""
        ...

    async def refresh_async(self) -> Mapping[str, ServingInfo | None]:
        """Read from the store which batch of each GroupBy is served; None for a GroupBy without a batch.

        Raises:
            UnavailableError: the store does not answer.
        """
        ...

    def serving_infos(self) -> Mapping[str, ServingInfo | None]:
        """Return which batch of each GroupBy is served, as far as known without waiting; None if none is."""
        ...

    def stats(self) -> msgspec.Struct:
        """Return the counts since the fetcher was made."""
        ...

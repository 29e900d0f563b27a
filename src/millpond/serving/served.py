"""What the HTTP service asks of a fetcher: a seam, so that the service is tested without one.

Place on the data path: between `millpond.serving.http` and `Fetcher`. Invariant: whatever the service
does, it does through these methods. The asynchronous ones never hold up the event loop: a store in this
process answers at once, Redis by asyncio, a blocking store on threads. The fetcher decides which.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from millpond.features import GroupBy, Join, ServingInfo
from millpond.serving.cache_options import CacheBound
from millpond.serving.messages import FetchRequest, FetchResponse, Target

if TYPE_CHECKING:
    import pyarrow as pa


class Served(Protocol):
    """The face of a fetcher towards the HTTP service."""

    @property
    def targets(self) -> Mapping[str, Target]:
        """Every GroupBy and Join that may be asked for, by name."""
        ...

    @property
    def definitions(self) -> Mapping[str, GroupBy | Join]:
        """The same as they were defined, by name."""
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
        """Do as `fetch_many_async` if that takes no waiting; else None."""
        ...

    def fetch_table(
        self, target: str, table: "pa.Table", *, at: int | None = None, features: Sequence[str] | None = None
    ) -> "pa.Table":
        """Answer one request per row of keys and context; called on a thread. Raises as `fetch_many_async`."""
        ...

    async def refresh_async(self) -> Mapping[str, ServingInfo | None]:
        """Read now which batch of each GroupBy is served, None where there is none.

        Raises:
            UnavailableError: the store does not answer.
        """
        ...

    def serving_infos(self) -> Mapping[str, ServingInfo | None]:
        """Which batch of each GroupBy is served, as far as is known without waiting; None where none is."""
        ...

    def stats(self) -> msgspec.Struct:
        """The counts since the fetcher was made."""
        ...

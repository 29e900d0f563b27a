"""Looks up batches of keys in a cache that all executors share: the part of one executor, in its state host.

Place on the data path: between a worker's lookup join and the caches. Events stay where they are, and so do keys that
this executor owns or has in its near cache. The other keys go to their owners, one request per batch and owner, while
this executor looks up its own. The invariant: **an owner is only a faster way to the source**. If it does not answer,
the keys are loaded here, and counted as `owner_failure_count`; a cache never fails a batch.

An executor knows the invalidated keys that its partitions brought, and passes them on with its requests. So the rows of
a partition are as fresh as with a cache of the executor's own.

Source: groupcache (Fitzpatrick, 2013).
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.cache import Cache, monotonic_ms, new_cache
from millpond.cache.api import Clock
from millpond.errors import CorruptionError, UnavailableError
from millpond.lookup import LookupStats, LookupTable
from millpond.lookup.column_cache.cache import ColumnCacheLimits
from millpond.lookup.column_cache.chunks import Rows, joined_rows
from millpond.lookup.column_cache.hashed_keys import HashedKeys
from millpond.spark.lookup.counts import Counted, Level, level_now
from millpond.spark.lookup.invalidations import Invalidated
from millpond.spark.lookup.rows import MOST_OPEN_TABLES, Matches, PartialRows, Positions, RowsWanted, opened
from millpond.spark.lookup.shared.members import Known, Members
from millpond.spark.lookup.shared.near import NearCache
from millpond.spark.lookup.shared.owner import Peer, Refused, answered, decoded_answer, encoded_ask
from millpond.spark.lookup.shared.ownership import owners
from millpond.spark.lookup.tls_server import ServerAddress

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sharing:
    """How the executors share a table's cache.

    Attributes:
        directory: the address of the directory, and the token for it and for all owners.
        near: the limits of the cache for keys that others own; None if there is none.
    """

    directory: ServerAddress
    near: ColumnCacheLimits | None


class SharedTable:
    """This executor's part of a shared cache; thread-safe.

    Args:
        sharing: how the cache is shared.
        executor: names this executor.
        key_schema: the table's key columns.
        own: opens the cache of the keys that this executor owns, after it was told invalidated keys.
        clock: monotonic milliseconds.
    """

    def __init__(
        self,
        sharing: Sharing,
        executor: str,
        key_schema: pa.Schema,
        own: Callable[[bytes], PartialRows],
        clock: Clock = monotonic_ms,
    ) -> None:
        self.key_schema, self.clock, self.own = key_schema, clock, own
        self.near = None if sharing.near is None else NearCache(sharing.near, clock)
        self._heard = 0, b""
        self._lock = threading.Lock()
        self.members = Members(sharing.directory, executor, lambda body: answered(body, own), clock)
        self._name = executor

    def open(self, invalidated: bytes = b"") -> "SharedRows":
        """Return the table for one partition, which brings the newest invalidated keys."""
        own = self.own(invalidated)
        self._hear(invalidated)
        self.members.attend()
        return SharedRows(self, own)

    def heard(self) -> tuple[int, bytes]:
        """Return the version of the last invalidation that this executor knows, and the invalidated keys."""
        return self._heard

    def known(self) -> Known:
        """Return the members that answer."""
        return self.members.known()

    def levels(self, idle_ms: int) -> dict[str, Level]:
        """Return what the near cache holds."""
        if self.near is None:
            return {}
        records, held = self.near.size()
        stats = LookupStats(num_cached_record=records, num_cached_bytes=held)
        return {f"near {self._name}": level_now(stats, idle_ms)}

    def close(self) -> None:
        """Leave the other executors."""
        self.members.close()

    def _hear(self, invalidated: bytes) -> None:
        told = Invalidated.decode(invalidated)
        with self._lock:
            before = self._heard[0]
            if told.version <= before:
                return
            # First the version: whoever finds the near cache emptied must ask the owners with it.
            self._heard = told.version, invalidated
            if self.near is not None:
                self.near.invalidate(self._hashed(told.columns_since(before)))

    def _hashed(self, columns: list[pa.Array] | None) -> HashedKeys | None:
        if columns is None:
            return None
        hashed, possible = HashedKeys.of(columns, self.key_schema)
        return hashed.take(np.flatnonzero(possible))


class SharedRows:
    """A shared table as one partition sees it."""

    def __init__(self, shared: SharedTable, own: PartialRows) -> None:
        self._shared, self._own = shared, own
        self.failed = LookupStats()
        """The failed loads of the last `match` that raised."""

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """Look up the keys: in the near cache, at their owners, and in this executor's own cache."""
        known = self._shared.known()
        if len(known.peers) == 1:
            return self._matched_here(keys)
        return self._matched_everywhere(keys, known)

    def close(self) -> None:
        """Do nothing: the caches stay for the next partition."""

    def _matched_here(self, keys: Sequence[pa.Array]) -> Matches:
        try:
            return self._own.match(keys)
        except BaseException:
            self.failed = self._own.failed
            raise

    def _matched_everywhere(self, keys: Sequence[pa.Array], known: Known) -> Matches:
        hashed, possible = HashedKeys.of(keys, self._shared.key_schema)
        owner = owners(hashed.hashes, known.seeds)
        # A key that no row can have is nobody's. It is not asked for.
        owner[~possible] = known.peers.index(None)
        found = _Found(self._own.schema, len(keys[0]))
        again, invalidations = self._near(hashed, owner, known, found)
        with ExitStack() as asking:
            asks = [
                asking.enter_context(closing(_Ask(self._shared, peer, keys, places)))
                for number, peer in enumerate(known.peers)
                if peer is not None and len(places := np.flatnonzero(~found.there & (owner == number)))
            ]
            found.stats += LookupStats(owner_ask_count=sum(len(ask.places) for ask in asks))
            self._add_own(keys, np.flatnonzero(owner == known.peers.index(None)), found)
            unanswered = [ask.places for ask in asks if not self._add_answer(ask, hashed, again, invalidations, found)]
        if unanswered:
            places = np.concatenate(unanswered)
            found.stats += LookupStats(owner_failure_count=len(places))
            self._add_own(keys, places, found)
        found.levels |= self._shared.levels(self._own.idle_ms)
        return found.matches()

    def _near(self, hashed: HashedKeys, owner: Positions, known: Known, found: "_Found") -> tuple[Mask, int]:
        """Add what the near cache has. Return which keys it should have, and the number of its invalidations so far."""
        again = np.zeros(len(hashed), np.bool_)
        if self._shared.near is None:
            return again, 0
        places = np.flatnonzero(owner != known.peers.index(None))
        nearby = self._shared.near.find(hashed.take(places))
        if nearby.rows is not None:
            found.add(places[nearby.there], nearby.rows)
            found.stats += LookupStats(hit_count=len(nearby.there), event_hit_count=len(nearby.there))
        again[places] = nearby.again
        return again, nearby.invalidations

    def _add_own(self, keys: Sequence[pa.Array], places: Positions, found: "_Found") -> None:
        if len(places):
            found.add_matches(places, self._matched_here(_taken(keys, places)))

    def _add_answer(self, ask: "_Ask", hashed: HashedKeys, again: Mask, invalidations: int, found: "_Found") -> bool:
        """Add an owner's answer, and keep the keys near that are asked for again. Return False if there is none."""
        matches = ask.answer(self._own.schema)
        if matches is None:
            return False
        if isinstance(matches, Refused):
            self.failed = matches.stats
            raise UnavailableError(matches.text)
        found.add_matches(ask.places, matches)
        if self._shared.near is None or matches.ages_ms is None:
            return True
        kept = np.flatnonzero(again[ask.places] & (matches.ages_ms >= 0))
        if len(kept):
            rows = Rows(matches.starts, matches.counts, found.batch(matches.rows)).taken(kept)
            # The time on the way counts too.
            ages_ms = matches.ages_ms[kept] + (self._shared.clock() - ask.sent_ms)
            self._shared.near.put(hashed.take(ask.places[kept]), rows, ages_ms, invalidations)
        return True


class _Ask:
    """The request to one owner."""

    def __init__(self, shared: SharedTable, peer: Peer, keys: Sequence[pa.Array], places: Positions) -> None:
        self._peer = peer
        self._version, invalidated = shared.heard()
        self.places, self.sent_ms = places, shared.clock()
        news = invalidated if peer.told_version < self._version else b""
        self._asked = peer.ask(encoded_ask(_taken(keys, places), news))

    def close(self) -> None:
        """Give up the answer, unless it was read."""
        self._asked.close()

    def answer(self, schema: pa.Schema) -> Matches | Refused | None:
        data = self._asked.answer()
        if data is None:
            return None
        try:
            decoded = decoded_answer(data, schema, len(self.places))
        except CorruptionError as error:
            self._peer.report(str(error))
            return None
        self._peer.told_version = max(self._peer.told_version, self._version)
        return decoded


class _Found:
    """The rows found so far for the keys of a batch, by position."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._starts, self._counts = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self._failures: dict[int, tuple[str, str]] = {}
        self.there = np.zeros(count, np.bool_)
        self.stats = LookupStats()
        self.levels: dict[str, Level] = {}

    def batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """Return columns of rows as a batch."""
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def add(self, places: Positions, rows: Rows) -> None:
        """Add the rows of some keys."""
        self._starts[places], self._counts[places] = rows.starts + self._rows, rows.counts
        self.there[places] = True
        self._rows += rows.rows.num_rows
        self._parts.append(rows.rows)

    def add_matches(self, places: Positions, matches: Matches) -> None:
        """Add the rows, failures and counters of some keys."""
        self.add(places, Rows(matches.starts, matches.counts, self.batch(matches.rows)))
        self._failures |= {int(places[number]): failure for number, failure in matches.failures.items()}
        self.stats += matches.counted.stats
        self.levels |= matches.counted.levels

    def matches(self) -> Matches:
        """Return everything as one result."""
        rows = joined_rows(self._parts).columns if self._parts else [pa.array([], each.type) for each in self._schema]
        counted = Counted(self.stats, self.levels)
        return Matches(self._starts, self._counts, rows, counted, failures=self._failures)


def _taken(keys: Sequence[pa.Array], places: Positions) -> list[pa.Array]:
    taken = pa.array(places)
    return [pc.take(column, taken) for column in keys]


def _close(_key: str, shared: SharedTable, _cause: str) -> None:
    shared.close()


_OPEN: Cache[str, SharedTable] = new_cache(
    "shared lookup tables", max_entries=MOST_OPEN_TABLES, on_evict=_close, shared=True
)


def opened_shared(
    wanted: RowsWanted, table: LookupTable, sharing: Sharing, executor: str, idle_ms: int, invalidated: bytes
) -> SharedRows:
    """Open a shared table for one partition, in the state host of an executor."""

    def made(_: str) -> SharedTable:
        def own(told: bytes) -> PartialRows:
            return opened(wanted, table, idle_ms, told)

        return SharedTable(sharing, executor, table.key_schema, own)

    return _OPEN.get_or_load(wanted.table_id, made).open(invalidated)

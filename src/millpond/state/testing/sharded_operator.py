"""The shards of one running operator, and the storages where their state is made durable.

On the data path this stands between the harness, which knows records, times and output, and the single shard. It opens
shards, rolls them back, moves state between them, and stores and restores them all as one.

Invariant: the shards in use are all open and hold one operator's state, or all were dropped. New ones replace the old
ones only when they are complete.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.errors import OptionError
from millpond.metrics import Recorder
from millpond.state.backend.check import checked_backend
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint import CheckpointStorage, FileStorage
from millpond.state.checkpoint.savepoint import Savepoint, write_savepoint
from millpond.state.operator.operator import KeyedOperator, Times
from millpond.state.operator.shard import OperatorShard
from millpond.state.options.opening import open_backend
from millpond.state.options.operator import StateOptions
from millpond.state.testing.checkpoints import (
    OperatorCheckpoints,
    Restoration,
    StorageOfShard,
    close_all,
    restored,
    restored_from_savepoint,
    resumed_ms,
    saved,
    wanted_versions,
)
from millpond.state.types.key_groups import key_groups_of, max_parallelism
from millpond.state.types.routing import KeyPlaces

_MOST_KEY_GROUPS = 1 << 15


class ShardedOperator:
    """An operator's shards. `Harness` explains the arguments.

    Attributes:
        max_parallelism: how many key groups there are.
        shards: those in use.
        places: finds a record's shard by its key.
    """

    def __init__(
        self,
        operator: Callable[[], KeyedOperator],
        key_schema: pa.Schema,
        times: Times,
        *,
        shards: int,
        max_parallelism: int | None,
        options: StateOptions,
        backend: Callable[[range], KeyedStateBackend] | None,
        storage: str | StorageOfShard | None,
        recorder: Recorder,
    ) -> None:
        self._operator = operator
        self._key_schema = key_schema
        self._times = times
        self.max_parallelism = _parallelism(shards, max_parallelism)
        self._options = options
        self._recorder = recorder
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-harness-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._backend = backend or self._open_backend
        self._opened = 0
        self._storage_of = _storage_of(storage or options.checkpoint_storage or f"{self._folder}/checkpoints")
        self._checkpoints: OperatorCheckpoints | None = None
        self.shards: Sequence[OperatorShard]
        self.places: KeyPlaces[OperatorShard]
        self._use(self._open(shards, self.max_parallelism))

    def _open_backend(self, key_groups: range) -> KeyedStateBackend:
        self._opened += 1
        # A local folder of the backend's takes over only this folder's name, so the name must be unique.
        folder = self._folder / f"{self._folder.name}-{self._opened}"
        return open_backend(self._options, key_groups, folder, self._recorder)

    def _open(self, shards: int, max_parallelism: int) -> list[OperatorShard]:
        opened: list[OperatorShard] = []
        try:
            for number in range(shards):
                groups = key_groups_of(number, shards, max_parallelism)
                backend = checked_backend(self._backend(groups))
                opened.append(OperatorShard(self._operator, backend, groups, self._times))
        except BaseException:
            close_all(opened)
            raise
        return opened

    def _use(self, shards: Sequence[OperatorShard]) -> None:
        self.shards = shards
        self.places = KeyPlaces(self._key_schema, list(shards), self.max_parallelism)
        self.set_now()

    def set_now(self) -> None:
        """Set the processing time of every shard."""
        for shard in self.shards:
            shard.key_context.now_ms = self._times.processing_ms

    def state(self, name: str) -> Mapping[Any, Any]:
        """Return every key's value of a state now."""
        found: dict[Any, Any] = {}
        for shard in self.shards:
            found |= shard.state(name)
        return found

    def temperatures(self) -> pa.Table:
        """Return the map of the key groups of all shards."""
        return pa.concat_tables([shard.temperatures() for shard in self.shards])

    def write_dirty(self) -> None:
        """Write what caches of single states hold to the backends. If that fails, no shard has ended its version."""
        for shard in self.shards:
            shard.backend.write_dirty()

    def prepared_checkpoints(self) -> OperatorCheckpoints:
        """Prepare a checkpoint. If it fails, all shards are still in one version, so it can be tried again."""
        if self._checkpoints is None:
            self._checkpoints = OperatorCheckpoints.born(
                self.shards, self._storage_of, self.max_parallelism, self._key_schema
            )
        self.write_dirty()
        return self._checkpoints

    def rollback(self) -> None:
        """Drop every change since the last checkpoint was begun."""
        for shard in self.shards:
            shard.backend.rollback()
            shard.undone()

    def drop(self) -> None:
        """Drop what is in memory, and the checkpoints that are not written yet."""
        if self._checkpoints is not None:
            self._checkpoints.abort_all()
        close_all(self.shards)

    def look_for(self, version: int | None) -> None:
        """Raise an OptionError if a version is not stored, while what is in memory is still there."""
        # A new storage would take its shard over from the one in use, so the one in use is asked.
        known = None if self._checkpoints is None else self._checkpoints.storages
        wanted_versions(known or self._storages(), version)

    def _storages(self) -> list[CheckpointStorage]:
        return [self._storage_of(number) for number in range(len(self.shards))]

    def restore(self, version: int | None, *, fall_back: bool) -> Restoration:
        """Go on from a stored checkpoint, after what was in memory was dropped."""
        shards = len(self.shards)
        opened, self._checkpoints, done = restored(
            lambda: self._open(shards, self.max_parallelism),
            self._storages(),
            self._key_schema,
            version,
            fall_back=fall_back,
            now_ms=self._times.processing_ms,
        )
        self._times.watermark_ms, self._times.processing_ms = done.watermark_ms, done.processing_ms
        self._use(opened)
        return done

    def rescale(self, shards: int, storage: str | StorageOfShard | None) -> None:
        """Go on with another number of shards."""
        _parallelism(shards, self.max_parallelism)
        opened = self._open(shards, self.max_parallelism)
        try:
            for shard in self.shards:
                shard.move_state(opened)
        except BaseException:
            close_all(opened)
            raise
        self.drop()
        self._begin_anew(opened, storage)

    def _begin_anew(self, opened: Sequence[OperatorShard], storage: str | StorageOfShard | None) -> None:
        """Go on with shards into which state was moved. Their first checkpoint is a full one."""
        self._opened += 1
        self._storage_of = _storage_of(storage or f"{self._folder}/checkpoints-{self._opened}")
        self._checkpoints = None
        self._use(opened)

    def savepoint(self, location: str) -> None:
        """Write all state, as it is now, to an empty folder."""
        # First, so that an error that hooks raise is not mistaken for a failure of the folder.
        self.write_dirty()
        shards = saved(self.shards, self.max_parallelism, self._key_schema, self._times)
        write_savepoint(location, shards)

    def restore_savepoint(self, location: str, shards: int | None, storage: str | StorageOfShard | None) -> None:
        """Go on from a savepoint. If it cannot be restored, what is in memory stays."""
        found = Savepoint.open(location)
        opened = restored_from_savepoint(
            found, self._key_schema, shards or len(self.shards), self._open, now_ms=self._times.processing_ms
        )
        self.drop()
        self.max_parallelism = found.contents.max_parallelism
        self._times.watermark_ms = found.contents.watermark_ms
        self._times.processing_ms = resumed_ms(found.contents.processing_ms, self._times.processing_ms)
        self._begin_anew(opened, storage)

    def close(self) -> None:
        """Free the state, and remove temporary files. Idempotent."""
        self.drop()
        self._remove_folder()


def _parallelism(shards: int, wanted: int | None) -> int:
    least = max_parallelism(shards)
    if wanted is None:
        return least
    if not shards <= wanted <= _MOST_KEY_GROUPS:
        raise OptionError(
            f"max_parallelism is {wanted} with {shards} shards; expected {shards} to {_MOST_KEY_GROUPS}: every shard "
            "needs a key group."
        )
    return wanted


def _storage_of(storage: str | StorageOfShard) -> StorageOfShard:
    return (lambda number: FileStorage(storage, number)) if isinstance(storage, str) else storage

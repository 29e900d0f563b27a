"""The checkpoints of all shards of an operator, as one.

Each shard has its own storage and its own `Checkpointer`. Here they are begun, written and restored together. A
checkpoint counts when every shard has stored it: a restore takes a version that all of them have.

Invariant: the shards number versions alike, so one version number is one moment of the operator. No shard's newest
stored version is more than one checkpoint ahead of another's, because the shard that is furthest behind writes first,
and a failure stops those after it. So storages that keep two versions always have one in common.
"""

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from millpond.errors import CorruptionError, OptionError
from millpond.state.checkpoint import (
    Checkpointer,
    CheckpointStats,
    CheckpointStorage,
    Manifest,
    PendingCheckpoint,
    Restored,
    new_manifest,
    restore,
)
from millpond.state.checkpoint.savepoint import Savepoint, ShardState
from millpond.state.checkpoint.starting import load_savepoint
from millpond.state.operator.operator import Times
from millpond.state.operator.shard import OperatorShard

StorageOfShard = Callable[[int], CheckpointStorage]
"""Opens the storage of a shard, by its number. Each call is a new writer."""


@dataclass(frozen=True)
class Restoration:
    """The result of a restore.

    Attributes:
        version: the checkpoint from which the operator goes on.
        watermark_ms: the watermark under which it was begun, or -1.
        processing_ms: the time at which it was begun; the operator's own if the checkpoint is too old to have one.
        passed_over: what is wrong with each newer checkpoint that was damaged; empty unless falling back was allowed.
    """

    version: int
    watermark_ms: int
    processing_ms: int
    passed_over: tuple[str, ...] = ()


class BegunCheckpoint:
    """A checkpoint after its blocking part and before it is stored. Pass it to `write` or to `abort`.

    `write` may run in any thread while records flow. Checkpoints are written in the order begun.
    """

    def __init__(self, owner: "OperatorCheckpoints", parts: Sequence[tuple[Checkpointer, PendingCheckpoint]]) -> None:
        self._owner = owner
        self.parts = list(parts)
        self.version = parts[0][1].version

    def write(self) -> list[CheckpointStats]:
        """Store it. Return its cost by shard. If that fails, it does not count, and the next one has its changes."""
        return self._owner.write(self)

    def abort(self) -> None:
        """Abort it. Its changes go with the next one."""
        self._owner.abort(self)


class OperatorCheckpoints:
    """Makes checkpoints of shards that are at their checkpointers' manifests.

    Args:
        checkpointers: of all shards.
        common: the newest version that all of them have; None if there is none yet.
    """

    def __init__(self, checkpointers: Sequence[Checkpointer], common: int | None = None) -> None:
        self._checkpointers = checkpointers
        self._common = common
        self._lock = threading.Lock()

    @staticmethod
    def born(
        shards: Sequence[OperatorShard],
        storage_of: StorageOfShard,
        max_parallelism: int,
        key_schema: pa.Schema,
    ) -> "OperatorCheckpoints":
        """Create the checkpoints of an operator that was never stored. Raises OptionError if a storage is not empty."""
        storages = [storage_of(number) for number in range(len(shards))]
        for storage in storages:
            versions = storage.versions()
            if versions:
                raise OptionError(
                    f"{storage.name} holds checkpoints already, up to version {versions[-1]}. Call restore() first to "
                    "go on from them, or choose an empty folder."
                )
        manifests = [
            new_manifest(secrets.token_hex(8), number, len(shards), max_parallelism, key_schema)
            for number in range(len(shards))
        ]
        return OperatorCheckpoints(
            [
                Checkpointer(storage, shard.backend, manifest, shard.descriptors.values())
                for storage, shard, manifest in zip(storages, shards, manifests, strict=True)
            ]
        )

    @property
    def storages(self) -> list[CheckpointStorage]:
        """The storages of all shards."""
        return [checkpointer.storage for checkpointer in self._checkpointers]

    def begin(self, watermark_ms: int, *, full: bool) -> BegunCheckpoint:
        """Do the blocking part for all shards."""
        parts: list[tuple[Checkpointer, PendingCheckpoint]] = []
        try:
            for checkpointer in self._checkpointers:
                pending = checkpointer.begin(watermark_ms, full=full)
                parts.append((checkpointer, pending))
        except BaseException:
            # Some shards have ended a version that the others have not: only a restore makes them agree again.
            for checkpointer, pending in parts:
                checkpointer.abort(pending)
            raise
        return BegunCheckpoint(self, parts)

    def remove_expired(self, begun: BegunCheckpoint) -> None:
        """Remove from live state what earlier checkpoints found expired. If that fails, abort the one just begun."""
        try:
            for checkpointer in self._checkpointers:
                checkpointer.remove_expired()
        except BaseException:
            self.abort(begun)
            raise

    def write(self, begun: BegunCheckpoint) -> list[CheckpointStats]:
        """Store the oldest begun checkpoint, one shard at a time."""
        with self._lock:
            for checkpointer, pending in begun.parts:
                checkpointer.check_oldest(pending)
            stats = []
            left = sorted(begun.parts, key=lambda part: part[0].manifest.version)
            try:
                while left:
                    checkpointer, pending = left.pop(0)
                    stats.append(checkpointer.write(pending, common=self._common))
            finally:
                for checkpointer, pending in left:
                    checkpointer.abort(pending)
            self._common = stats[0].version
            return stats

    def abort(self, begun: BegunCheckpoint) -> None:
        """Abort a checkpoint."""
        with self._lock:
            for checkpointer, pending in begun.parts:
                checkpointer.abort(pending)

    def abort_all(self) -> None:
        """Abort every begun checkpoint, after waiting for one that is being written."""
        with self._lock:
            for checkpointer in self._checkpointers:
                checkpointer.abort_all()


def wanted_versions(storages: Sequence[CheckpointStorage], version: int | None) -> list[int]:
    """Return the versions that every storage has, from the one asked for (None: the newest) to the oldest.

    Raises:
        OptionError: there is none, or not the one asked for.
    """
    stored = [storage.versions() for storage in storages]
    common = sorted(set(stored[0]).intersection(*stored[1:]), reverse=True)
    wanted = [each for each in common if version is None or each <= version]
    if not wanted or (version is not None and wanted[0] != version):
        asked = "no checkpoint" if version is None else f"no checkpoint {version}"
        raise OptionError(f"{storages[0].name}: there is {asked} that every shard has; there are {common[::-1]}.")
    return wanted


def restored(
    open_shards: Callable[[], Sequence[OperatorShard]],
    storages: Sequence[CheckpointStorage],
    key_schema: pa.Schema,
    version: int | None,
    *,
    fall_back: bool,
    now_ms: int,
) -> tuple[Sequence[OperatorShard], OperatorCheckpoints, Restoration]:
    """Open shards that hold a version which every storage has, by default the newest.

    `open_shards` is called anew for every version that is tried. A CorruptionError names shard, version and segment.
    With `fall_back` the next older version is tried instead, and the result says what was skipped. `now_ms` is the
    processing time if the checkpoint has none. At that time lives begin if a TTL was added.
    """
    wanted = wanted_versions(storages, version)
    last_version = max(storage.versions()[-1] for storage in storages)
    passed_over: list[str] = []
    for candidate in wanted:
        shards = open_shards()
        try:
            parts = [
                _restore(storage, shard, len(shards), key_schema, candidate, now_ms)
                for storage, shard in zip(storages, shards, strict=True)
            ]
        except CorruptionError as error:
            close_all(shards)
            if not fall_back:
                raise
            passed_over.append(str(error))
            continue
        except BaseException:
            close_all(shards)
            raise
        for shard in shards:
            shard.undone()
        checkpointers = [
            Checkpointer(storage, shard.backend, part.manifest, shard.descriptors.values(), last_version=last_version)
            for storage, shard, part in zip(storages, shards, parts, strict=True)
        ]
        done = Restoration(
            version=candidate,
            watermark_ms=max(part.manifest.watermark_ms for part in parts),
            processing_ms=max(resumed_ms(part.manifest.processing_ms, now_ms) for part in parts),
            passed_over=tuple(passed_over),
        )
        return shards, OperatorCheckpoints(checkpointers, candidate), done
    raise CorruptionError(f"no checkpoint is whole. {' '.join(passed_over)}")


def resumed_ms(stored_ms: int, now_ms: int) -> int:
    """Return the processing time to go on from: the stored one, or the present one if none was stored."""
    return now_ms if stored_ms < 0 else stored_ms


def saved(
    shards: Sequence[OperatorShard], max_parallelism: int, key_schema: pa.Schema, times: Times
) -> Iterator[ShardState]:
    """Yield the shards' present state for a savepoint, one by one: each is as large as its state."""
    for number, shard in enumerate(shards):
        manifest = new_manifest(secrets.token_hex(8), number, len(shards), max_parallelism, key_schema)
        manifest = msgspec.structs.replace(manifest, watermark_ms=times.watermark_ms, processing_ms=times.processing_ms)
        yield ShardState.of_snapshot(manifest, shard.backend, shard.descriptors.values())


def restored_from_savepoint(
    savepoint: Savepoint,
    key_schema: pa.Schema,
    shards: int,
    open_shards: Callable[[int, int], Sequence[OperatorShard]],
    *,
    now_ms: int,
) -> Sequence[OperatorShard]:
    """Open that many shards, with the savepoint's maximum parallelism, and load the savepoint into them.

    `now_ms` is as in `restored`.
    """
    found = pa.ipc.read_schema(pa.py_buffer(savepoint.contents.key_schema))
    _check_key(savepoint.location, found, key_schema)
    if shards > savepoint.contents.max_parallelism:
        raise OptionError(
            f"shards is {shards}; {savepoint.location} has {savepoint.contents.max_parallelism} key groups, and that "
            "many shards at most."
        )
    at_ms = resumed_ms(savepoint.contents.processing_ms, now_ms)
    opened = open_shards(shards, savepoint.contents.max_parallelism)
    try:
        for number, shard in enumerate(opened):
            manifest = new_manifest("", number, shards, savepoint.contents.max_parallelism, key_schema)
            declared = list(shard.descriptors.values())
            found_states = load_savepoint(savepoint, manifest, shard.backend, declared, at_ms)
            shard.descriptors.update((descriptor.name, descriptor) for descriptor in found_states)
            shard.undone()
    except BaseException:
        close_all(opened)
        raise
    return opened


def _restore(
    storage: CheckpointStorage, shard: OperatorShard, shards: int, key_schema: pa.Schema, version: int, now_ms: int
) -> Restored:
    found = storage.manifest(version)
    if found is not None:
        _check_layout(storage, found, shard, shards)
        _check_key(storage.name, pa.ipc.read_schema(pa.py_buffer(found.key_schema)), key_schema)
        now_ms = resumed_ms(found.processing_ms, now_ms)
    done = restore(storage, shard.backend, list(shard.descriptors.values()), version=version, now_ms=now_ms)
    if done is None:
        raise OptionError(f"{storage.name} has no version {version} any more.")
    shard.descriptors.update((descriptor.name, descriptor) for descriptor in done.descriptors)
    return done


def _check_layout(storage: CheckpointStorage, manifest: Manifest, shard: OperatorShard, shards: int) -> None:
    if manifest.shards != shards or manifest.key_groups != shard.key_groups:
        raise OptionError(
            f"{storage.name} was written by {manifest.shards} shards with maximum parallelism "
            f"{manifest.max_parallelism}, for key groups {manifest.key_groups}; this operator has {shards} shards, "
            f"and {shard.key_groups} in this one. "
            "Restore with as many as wrote it, then rescale."
        )


def _check_key(name: str, found: pa.Schema, wanted: pa.Schema) -> None:
    if [field.type for field in found] != [field.type for field in wanted]:
        raise OptionError(
            f"{name} is keyed by ({', '.join(str(field.type) for field in found)}), and the operator's key_type is "
            f"({', '.join(str(field.type) for field in wanted)}). Restore with the key it was written with."
        )


def close_all(shards: Iterable[OperatorShard]) -> None:
    """Free the state of shards."""
    for shard in shards:
        shard.close()

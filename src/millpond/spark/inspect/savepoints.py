"""Write savepoints of a query's keyed state from its checkpoint, in Spark's tasks. The query may be running.

The files are those of every savepoint (`millpond.state.checkpoint.savepoint`): Parquet files, and a manifest
that the driver writes last. Each attempt of a task writes separate files. The manifest names only those of
the attempt that succeeded.
"""

import secrets
from collections.abc import Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.inspect.stored_operator import StoredOperator
from millpond.state.checkpoint import Savepoint
from millpond.state.checkpoint.format.savepoint_manifest import SavepointFile
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.checkpoint.restoring import Version, row_pieces
from millpond.state.checkpoint.savepoint import check_empty, finish_savepoint, not_written, write_rows
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.types.descriptor import StateDescriptor


def savepoint(
    spark: SparkSession,
    checkpoint_location: str,
    location: str,
    *,
    operator: int | None = None,
    version: int | None = None,
    seal: Seal | bytes | None = None,
    savepoint_seal: Seal | bytes | None = None,
) -> Savepoint:
    """Write the whole state of a keyed operator to an empty folder, for a new query with any number of shards.

    Args:
        spark: a session with the settings that the query has.
        checkpoint_location: the query's checkpoint location.
        location: a path or URI that the driver and every executor can write to.
        operator: the operator's id, needed if the query has several keyed operators.
        version: the batch after which the state is saved. None: the last committed one.
        seal: the key of the query's `StateConfig(seal=...)`.
        savepoint_seal: the key that the savepoint is sealed with. None: the key of the query. With it a new query can
            have another key than the old one, or a key where the old one had none.

    Raises:
        OptionError: there is no such checkpoint, operator or version, or the folder is not empty; or the seal's key is
            missing or wrong.
        CorruptionError: a manifest or segment is missing or altered; it is named.
        UnavailableError: it could not be written. The folder has no manifest then, and cannot be used as a savepoint.
    """
    stored = StoredOperator.open(spark, checkpoint_location, operator, version, seal)
    folder, new_seal = Folder(location), Seal.of(savepoint_seal) or stored.seal
    try:
        check_empty(folder)
        written = stored.read(
            [state.name for state in stored.states],
            partial(_write_shard, location, stored.states, new_seal),
            "file binary",
        )
        files = [msgspec.msgpack.decode(row.file, type=SavepointFile) for row in written.collect()]
        files.sort(key=lambda file: file.name)
        return finish_savepoint(folder, list(stored.manifests.values()), stored.states, files, new_seal)
    except OSError as error:
        raise not_written(location, error) from error
    except PySparkException as error:
        kind = CorruptionError if CorruptionError.__name__ in str(error) else UnavailableError
        raise kind(
            f"the savepoint {folder.location} could not be written: {error}. Mend that, and write it to a new folder."
        ) from error


def _write_shard(
    location: str, states: tuple[StateDescriptor, ...], seal: Seal | None, version: Version
) -> Iterator[pa.RecordBatch]:
    folder, attempt = Folder(location), secrets.token_hex(4)
    for state in states:
        part = f"shard-{version.manifest.shard:05d}-{attempt}"
        for file in write_rows(folder, state, part, row_pieces(version, state), seal):
            yield pa.record_batch([pa.array([msgspec.msgpack.encode(file)], pa.binary())], names=["file"])

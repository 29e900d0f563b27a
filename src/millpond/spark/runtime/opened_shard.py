"""Load a shard's state into memory: from the segments of its manifest, or from a savepoint if the shard is new.

Stored states are compared with the processor's declarations before anything is loaded. A state that
cannot be read as it is declared is an error that names both declarations.
"""

import pyarrow as pa

from millpond.errors import OptionError
from millpond.spark.spec.operator import BatchTime, OperatorSpec
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint import Manifest, Savepoint, Shard
from millpond.state.checkpoint.restoring import SegmentSource, StoredStates
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.types.timer_states import PROCESSING_TIMERS, TIMERS


def filled_shard(
    spec: OperatorSpec, manifest: Manifest, segments: SegmentSource, time: BatchTime, backend: KeyedStateBackend
) -> Shard:
    """Return a shard at this manifest, loaded into an empty backend. The backend is closed on failure."""
    shard = Shard(manifest, backend, spec.timers)
    now_ms = max(0, time.processing_ms)
    try:
        if manifest.version == 0 and spec.savepoint is not None:
            shard.start_from(Savepoint.open(spec.savepoint, seal=spec.config.seal), spec.states, now_ms)
        else:
            shard.restore(segments, spec.states, now_ms)
        shard.begin_at(manifest)
    except BaseException:
        backend.close()
        raise
    return shard


def check_savepoint(spec: OperatorSpec) -> None:
    """Refuse, before the query starts, a savepoint that this operator cannot begin with.

    A missing savepoint is no error here: a query that has a checkpoint does not need it. For a new query the first
    batch raises the error.
    """
    if spec.savepoint is None or not Folder(spec.savepoint).sizes(".", recursive=True):
        return
    savepoint = Savepoint.open(spec.savepoint, seal=spec.config.seal)
    found = pa.ipc.read_schema(pa.py_buffer(savepoint.contents.key_schema))
    if not found.equals(spec.key_schema):
        raise OptionError(
            f"the state in {spec.savepoint} is keyed by [{described(found)}] and the query keys by "
            f"[{described(spec.key_schema)}]. Key by the same columns, of the same names and types."
        )
    StoredStates.of(savepoint.contents.states, spec.states, savepoint.contents.key_schema, 0)
    held = {file.state for file in savepoint.contents.files}
    for timers, mode in ((TIMERS, "EventTime"), (PROCESSING_TIMERS, "ProcessingTime")):
        if timers.name in held and spec.time_mode != mode.lower():
            raise OptionError(
                f"{spec.savepoint} holds timers that were set in {mode}, and in timeMode {spec.time_mode!r} they would "
                f"never fire. Start the query with timeMode {mode!r}."
            )


def described(schema: pa.Schema) -> str:
    """Return the fields of a schema as text, for errors."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)

"""Find out what a processor declares in `init`, before the query runs.

A state that cannot be declared fails here, on the driver. The plan then knows the operator's states, so that a
restart can compare them with those of the checkpoint before the first row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from millpond.spark.forms.choice import users_handle
from millpond.spark.forms.handles import ProcessorHandle
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.spi import HeapBackend, StateDescriptor


@dataclass(frozen=True)
class Declarations:
    """What one processor declares.

    Attributes:
        ddl: the schemas that it gives as text, parsed.
        states: its states.
        deleted: the names of states that it declares and then deletes.
    """

    ddl: Mapping[str, StructType]
    states: tuple[StateDescriptor, ...]
    deleted: frozenset[str] = frozenset()


def declarations(
    copy: Any, form: str, time_mode: str, parse: Callable[[str], StructType], application: str
) -> Declarations:
    """Initialise a copy of a processor over a temporary shard, as PySpark does, and return what it declares.

    The copy must be used for nothing else. `parse` parses the DDL text of a schema.

    Raises:
        OptionError, DataError: a state cannot be declared.
    """
    parsed: dict[str, StructType] = {}

    def parse_once(ddl: str) -> StructType:
        if ddl not in parsed:
            parsed[ddl] = parse(ddl)
        return parsed[ddl]

    manifest = new_manifest(application, 0, 1, 1, pa.schema([("key", pa.string())]))
    shard = Shard(manifest, HeapBackend(manifest.key_groups))
    handle = ProcessorHandle(shard, time_mode, parse_once)
    copy.init(users_handle(form, handle, shard))
    copy.close()
    return Declarations(parsed, shard.declared, handle.deleted)

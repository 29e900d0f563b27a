"""A shard's durable state while Spark's state store does not answer."""

import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.spark.runtime.state_store import ShardStore
from millpond.state.checkpoint import Commit, new_manifest


class Broken:
    """PySpark's states, when the store has closed the connection."""

    def __init__(self, error):
        self.error = error

    def updateValue(self, key, value):
        raise self.error


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), ConnectionResetError()])
def test_a_store_that_breaks_off_is_unavailable_and_the_shard_is_named(error):
    broken, new = Broken(error), new_manifest("lineage", 3, 4, 128, pa.schema([("user", pa.string())]))
    with pytest.raises(UnavailableError, match=r"^shard 3 of .*the executor's log says why") as caught:
        ShardStore(broken, broken, "shard 3 of Count").put(Commit(new, {0: b"segment"}, (), new))
    assert caught.value.__cause__ is error


class Unwritten:
    """PySpark's states before the first batch: Spark logs a warning of every value that is read and not there."""

    def __init__(self):
        self.warnings = 0

    def exists(self):
        return False

    def get(self):
        self.warnings += 1


def test_a_shard_that_was_never_written_is_found_out_without_a_warning_in_sparks_log():
    store = Unwritten()
    durable = ShardStore(store, store, "shard 3 of Count")
    assert durable.manifest() is None
    assert durable.is_whole()
    assert store.warnings == 0

"""Which form an operator's spec asks for."""

from millpond.spark.forms.form import Form, ShardBatch
from millpond.spark.forms.per_key import PerKey
from millpond.spark.forms.row_form import RowObjects
from millpond.spark.forms.set_aside import SetAside
from millpond.state.undoable import UndoableBackend


def form_of(batch: ShardBatch) -> Form:
    """The form of a batch's operator."""
    objects = RowObjects(batch.spec)
    if batch.spec.dead_letter is None:
        return PerKey(batch, objects)
    backend = batch.shard.backend
    assert isinstance(backend, UndoableBackend), "opened so for this spec"  # noqa: S101
    return SetAside(batch, objects, backend)

"""Choose the form that an operator's spec asks for: the handle that user code sees, and how rows reach it."""

from typing import Any

from millpond.spark.forms.arrow_form import ArrowForm
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle
from millpond.spark.forms.form import Form, ShardBatch
from millpond.spark.forms.handles import ProcessorHandle
from millpond.spark.forms.per_key import KeyObjects, PerKey
from millpond.spark.forms.row_form import RowObjects
from millpond.spark.forms.set_aside import SetAside
from millpond.spark.spec.operator import OperatorSpec
from millpond.state.checkpoint import Shard
from millpond.state.wrappers.undo import UndoableBackend


def users_handle(form: str, handle: ProcessorHandle, shard: Shard) -> Any:
    """Return the handle that a processor of this form gets in `init`."""
    return ArrowProcessorHandle(handle, shard) if form == "arrow" else handle


def form_of(batch: ShardBatch, handle: Any) -> Form:
    """Return the form for a batch, whose processor was given this handle."""
    if batch.spec.form == "arrow":
        return ArrowForm(batch, handle)
    objects = _key_objects(batch.spec)
    if batch.spec.dead_letter is None:
        return PerKey(batch, objects)
    backend = batch.shard.backend
    assert isinstance(backend, UndoableBackend), "opened so for this spec"  # noqa: S101
    return SetAside(batch, objects, backend)


def _key_objects(spec: OperatorSpec) -> KeyObjects:
    if spec.form == "pandas":
        # Importing pandas takes longer than a small batch, and other forms do not need it.
        from millpond.spark.forms.pandas_form import PandasObjects

        return PandasObjects(spec)
    return RowObjects(spec)

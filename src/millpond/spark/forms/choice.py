"""Which form an operator's spec asks for."""

from millpond.spark.forms.form import Form, ShardBatch
from millpond.spark.forms.per_key import PerKey
from millpond.spark.forms.row_form import RowObjects


def form_of(batch: ShardBatch) -> Form:
    """The form of a batch's operator."""
    return PerKey(batch, RowObjects(batch.spec))

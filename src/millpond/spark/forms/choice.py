"""Which form an operator's spec asks for."""

from millpond.spark.forms.form import Form, ShardBatch
from millpond.spark.forms.per_key import PerKey
from millpond.spark.forms.row_form import RowObjects


def form_of(batch: ShardBatch) -> Form:
    """The form of a batch's operator."""
    if batch.spec.form == "pandas":
        # Only who asks for pandas needs it, and its import takes longer than a small batch.
        from millpond.spark.forms.pandas_form import PandasObjects

        return PerKey(batch, PandasObjects(batch.spec))
    return PerKey(batch, RowObjects(batch.spec))

"""Dead letters in the output: their schema, and how to separate them from the processor's output.

With `on_error="dead-letter"` the output has an extra column, `dead_letter`. It is null in a row that the
processor yielded. A row for a failed call has a value in this column and nulls in all others.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from millpond.errors import OptionError
from millpond.spark.spec.operator import DEAD_LETTER


def letter_schema(key: StructType, rows: StructType) -> StructType:
    """Return the schema of a dead letter, for a key and rows of these schemas."""
    names = [name.lower() for name in rows.names]
    if len(set(names)) < len(names):
        raise OptionError(
            f"on_error='dead-letter' keeps whole rows, and their columns are {rows.names}: two of one name cannot be "
            "told apart there. Rename one of them."
        )
    return StructType(
        [
            StructField("key", key),
            StructField("rows", ArrayType(rows)),
            StructField("timer_ms", LongType()),
            StructField("error", StringType()),
            StructField("traceback", StringType()),
            StructField("batch_id", LongType()),
        ]
    )


def with_dead_letters(output: StructType, letter: StructType) -> StructType:
    """Add the dead letters' column to the output's schema. All columns become nullable, as letters have nulls there."""
    if DEAD_LETTER in [name.lower() for name in output.names]:
        raise OptionError(
            f"the output has a column {DEAD_LETTER!r}, which is where on_error='dead-letter' puts what failed. "
            "Give the column another name."
        )
    columns = [StructField(column.name, column.dataType, nullable=True, metadata=column.metadata) for column in output]
    return StructType([*columns, StructField(DEAD_LETTER, letter)])


def split_dead_letters(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Separate output and dead letters of an operator that runs with `on_error="dead-letter"`.

    In a stream, split the DataFrame that `foreachBatch` gets: two queries on one stream would each run the operator.

    Returns:
        The output, with the columns that the processor yields; and the dead letters, with these columns:
        `key`, a struct of the key's columns; `rows`, an array of the failed call's rows with all their columns, so
        that they can be corrected and processed again; `timer_ms`, the time of the timer whose handler failed, else
        null; `error`, the exception as one line; `traceback`; and `batch_id`, null outside a stream.

    Raises:
        OptionError: there is no column `dead_letter`.
    """
    if DEAD_LETTER not in df.columns:
        raise OptionError(
            f"there is no column {DEAD_LETTER!r} among {df.columns}. It is there when the operator runs with "
            'on_error="dead-letter", as long as nobody drops it.'
        )
    letter: Column = F.col(DEAD_LETTER)
    return df.where(letter.isNull()).drop(DEAD_LETTER), df.where(letter.isNotNull()).select(f"{DEAD_LETTER}.*")

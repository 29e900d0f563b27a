"""Dead letters as users get them: their schema, and how output and letters are told apart.

With `on_error="dead-letter"` the output has one column more, `dead_letter`. It is null in a row that the
processor gave; in a row that stands for a call that failed, it is all that there is.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from millpond.errors import OptionError
from millpond.spark.spec.operator import DEAD_LETTER


def letter_schema(key: StructType, rows: StructType) -> StructType:
    """The fields of a dead letter, for a key and rows of these schemas."""
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
    """The schema of output and dead letters. In a letter's row every other column is null."""
    if DEAD_LETTER in [name.lower() for name in output.names]:
        raise OptionError(
            f"the output has a column {DEAD_LETTER!r}, which is where on_error='dead-letter' puts what failed. "
            "Give the column another name."
        )
    columns = [StructField(column.name, column.dataType, nullable=True, metadata=column.metadata) for column in output]
    return StructType([*columns, StructField(DEAD_LETTER, letter)])


def split_dead_letters(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Output and dead letters of an operator that runs with `on_error="dead-letter"`.

    In a stream, split what `foreachBatch` is given: two queries on one stream would each run the operator.

    Returns:
        The output, with the columns that the processor gives; and the dead letters, with these columns:
        `key`, a struct of the key's columns; `rows`, an array of the rows that the failed call was given, whole, so
        that they can be mended and fed in again; `timer_ms`, the time of the timer whose handler failed, else null;
        `error`, the exception in a line; `traceback`; and `batch_id`, null outside of a stream.

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

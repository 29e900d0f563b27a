"""`millpond training-set`: computes the features of a Join or GroupBy as of the times of queries."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from millpond.commands.options import TimeOfDay, snapshots_end_option
from millpond.commands.spark_command import Given, on_spark, read_files
from millpond.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@click.command("training-set")
@on_spark
@click.option("--queries", metavar="PATH", help="The queries: keys, time, context and labels.")
@click.option("--every", metavar="SPAN", help="Without queries: request every known key once each SPAN, such as 1h.")
@click.option("--from", "begin", type=TimeOfDay(), help="Without queries: the first query time.")
@click.option("--to", "end", type=TimeOfDay(), help="Without queries: the end of the query times, not included.")
@click.option("--time-column", default="time_ms", show_default=True, help="The column with the time of the queries.")
@click.option("--bootstrap", metavar="PATH", help="Take logged answers from this folder instead of computing them.")
@snapshots_end_option
@click.option("--output", required=True, metavar="PATH", help="A new folder for the result, as Parquet.")
def training_set(
    given: Given,
    *,
    queries: str | None,
    every: str | None,
    begin: int | None,
    end: int | None,
    time_column: str,
    bootstrap: str | None,
    snapshots_end_ms: int | None,
    output: str,
) -> None:
    """Write the features of a Join or GroupBy of DEFINITIONS after the columns of the queries."""
    from millpond.spark import training_set as run_training_set

    target = given.target
    if (begin is None) != (end is None):
        raise OptionError("--from and --to go together; give both, or neither")
    if given.has_local_paths and Path(output.removeprefix("file://")).exists():
        raise _is_there(output)
    with given.session("training-set", f"computing {target.name}") as spark:
        rows = run_training_set(
            None if queries is None else read_files(spark, "--queries", queries),
            target,
            time_column=time_column,
            tables=given.tables(spark),
            snapshots_end_ms=snapshots_end_ms,
            bootstrap=None if bootstrap is None else read_files(spark, "--bootstrap", bootstrap),
            every=every,
            between=None if begin is None or end is None else (begin, end),
            spark=spark,
        )
        _write(rows, output)
        count = spark.read.parquet(output).count()
    given.tell({"name": target.name, "rows": count, "output": output}, f"{count} rows in {output}")


def _write(rows: "DataFrame", output: str) -> None:
    from pyspark.errors import AnalysisException

    try:
        rows.write.parquet(output)
    except AnalysisException as cause:
        if cause.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise _is_there(output) from cause


def _is_there(output: str) -> OptionError:
    return OptionError(f"--output {output!r} is there already; give a new folder, or remove it")

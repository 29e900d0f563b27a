"""`millpond training-set`: the features of a Join or GroupBy as of the times of queries."""

import click

from millpond.commands.definitions import load_definitions
from millpond.commands.options import (
    TimeOfDay,
    chosen_target,
    definitions_argument,
    given_tables,
    json_option,
    spark_options,
    spark_session,
    target_option,
    tell,
)
from millpond.errors import OptionError


@click.command("training-set")
@definitions_argument
@target_option
@click.option("--queries", metavar="PATH", help="The queries: keys, time, context and labels.")
@click.option("--every", metavar="SPAN", help="Without queries: ask for every key that was seen each SPAN, as 1h.")
@click.option("--from", "begin", type=TimeOfDay(), help="Without queries: the first question.")
@click.option("--to", "end", type=TimeOfDay(), help="Without queries: up to when, not included.")
@click.option("--time-column", default="time_ms", show_default=True, help="The time of the queries.")
@click.option("--output", required=True, metavar="PATH", help="Where the result goes, as Parquet.")
@spark_options
@json_option
def training_set(
    *,
    definitions: tuple[str, ...],
    name: str | None,
    queries: str | None,
    every: str | None,
    begin: int | None,
    end: int | None,
    time_column: str,
    output: str,
    master: str | None,
    settings: tuple[str, ...],
    tables: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the features of a Join or GroupBy of DEFINITIONS behind the columns of the queries."""
    from millpond.spark import training_set as run_training_set

    target = chosen_target(load_definitions(definitions), name)
    if (begin is None) != (end is None):
        raise OptionError("--from and --to go together; give both, or neither")
    spark = spark_session("training-set", master, settings)
    try:
        click.echo(f"computing {target.name}", err=True)
        rows = run_training_set(
            None if queries is None else spark.read.load(queries),
            target,
            time_column=time_column,
            tables=given_tables(spark, tables),
            every=every,
            between=None if begin is None or end is None else (begin, end),
            spark=spark,
        )
        rows.write.parquet(output)
        count = spark.read.parquet(output).count()
    finally:
        spark.stop()
    tell({"name": target.name, "rows": count, "output": output}, as_json=as_json, text=f"{count} rows in {output}")

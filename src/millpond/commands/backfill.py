"""`millpond backfill`: days of history collected into the hop table that uploads go on from."""

import click
import msgspec

from millpond.commands.definitions import load_definitions
from millpond.commands.options import (
    TimeOfDay,
    chosen_group_by,
    definitions_argument,
    given_tables,
    json_option,
    spark_options,
    spark_session,
    target_option,
    tell,
)


@click.command()
@definitions_argument
@target_option
@click.option("--hop-table", required=True, metavar="FOLDER", help="The folder of the table; made if it is missing.")
@click.option("--from", "begin_ms", type=TimeOfDay(), required=True, help="The first day.")
@click.option("--to", "end_ms", type=TimeOfDay(), required=True, help="Up to when, not included: a full hour UTC.")
@spark_options
@json_option
def backfill(
    *,
    definitions: tuple[str, ...],
    name: str | None,
    hop_table: str,
    begin_ms: int,
    end_ms: int,
    master: str | None,
    settings: tuple[str, ...],
    tables: tuple[str, ...],
    as_json: bool,
) -> None:
    """Collect days of a GroupBy of DEFINITIONS. Days that have not changed are not read into the table again."""
    from millpond.spark import backfill as run_backfill

    group_by = chosen_group_by(load_definitions(definitions), name)
    click.echo(f"collecting {group_by.name} from {begin_ms} to {end_ms}", err=True)
    spark = spark_session("backfill", master, settings)
    try:
        found = run_backfill(group_by, (begin_ms, end_ms), hop_table, tables=given_tables(spark, tables), spark=spark)
    finally:
        spark.stop()
    text = f"{group_by.name}: hop table {hop_table} reaches to {found.end_ms}, version {found.version}"
    tell(msgspec.to_builtins(found, str_keys=True), as_json=as_json, text=text)

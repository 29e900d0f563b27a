"""`millpond backfill`: collects days of history into the hop table from which uploads continue."""

import click
import msgspec

from millpond.commands.options import TimeOfDay, shown_time
from millpond.commands.spark_command import Given, on_spark


@click.command()
@on_spark
@click.option(
    "--hop-table", required=True, metavar="FOLDER", help="The folder of the hop table; created if it is missing."
)
@click.option("--from", "begin_ms", type=TimeOfDay(), required=True, help="The first day.")
@click.option("--to", "end_ms", type=TimeOfDay(), required=True, help="The end, not included: a full hour UTC.")
def backfill(given: Given, *, hop_table: str, begin_ms: int, end_ms: int) -> None:
    """Collect days of a GroupBy of DEFINITIONS. Days that have not changed are not read into the table again."""
    from millpond.spark import backfill as run_backfill

    group_by = given.group_by
    doing = f"collecting {group_by.name} from {shown_time(begin_ms)} to {shown_time(end_ms)}"
    with given.session("backfill", doing) as spark:
        found = run_backfill(group_by, (begin_ms, end_ms), hop_table, tables=given.tables(spark), spark=spark)
    text = f"{group_by.name}: hop table {hop_table} reaches to {shown_time(found.end_ms)}, version {found.version}"
    given.tell(msgspec.to_builtins(found, str_keys=True), text)

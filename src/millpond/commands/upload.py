"""`millpond upload`: computes the features of all events before a batch end, and starts to serve them."""

import time

import click
import msgspec

from millpond.commands.options import TimeOfDay, shown_time
from millpond.commands.spark_command import Given, on_spark, store_option
from millpond.features.windows import DAY_MS
from millpond.kv import open_store


@click.command()
@on_spark
@store_option
@click.option(
    "--batch-end", type=TimeOfDay(), help="The end of the batch, not included; by default the last midnight UTC."
)
@click.option(
    "--hop-table",
    metavar="FOLDER",
    help="Keep history as hops in this folder, so that the next upload reads only new days.",
)
def upload(given: Given, *, store_url: str, batch_end: int | None, hop_table: str | None) -> None:
    """Upload a GroupBy of DEFINITIONS. Running it again replaces the upload; a failed run changes nothing."""
    from millpond.spark import upload as run_upload

    group_by = given.group_by
    if batch_end is None:
        batch_end = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS  # noqa: TID251 - "the last midnight" is by the clock
    doing = f"uploading {group_by.name} up to {shown_time(batch_end)}"
    with open_store(store_url) as store, given.session("upload", doing) as spark:
        tables = given.tables(spark)
        info = run_upload(group_by, batch_end, store, tables=tables, spark=spark, hop_table=hop_table)
    end = shown_time(info.batch_end_ms)
    text = f"{group_by.name}: {info.rows} keys up to {end}, served from {info.batch_dataset}"
    given.tell(msgspec.to_builtins(info), text)

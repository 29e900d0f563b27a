"""`millpond upload`: the features of all events before a batch end, served from then on."""

import time

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
    store_option,
    target_option,
    tell,
)
from millpond.features.windows import DAY_MS
from millpond.kv import open_store


@click.command()
@definitions_argument
@target_option
@store_option
@click.option("--batch-end", type=TimeOfDay(), help="Up to when, not included; the last midnight UTC by default.")
@spark_options
@json_option
def upload(
    *,
    definitions: tuple[str, ...],
    name: str | None,
    store_url: str,
    batch_end: int | None,
    master: str | None,
    settings: tuple[str, ...],
    tables: tuple[str, ...],
    as_json: bool,
) -> None:
    """Upload a GroupBy of DEFINITIONS. Running it again replaces the upload; a failed run changes nothing."""
    from millpond.spark import upload as run_upload

    group_by = chosen_group_by(load_definitions(definitions), name)
    if batch_end is None:
        batch_end = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS  # noqa: TID251 - "the last midnight" is by the clock
    store = open_store(store_url)
    click.echo(f"uploading {group_by.name} up to {batch_end}", err=True)
    spark = spark_session("upload", master, settings)
    try:
        info = run_upload(group_by, batch_end, store, tables=given_tables(spark, tables), spark=spark)
    finally:
        spark.stop()
        store.close()
    text = f"{group_by.name}: {info.rows} keys up to {info.batch_end_ms}, served from {info.batch_dataset}"
    tell(msgspec.to_builtins(info), as_json=as_json, text=text)

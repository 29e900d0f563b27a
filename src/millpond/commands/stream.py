"""`millpond stream`: keeps the tiles of a GroupBy up to date from its stream."""

import click
import msgspec

from millpond.commands.options import TimeOfDay, shown_time
from millpond.commands.spark_command import Given, on_spark, store_option
from millpond.errors import OptionError
from millpond.features import parse_window
from millpond.kv import open_store
from millpond.metrics import MemoryRecorder


@click.command()
@on_spark
@store_option
@click.option("--checkpoint", required=True, metavar="PATH", help="The folder of the query's checkpoint.")
@click.option(
    "--start", type=TimeOfDay(), help="The time of the first event; by default the batch end of the served upload."
)
@click.option("--lateness", default="10m", show_default=True, help="How far the watermark is behind the newest event.")
@click.option("--available-now", is_flag=True, help="Process the available events, then end.")
def stream(
    given: Given, *, store_url: str, checkpoint: str, start: int | None, lateness: str, available_now: bool
) -> None:
    """Stream a GroupBy of DEFINITIONS until it is stopped; the same command with the same checkpoint continues."""
    from millpond.spark import stream as run_stream
    from millpond.spark.features.stream import check_streamable
    from millpond.spark.features.upload import read_serving_info

    group_by = given.group_by
    check_streamable(group_by)
    lateness_ms = parse_window(lateness)
    recorder = MemoryRecorder()
    with open_store(store_url) as store:
        if start is None:
            served = read_serving_info(store, group_by.name)
            if served is None:
                raise OptionError(
                    f"GroupBy {group_by.name!r}: nothing was uploaded yet; upload it first, or give --start"
                )
            start = served.batch_end_ms
        with given.session(
            "stream", f"streaming {group_by.name} from {shown_time(start)}; stop it with Ctrl-C"
        ) as spark:
            query = run_stream(
                group_by,
                store,
                checkpoint,
                start_ms=start,
                lateness_ms=lateness_ms,
                tables=given.tables(spark, streaming=True),
                trigger={"availableNow": True} if available_now else None,
                spark=spark,
                recorder=recorder,
            )
            try:
                query.awaitTermination()
            except KeyboardInterrupt:
                query.stop()
    counted = {metric: amount for (metric, _, _), amount in sorted(recorder.totals().items())}
    text = "\n".join(f"{metric} {amount:g}" for metric, amount in counted.items())
    given.tell(msgspec.to_builtins(counted), text)

"""A user's program on a session of its own: `python bare_job.py PROVIDER`, or by `spark-submit`.

It lies in a folder with `events/`, `prices.py` and `tariffs.zip`, as the test puts it there. Prints what it found, as
JSON lines. The session has Spark's own defaults, but for the state store and the number of shards.
"""

import json
import sys
import warnings
from pathlib import Path

import prices
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import keyed

FOLDER = Path(__file__).resolve().parent
OUTPUT = "user string, amount long"


class Spent(StatefulProcessor):
    """Adds up what a user spent, at prices of a module beside this program."""

    def init(self, handle):
        self.amount = handle.getValueState("amount", "amount long")

    def handleInputRows(self, key, rows, timerValues):
        before = self.amount.get() or (0,)
        self.amount.update((before[0] + sum(prices.price(row.item) for row in rows),))
        yield Row(user=key[0], amount=self.amount.get()[0])

    def close(self):
        pass


def main(provider):
    spark = (
        SparkSession.builder.config("spark.sql.streaming.stateStore.providerClass", provider)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.addPyFile(str(FOLDER / "tariffs.zip"))
    from tariffs.spent import SpentAtTariff

    reader = spark.readStream.schema("user string, item string").option("maxFilesPerTrigger", 1)
    events = reader.json(str(FOLDER / "events"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        spent = keyed(events, "user").transformWithState(Spent(), OUTPUT, "Update", "None")  # here
        at_tariff = keyed(spark.read.json(str(FOLDER / "events")), "user").transformWithState(
            SpentAtTariff(), OUTPUT, "Update", "None"
        )
    tell(warned=[[str(each.message), Path(each.filename).name, each.lineno] for each in warned])

    batches = []
    writer = spent.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.foreachBatch(lambda batch, _: batches.append(sorted(batch.collect())))
    writer.option("checkpointLocation", str(FOLDER / "checkpoint")).start().awaitTermination()
    tell(stream=batches, batch=sorted(at_tariff.collect()), master=spark.conf.get("spark.master"))

    timed = events.withColumn("at", F.current_timestamp()).withWatermark("at", "0 seconds")
    stopped = keyed(timed, "user").transformWithState(Spent(), OUTPUT, "Update", "EventTime")
    stopped = stopped.writeStream.outputMode("update").format("noop")
    stopped = stopped.option("checkpointLocation", str(FOLDER / "stopped")).start()
    stopped.processAllAvailable()
    stopped.stop()
    spark.stop()


def tell(**found):
    print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

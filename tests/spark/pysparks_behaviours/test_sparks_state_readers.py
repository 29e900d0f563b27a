"""What Spark's own readers of state show of a query of ours."""

import json

import pytest
from pyspark.errors import UnsupportedOperationException

from millpond.spark import read_state
from millpond.spark.environment.versions import SPARK
from tests.spark.pysparks_behaviours.operators import Counting, Operator

pytestmark = pytest.mark.spark


def test_sparks_readers_show_our_shards_and_read_state_shows_the_states(stream, spark):
    stream.add([("ann", 1, 1.0), ("bob", 2, 1.0)])
    stream.run(Operator("millpond", "rows").of(stream.frame(), Counting(), "user"))
    checkpoint = str(stream.folder / "checkpoint")
    (metadata,) = spark.read.format("state-metadata").load(checkpoint).collect()
    assert metadata.operatorName == "transformWithStateInPySparkExec"
    properties = json.loads(metadata.operatorProperties)
    assert {state["stateName"] for state in properties["stateVariables"]} == {"head", "segments", "count"}
    manifests = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", "head").load()
    assert manifests.selectExpr("key.millpond_shard").count() == 2
    counts = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", "count").load()
    # Only its name is known to Spark.
    if SPARK < (4, 3):
        with pytest.raises(UnsupportedOperationException, match="MISSING_COLUMN_FAMILY"):
            counts.count()
    else:
        assert counts.count() == 0
    assert sorted(read_state(spark, checkpoint, "count").select("key.user", "value.n").collect()) == [
        ("ann", 1),
        ("bob", 1),
    ]

"""The demo's two GroupBys, defined once: what the batch, the stream and the fetcher all compile.

Both look at the departure delay, in minutes, which is null for a cancelled flight: `dep_delay_count`
counts departures. `delayed_15` is 1.0 for a departure more than 15 minutes late and 0.0 for another,
so its average is the share of such departures.
"""

from millpond.features import Aggregation, Field, GroupBy

WINDOWS = ("1h", "6h", "1d", "7d", "30d", None)
_INPUTS = (Field("dep_delay", "double"), Field("delayed_15", "double"))
_AGGREGATIONS = (
    Aggregation(operation="count", column="dep_delay", windows=WINDOWS),
    Aggregation(operation="average", column="dep_delay", windows=WINDOWS),
    Aggregation(operation="max", column="dep_delay", windows=WINDOWS),
    Aggregation(operation="average", column="delayed_15", windows=WINDOWS),
)

ROUTE = GroupBy(
    name="route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=_INPUTS,
    aggregations=_AGGREGATIONS,
)
"""What an airline's departures out of one airport were like."""

AIRCRAFT = GroupBy(name="aircraft", keys=(Field("tailnum", "string"),), inputs=_INPUTS, aggregations=_AGGREGATIONS)
"""What one aircraft's departures were like."""

"""What the service of `deploy/compose.yaml` answers with: put your own GroupBys and Joins here."""

from millpond.features import Aggregation, EventSource, Field, GroupBy

route = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=(Field("dep_delay", "double"),),
    aggregations=(
        Aggregation("count", windows=("1h", "7d")),
        Aggregation("average", "dep_delay", windows=("1h", "7d")),
    ),
    sources=(EventSource("flights", stream="flights"),),
)

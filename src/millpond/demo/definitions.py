"""The demo's features, defined once: what the upload, the stream, the training set and the fetcher all compile.

Three GroupBys look at the departure delay, in minutes, which is null for a cancelled flight:
`dep_delay_count` counts departures. `delayed_15` is 1.0 for a departure more than 15 minutes late and 0.0
for another, so its average is the share of such departures. The Join `flight` is what a model would ask
for before a departure.
"""

from millpond.features import Aggregation, Derivation, EventSource, Field, GroupBy, Join, JoinPart

WINDOWS = ("1h", "6h", "1d", "7d", "30d", None)
CACHE_ENTRIES = 2_000
"""Entries of each cache of each GroupBy: more than the aircraft and routes of two days."""

_FLIGHTS = "flights"
_DELAYS = (Field("dep_delay", "double"), Field("delayed_15", "double"))
_AGGREGATIONS = (
    Aggregation("count", "dep_delay", WINDOWS),
    Aggregation("average", "dep_delay", WINDOWS),
    Aggregation("max", "dep_delay", WINDOWS),
    Aggregation("average", "delayed_15", WINDOWS),
)

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=(*_DELAYS, Field("dest", "string")),
    aggregations=(*_AGGREGATIONS, Aggregation("average", "dep_delay", ("1d", "7d"), buckets=("dest",))),
    sources=(EventSource(_FLIGHTS, stream=_FLIGHTS),),
    derivations=(Derivation("delay_trend", "dep_delay_average_1d - dep_delay_average_7d"),),
    enable_fetcher_caching=True,
    fetcher_cache_size=CACHE_ENTRIES,
    fetcher_tile_cache_size=CACHE_ENTRIES,
)
"""What an airline's departures out of one airport were like, also by where they went."""

AIRCRAFT = GroupBy(
    "aircraft",
    keys=(Field("tailnum", "string"),),
    inputs=_DELAYS,
    aggregations=_AGGREGATIONS,
    sources=(EventSource(_FLIGHTS, stream=_FLIGHTS, wheres=("tailnum IS NOT NULL",)),),
    enable_fetcher_caching=True,
    fetcher_cache_size=CACHE_ENTRIES,
    fetcher_tile_cache_size=CACHE_ENTRIES,
)
"""What one aircraft's departures were like."""

AIRPORT = GroupBy(
    "airport",
    keys=(Field("airport", "string"),),
    inputs=(Field("dep_delay", "double"), Field("dest", "string"), Field("carrier", "string")),
    aggregations=(
        Aggregation("average", "dep_delay", ("1d", "30d")),
        Aggregation("unique_count", "dest", ("7d",)),
        Aggregation("histogram", "carrier", ("1d",)),
    ),
    sources=(
        EventSource(
            _FLIGHTS,
            selects={"airport": "origin", "dep_delay": "dep_delay", "dest": "dest", "carrier": "carrier"},
        ),
    ),
    accuracy="snapshot",
    enable_fetcher_caching=True,
    fetcher_cache_size=CACHE_ENTRIES,
    fetcher_tile_cache_size=0,
)
"""What an airport's departures were like as of the last midnight: uploaded each day, and never streamed."""

FLIGHT = Join(
    "flight",
    parts=(JoinPart(ROUTE), JoinPart(AIRCRAFT), JoinPart(AIRPORT, key_mapping={"origin": "airport"})),
    context=(Field("dest", "string"),),
    derivations=(
        Derivation("dest_delay_7d", "route_dep_delay_average_7d_by_dest[dest]"),
        Derivation(
            "likely_delay", "coalesce(dest_delay_7d, route_dep_delay_average_7d, airport_dep_delay_average_30d)"
        ),
        Derivation("aircraft_above_route", "aircraft_dep_delay_average_7d - route_dep_delay_average_7d"),
    ),
)
"""All of a flight: its route, its aircraft, its airport, and where it goes, which only the request knows."""

STREAMED = (ROUTE, AIRCRAFT)
DAILY = (AIRPORT,)

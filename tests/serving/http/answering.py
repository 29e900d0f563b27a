"""A fetcher that tests control: what it serves, what it answers, when it fails and when it hangs."""

import asyncio
import threading

import msgspec
import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.features import Aggregation, Field, GroupBy, ServingInfo
from millpond.features.types import parse_type
from millpond.serving import FetchResponse, Target

NOW_MS = 1_388_361_600_000

ROUTE = Target(
    "route",
    "group_by",
    "c0ffee",
    {"origin": "string", "carrier": "string"},
    {},
    {"count_1h": "long", "dep_delay_average_7d": "double"},
    ("route",),
)
EVERY_TYPE = {
    "a_boolean": "boolean",
    "an_int": "int",
    "a_long": "long",
    "a_float": "float",
    "a_double": "double",
    "a_string": "string",
    "a_binary": "binary",
    "a_date": "date",
    "a_timestamp": "timestamp",
    "a_decimal": "decimal(10,2)",
}
ROUTE_DEFINITION = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=(Field("dep_delay", "double"),),
    aggregations=(Aggregation("count", windows=("1h",)), Aggregation("average", "dep_delay", ("7d",))),
)
TYPED = Target(
    "typed",
    "join",
    "7e57ed",
    EVERY_TYPE,
    {"amount": "double", "tags": "array<string>", "rates": "map<int,double>"},
    {**EVERY_TYPE, "amount": "double", "tags": "array<string>", "rates": "map<int,double>", "days": "array<date>"},
    ("route", "aircraft"),
)
TARGETS = {target.name: target for target in (ROUTE, TYPED)}


class Gate:
    """Holds up whoever waits at it, in an event loop, until it is opened from another thread.

    `reached` is set once somebody waits.
    """

    def __init__(self):
        self._waiting = []
        self.reached = threading.Event()

    async def wait(self):
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.reached.set()
        await future

    def open(self):
        for future in self._waiting:
            future.get_loop().call_soon_threadsafe(future.set_result, None)


class Counts(msgspec.Struct, frozen=True):
    """What an `Answering` counts."""

    requests: int
    caches: dict[str, dict[str, int]]


class Answering:
    """Answers `route` by what `values` holds for an origin, and `typed` by its own keys and context."""

    def __init__(self, values=None):
        self.targets = dict(TARGETS)
        self.definitions = {"route": ROUTE_DEFINITION}
        self.cache_bounds = {}
        self.values = {"EWR": {"count_1h": 3, "dep_delay_average_7d": 12.5}} if values is None else values
        self.failure = None
        self.batches = {
            "route": ServingInfo("route", "c0ffee", 0, 7, "route.batch.0.7", "route.stream"),
            "aircraft": None,
        }
        self.asked = []
        self.looks = 0
        self.gate = None

    async def fetch_many_async(self, requests):
        self.asked.append(list(requests))
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [self._answer(request) for request in requests]

    def fetch_now(self, requests):
        if self.gate is not None or self.failure is not None:
            return None
        self.asked.append(list(requests))
        return [self._answer(request) for request in requests]

    def fetch_table(self, target, table, *, at=None, features=None):
        if self.failure is not None:
            raise self.failure
        names = list(self.targets[target].features) if features is None else list(features)
        rows = [self._features(target, row) for row in table.to_pylist()]
        return pa.table(
            {
                name: pa.array([row.get(name) for row in rows], parse_type(self.targets[target].features[name]).arrow())
                for name in names
            }
        )

    async def refresh_async(self):
        self.looks += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.batches

    def serving_infos(self):
        return self.batches

    def stats(self):
        return Counts(sum(map(len, self.asked)), {"route": {"hits": 1, "misses": 2}})

    def _features(self, target, values):
        return self.values.get(values["origin"], {}) if target == "route" else values

    def _answer(self, request):
        at = NOW_MS if request.at is None else request.at
        if at == 13:
            raise DataError("at is 13, which brings bad luck")
        known = self.targets[request.name].features
        wanted = tuple(known) if request.features is None else request.features
        unknown = sorted(set(wanted) - set(known))
        if unknown:
            raise OptionError(f"{request.name!r} has no feature {unknown[0]!r}")
        found = self._features(request.name, {**request.keys, **(request.context or {})})
        features = {name: found.get(name) for name in wanted}
        states = {name: "null" for name, value in features.items() if value is None}
        explain = {"rows": 1} if request.explain else None
        return FetchResponse(request.name, request.keys, at, features, states, {}, 0, explain)

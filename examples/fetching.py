"""Fetches features of a key with `millpond.serving`, from a store in memory that this program fills itself.

In production `upload` writes the batch rows and `stream` the tiles, both of `millpond.spark`.

    python examples/fetching.py
"""

from millpond.features import (
    DAY_MS,
    SERVING_INFO_DATASET,
    Aggregation,
    Field,
    GroupBy,
    ServingInfo,
    batch_dataset,
    compile_group_by,
    serving_info_key,
    stream_dataset,
)
from millpond.kv import KVStore, MemoryStore, Put
from millpond.serving import Fetcher

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=(
        Aggregation("count", windows=("7d",)),
        Aggregation("average", "delay", windows=("7d",)),
    ),
)
MIDNIGHT = 19_000 * DAY_MS
"""The batch end."""
NOON = MIDNIGHT + DAY_MS // 2


def filled_store() -> KVStore:
    """Make a store with a batch in which Newark had two flights, ten and thirty minutes late."""
    plan, store = compile_group_by(ROUTE), MemoryStore()
    key = plan.encode_key(["EWR"])
    assert key is not None  # noqa: S101 - no part of the key is null
    dataset = batch_dataset("route", MIDNIGHT, MIDNIGHT + 1)
    batch = plan.batch_ir([(MIDNIGHT - DAY_MS, (10.0,)), (MIDNIGHT - 1, (30.0,))], MIDNIGHT)
    store.put_many(dataset, [Put(key, plan.encode_batch(key, batch), MIDNIGHT)])
    info = ServingInfo(
        "route",
        plan.definition_hash,
        MIDNIGHT,
        MIDNIGHT + 1,
        dataset,
        stream_dataset("route", plan.generation),
        plan.generation,
        plan.batch_form,
        plan.layers,
    )
    store.put_many(SERVING_INFO_DATASET, [Put(serving_info_key("route"), info.encode())])
    return store


def main() -> None:
    """Print the features of a known and of an unknown airport."""
    fetcher = Fetcher(filled_store(), [ROUTE])
    for origin in ("EWR", "XXX"):
        answer = fetcher.fetch("route", {"origin": origin}, at=NOON)
        print(origin, dict(answer.features))


if __name__ == "__main__":
    main()

"""The service's description of itself: the GroupBys and Joins that it serves, and their batches."""

import msgspec

from millpond.serving.http.served import Served
from millpond.serving.messages import Target


class ServedBatch(msgspec.Struct):
    """The batch of a GroupBy that is served: its end, and when it was uploaded, in milliseconds UTC."""

    batch_end_ms: int
    batch_landing_ms: int


class ServedTarget(msgspec.Struct):
    """A GroupBy or Join as a client sees it, with the served batch of each GroupBy that it reads; null if none is."""

    name: str
    kind: str
    definition_hash: str
    keys: dict[str, str]
    context: dict[str, str]
    features: dict[str, str]
    batches: dict[str, ServedBatch | None]


class ServedGroupBys(msgspec.Struct):
    """All GroupBys that are served."""

    group_bys: list[ServedTarget]


class ServedJoins(msgspec.Struct):
    """All Joins that are served."""

    joins: list[ServedTarget]


class Status(msgspec.Struct):
    """The answer when all is well."""

    status: str


def served_target(fetcher: Served, target: Target) -> ServedTarget:
    """Describe a target, with the batches that the fetcher knows at present."""
    infos = fetcher.serving_infos()
    batches: dict[str, ServedBatch | None] = {}
    for part in target.parts:
        info = infos.get(part)
        batches[part] = None if info is None else ServedBatch(info.batch_end_ms, info.batch_landing_ms)
    return ServedTarget(
        name=target.name,
        kind=target.kind,
        definition_hash=target.definition_hash,
        keys=target.keys,
        context=target.context,
        features=target.features,
        batches=batches,
    )

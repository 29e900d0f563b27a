"""The stateful operators of a query, as the metadata in its checkpoint describes them.

The metadata names an operator, its batches and its states. It says nothing about what the states hold.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import OptionError
from millpond.masking import masked

_OWN_STATES = {"head", "segments"}
"""The states that a keyed operator keeps in Spark's state store."""


@dataclass(frozen=True)
class QueryOperator:
    """One stateful operator of a query.

    Attributes:
        id: its number in the query.
        name: Spark's name for it.
        partitions: how many partitions it has.
        first: the earliest batch after which its state can be read.
        last: the last batch that it committed.
        properties: what else Spark stores about it, such as `stateVariables`. Empty for many operators.
    """

    id: int
    name: str
    partitions: int
    first: int
    last: int
    properties: Mapping[str, Any]

    @property
    def is_keyed(self) -> bool:
        """Whether `keyed()` made it."""
        return {variable["stateName"] for variable in self.properties.get("stateVariables", ())} >= _OWN_STATES

    def version(self, asked: int | None, location: str) -> int:
        """Return the batch that is asked for, or the last one. An OptionError says that Spark does not keep it."""
        if asked is not None and not self.first <= asked <= self.last:
            raise OptionError(
                f"{masked(location)} has no version {asked}: Spark keeps those of the batches "
                f"{self.first} to {self.last} "
                "(spark.sql.streaming.minBatchesToRetain)."
            )
        return self.last if asked is None else asked


def query_operators(spark: SparkSession, location: str) -> list[QueryOperator]:
    """Return the stateful operators of the query with this checkpoint, in the order of their ids.

    Raises:
        OptionError: there is no checkpoint, or no stateful operator in it has committed a batch.
    """
    cause: Exception | None = None
    try:
        rows = spark.read.format("state-metadata").load(location).collect()
    except PySparkException as error:
        rows, cause = [], error
    if not rows:
        raise OptionError(
            f"{masked(location)} is not the checkpoint of a stateful query that has committed a batch"
            f"{'' if cause is None else f' ({cause})'}. Give the query's checkpointLocation."
        ) from cause
    # An operator has a row for each of its state stores.
    by_id = {
        row.operatorId: QueryOperator(
            row.operatorId,
            row.operatorName,
            row.numPartitions,
            row.minBatchId,
            row.maxBatchId,
            json.loads(row.operatorProperties) if row.operatorProperties else {},
        )
        for row in rows
    }
    return [by_id[operator] for operator in sorted(by_id)]


def described(operators: list[QueryOperator]) -> str:
    """Return the operators as text, for errors."""
    return ", ".join(f"{operator.id} ({operator.name})" for operator in operators) or "none"

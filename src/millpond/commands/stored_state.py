"""Stored state for `millpond state` and `millpond ui`: opened with Spark only where it must be."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.state.checkpoint.stored_state import StoredState


def stored_state(location: str, session: "Callable[[], SparkSession]", seal: bytes | None = None) -> "StoredState":
    """The stored state at a location, sealed with a key or not. A session is made only where Spark is needed."""
    from millpond.state.checkpoint.stored_state import FilesState, is_query

    if is_query(location):
        from millpond.spark.inspect.query_state import QueryState

        return QueryState(session(), location, seal)
    return FilesState(location, seal)

"""Opens stored state for `millpond state` and `millpond ui`, with Spark only if that is needed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.state.checkpoint.stored_state import StoredState


def stored_state(location: str, session: "Callable[[], SparkSession]", seal: bytes | None = None) -> "StoredState":
    """Open the stored state at a location; `seal` is the key of sealed state. Only a query's checkpoint needs Spark."""
    from millpond.state.checkpoint.stored_state import FilesState, is_query

    if is_query(location):
        from millpond.spark.inspect.query_state import QueryState

        return QueryState(session(), location, seal)
    return FilesState(location, seal)

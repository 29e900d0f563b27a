"""Collects what the tasks of a job return. An error of Millpond's in a task becomes one of its kind on the driver.

Place on the data path: on the driver, around the jobs of upload and backfill.
"""

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row

from millpond.errors import CorruptionError, MillpondError, UnavailableError

_RAISED_IN_TASKS: tuple[tuple[type[MillpondError], str], ...] = (
    (CorruptionError, "what was stored cannot be read"),
    (UnavailableError, "the store failed"),
)


def outcomes_of(job: DataFrame, doing: str) -> list[Row]:
    """Run a job and return its rows.

    Args:
        job: the job; it has few rows.
        doing: the beginning of errors, such as ``"GroupBy 'route': during the upload"``.

    Raises:
        CorruptionError: a task met stored bytes that cannot be read.
        UnavailableError: the store failed in a task.
    """
    try:
        outcomes: list[Row] = job.collect()
    except PythonException as error:
        for kind, what in _RAISED_IN_TASKS:
            # As a traceback names it, so that no other error that mentions it is taken for it.
            if f"{kind.__module__}.{kind.__qualname__}: " in str(error):
                raise kind(f"{doing} {what}: {error}") from error
        raise
    return outcomes

"""What PySpark's own operator gave, kept in a file.

Every run holds Millpond to the file.
`make soak` and `make matrix` hold PySpark's operator to it, too: what that does, only another PySpark changes.
"""

import datetime as dt
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "golden" / "pysparks_output.json"
OPERATORS = [pytest.param("pyspark", marks=pytest.mark.soak), "millpond"]
"""By whom a test's stream is worked off: for `pytest.mark.parametrize`."""


def given(name):
    """The batches that PySpark's operator gave in the test of this name, as `plain` has them."""
    return json.loads(FILE.read_text())[name]


def plain(batches):
    """Batches of rows as JSON has them: times in seconds, and the rows of a batch in an order of their own."""
    return [sorted(map(_plain, batch), key=repr) for batch in batches]


def _plain(value):
    if isinstance(value, dt.datetime):
        return value.timestamp()
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value

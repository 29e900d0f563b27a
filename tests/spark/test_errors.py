"""Spark's report of an error in user code: the user's frames, one line for Millpond's, type and message at the end."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from millpond.lookup import LookupTable, PythonLookup
from millpond.spark import StateConfig, keyed, lookup_join

pytestmark = pytest.mark.spark

MORE_THAN_PYSPARK = 400
"""How many characters Spark's report may be longer than of the same error under PySpark's own operator."""


def _check(amount: int) -> None:
    if amount == 3:
        raise ValueError(f"wrong amount {amount}")


class Checking(StatefulProcessor):  # type: ignore[misc]
    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            _check(row.amount)
        yield Row(user=key[0])

    def close(self) -> None:
        pass


def _shown(act: Callable[[], Any]) -> str:
    """What the driver is told of the worker, without Java's frames."""
    with pytest.raises(Exception, match=r"wrong amount 3|no row for 3") as raised:
        act()
    return str(raised.value).partition("\n\tat ")[0].strip()


def _checked(grouped: Any, **more: Any) -> DataFrame:
    output: DataFrame = grouped.transformWithState(Checking(), "user long", "Update", "None", **more)
    return output


@pytest.fixture(scope="module")
def amounts(spark: SparkSession) -> DataFrame:
    return spark.range(5).selectExpr("id % 2 AS user", "id AS amount")


@pytest.mark.parametrize("host", ["process", "inline"])
def test_an_error_in_a_processor_shows_the_users_frames_and_folds_millponds(amounts: DataFrame, host: str) -> None:
    shown = _shown(_checked(keyed(amounts, "user"), state=StateConfig(host=host)).collect)
    assert re.search(r"in … \d+ frames of millpond\n.*in handleInputRows\n.*in _check\n", shown, re.DOTALL)
    assert "src/millpond" not in shown
    assert shown.count("Traceback") == 1
    assert shown.endswith("ValueError: wrong amount 3")
    plain = _shown(_checked(amounts.groupBy("user")).collect)
    assert len(shown) < len(plain) + MORE_THAN_PYSPARK


def no_row(keys: Any) -> Any:
    raise LookupError("no row for 3")


@pytest.mark.parametrize("host", ["inline", "process"])
def test_an_error_in_a_lookup_function_shows_the_users_frames_and_folds_millponds(
    amounts: DataFrame, host: Literal["inline", "process"]
) -> None:
    keys, rows = pa.schema([("amount", pa.int64())]), pa.schema([("name", pa.string())])
    options = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100, "lookup.max-retries": 0}
    with LookupTable("names", PythonLookup(no_row, keys, rows), options) as table:
        shown = _shown(lookup_join(amounts, table, on="amount", host=host).collect)
    assert re.search(r"in … \d+ frames? of millpond\n.*in no_row\n", shown, re.DOTALL)
    assert "src/millpond" not in shown
    assert "LookupError: no row for 3" in shown.splitlines()[-1]

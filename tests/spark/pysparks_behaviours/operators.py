"""The operators that are held to one behaviour, by PySpark and by Millpond, and what is written once for both forms.

Each processor is written once.
What differs between the forms is in `Both`.
Each expectation stands in its test in full, so that a test says what Spark does.
Every run holds Millpond to it; `make soak` and `make matrix` hold PySpark's own operator to it, too.
"""

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import keyed

TOLD = "user string, told string"


class Operator:
    """One of the four: `by` PySpark or Millpond, over rows or DataFrames."""

    def __init__(self, by, form):
        self.by, self.form = by, form

    def of(self, df, processor, *keys, output=TOLD, mode="None", initial=None, output_mode="Update", event_time=""):
        grouped = df.groupBy(*keys) if self.by == "pyspark" else keyed(df, *keys)
        call = grouped.transformWithState if self.form == "rows" else grouped.transformWithStateInPandas
        processor.form = self.form
        return call(processor, output, output_mode, mode, initial, event_time)


FORMS = ("rows", "pandas")

ALL = [
    *(pytest.param(("pyspark", form), marks=pytest.mark.soak) for form in FORMS),
    *(("millpond", form) for form in FORMS),
]


def every_run_in(form):
    """Runs a test in one form, and in the other one with `make soak`.

    For what no form has code of its own for: times, timers, restarts. Each form has some of these tests, so that every
    run meets both; what the pandas form does with rows, nulls and output is tested below and in `forms/`.
    """
    params = [
        pytest.param((by, each), marks=() if (by, each) == ("millpond", form) else pytest.mark.soak)
        for by in ("pyspark", "millpond")
        for each in FORMS
    ]
    return pytest.mark.parametrize("operator", params, ids="-".join, indirect=True)


class Both(StatefulProcessor):
    """A processor of either form: `given` reads a key's rows as dictionaries, `told` makes output of fields."""

    form = "rows"

    def init(self, handle):
        self.handle = handle

    def given(self, rows):
        if self.form == "rows":
            return [row.asDict() for row in rows]
        return [record for frame in rows for record in frame.to_dict("records")]

    def told(self, **fields):
        return Row(**fields) if self.form == "rows" else pd.DataFrame({name: [value] for name, value in fields.items()})

    def close(self):
        pass


class Counting(Both):
    """Counts a user's rows: now, and in all."""

    def init(self, handle):
        super().init(handle)
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        count = len(self.given(rows))
        total = (self.count.get() or (0,))[0] + count
        self.count.update((total,))
        yield self.told(user=key[0], told=f"{count} of {total}")


def seconds(at):
    """A row's time, whatever form it came in, in seconds. The session's zone and the machine's are one."""
    return int(at.timestamp())


def rows_of(batches):
    return [sorted(tuple(row) for row in batch) for batch in batches]

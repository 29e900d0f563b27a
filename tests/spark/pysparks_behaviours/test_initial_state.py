"""When an initial state comes, and when the timers fire that it sets."""

import pytest

from tests.spark.pysparks_behaviours.operators import Counting, rows_of

pytestmark = pytest.mark.spark


class WithInitial(Counting):
    """Counts from where the initial state stood; with timers, each of its keys is due at once."""

    def __init__(self, *, timers):
        self.timers = timers

    def init(self, handle):
        super().init(handle)
        self.told_of = handle.getListState("told_of", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        amounts = [initialState.n] if self.form == "rows" else initialState["n"].tolist()
        for amount in amounts:
            self.count.update(((self.count.get() or (0,))[0] + amount,))
            self.told_of.appendValue((amount,))
        if self.timers:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.told(user=key[0], told=f"due, {len(list(self.told_of.get()))} amounts")


# Every run has each form and each kind of batch once: `test_initial_state.py` has the rows' initial state, too.
@pytest.mark.parametrize(
    ("operator", "timers"),
    [
        pytest.param(("pyspark", "rows"), False, marks=pytest.mark.soak),
        pytest.param(("pyspark", "rows"), True, marks=pytest.mark.soak),
        pytest.param(("pyspark", "pandas"), False, marks=pytest.mark.soak),
        pytest.param(("pyspark", "pandas"), True, marks=pytest.mark.soak),
        pytest.param(("millpond", "rows"), False, marks=pytest.mark.soak),
        (("millpond", "rows"), True),
        (("millpond", "pandas"), False),
        pytest.param(("millpond", "pandas"), True, marks=pytest.mark.soak),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else ("timers" if value else "no timers"),
    indirect=["operator"],
)
def test_an_initial_state_comes_once_and_its_timers_fire_in_the_first_batch(operator, stream, spark, timers):
    stream.add([("ann", 1, 1.0), ("bob", 2, 1.0)])
    stream.add([("ann", 3, 1.0), ("cat", 4, 1.0)])
    rows = [(100, "ann"), (100, "ann"), (300, "cat")]
    initial = spark.createDataFrame(rows, "n long, name string").groupBy("name")
    output = operator.of(
        stream.frame(), WithInitial(timers=timers), "user", mode="ProcessingTime" if timers else "None", initial=initial
    )
    wanted = {("ann", "1 of 202"), ("cat", "1 of 301")}
    batches = rows_of(stream.run_until(output, wanted) if timers else stream.run(output))
    due = [("ann", "due, 2 amounts"), ("cat", "due, 1 amounts")] if timers else []
    assert batches[0] == sorted([("ann", "1 of 201"), ("bob", "1 of 1"), *due])
    assert [row for batch in batches[1:] for row in batch] == sorted(wanted)

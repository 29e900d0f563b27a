"""When timers fire, and when state expires."""

import pytest

from tests.spark.pysparks_behaviours.operators import Both, every_run_in, rows_of

pytestmark = pytest.mark.spark


class Sessions(Both):
    """Closes a user's session 10 s after its last event, as event times say, whatever order they come in."""

    def init(self, handle):
        super().init(handle)
        self.last = handle.getValueState("last", "at long")
        self.events = handle.getValueState("events", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for row in self.given(rows):
            at = int(row["id"]) * 1000
            last = self.last.get()
            if last is not None and last[0] < at:
                self.handle.deleteTimer(last[0] + 10_000)
            if last is None or last[0] < at:
                self.last.update((at,))
            self.handle.registerTimer(at + 10_000)
            self.events.update(((self.events.get() or (0,))[0] + 1,))
        yield self.told(user=key[0], told=f"events {self.events.get()[0]}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        told = f"closed at {expiredTimerInfo.getExpiryTimeInMs() // 1000}"
        yield self.told(user=key[0], told=told)


@every_run_in("rows")
def test_a_session_gap_timer_of_a_row_out_of_order_fires_in_its_batch(operator, stream, conf):
    conf(spark__sql__shuffle__partitions="1" if operator.form == "rows" else "2")
    # The watermark follows 30 s behind: of the batches it is 0, 70 and 75.
    stream.add([("ann", 100, 100.0)])
    stream.add([("ann", 55, 72.0), ("bob", 105, 105.0)])
    output = operator.of(stream.frame().withWatermark("at", "30 seconds"), Sessions(), "user", mode="EventTime")
    batches = rows_of(stream.run(output))
    assert batches[0] == [("ann", "events 1")]
    # 55 + 10 is before the watermark, and the row is not late.
    assert batches[1] == [("ann", "closed at 65"), ("ann", "events 2"), ("bob", "events 1")]


class AroundTheWatermark(Both):
    """Sets timers at offsets from the watermark; its first expired timers set others, then one at its own time."""

    def init(self, handle):
        super().init(handle)
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key, rows, timerValues):
        watermark = timerValues.getCurrentWatermarkInMs()
        for row in self.given(rows):
            self.handle.registerTimer(watermark + int(row["id"]))
        yield self.told(user=key[0], told=f"{watermark}: set {sorted(self.handle.listTimers())}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        watermark, expiry = timerValues.getCurrentWatermarkInMs(), expiredTimerInfo.getExpiryTimeInMs()
        fired = (self.fired.get() or (0,))[0]
        self.fired.update((fired + 1,))
        if fired < 3:
            self.handle.registerTimer([watermark - 5, watermark, expiry][fired])
        # Two iterators at once.
        assert sorted(self.handle.listTimers()) == sorted(self.handle.listTimers())
        yield self.told(user=str(key[0]), told=f"{watermark}: fired {expiry}")


@every_run_in("pandas")
def test_a_timer_at_or_before_the_watermark_fires_at_once_and_one_of_a_handler_in_the_next_batch(
    operator, stream, conf
):
    conf(spark__sql__shuffle__partitions="1" if operator.form == "pandas" else "2")
    stream.add([("ann", 0, 20.0)])
    stream.add([("bob", -3, 45.0)])
    stream.add([("cat", 1, 61.0)])
    output = operator.of(
        stream.frame().withWatermark("at", "10 seconds"), AroundTheWatermark(), "user", mode="EventTime"
    )
    assert rows_of(stream.run(output)) == [
        [("ann", "0: fired 0"), ("ann", "0: set [0]")],
        [("ann", "10000: fired -5"), ("bob", "10000: fired 9997"), ("bob", "10000: set [9997]")],
        [("ann", "35000: fired 10000"), ("bob", "35000: fired 9995"), ("cat", "35000: set [35001]")],
        # ann set one again at its own time, which is lost; bob one at the watermark of the batch before.
        [("bob", "51000: fired 35000"), ("cat", "51000: fired 35001")],
    ]


class Rivals(Both):
    """Sets two timers of the past in its first batch, of which the first deletes the second."""

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(-20)
        self.handle.registerTimer(-10)
        yield self.told(user=key[0], told=f"rows, timers {sorted(self.handle.listTimers())}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        self.handle.deleteTimer(-10)
        yield self.told(user=key[0], told=f"fired {expiry}, timers {sorted(self.handle.listTimers())}")


@every_run_in("rows")
def test_a_timer_that_is_due_fires_though_an_earlier_handler_of_its_batch_deleted_it(operator, stream):
    stream.add([("ann", 0, 20.0), ("bob", 0, 20.0)])
    output = operator.of(stream.frame().withWatermark("at", "10 seconds"), Rivals(), "user", mode="EventTime")
    batches = rows_of(stream.run(output))
    assert batches[0] == [
        (user, told)
        for user in ("ann", "bob")
        for told in ("fired -10, timers []", "fired -20, timers [-20]", "rows, timers [-20, -10]")
    ]


class Minutes(Both):
    """State that lives a millisecond, state that lives an hour, and a timer that is due at once."""

    def init(self, handle):
        super().init(handle)
        self.states = [
            (name, ttl, getattr(handle, f"get{name}State")(f"{name}{ttl}", *schemas, ttl))
            for name, schemas in (("Value", ["n long"]), ("List", ["n long"]), ("Map", ["k string", "n long"]))
            for ttl in (1, 3_600_000)
        ]

    def handleInputRows(self, key, rows, timerValues):
        found = [f"{name}{ttl}" for name, ttl, state in self.states if state.exists()]
        for name, _, state in self.states:
            if name == "Value":
                state.update((1,))
            elif name == "List":
                state.put([(1,), (2,)])
            else:
                state.updateValue(("a",), (1,))
        if key[0] == "ann":
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        ids = sorted(int(row["id"]) for row in self.given(rows))
        yield self.told(user=key[0], told=f"{ids} {found}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield self.told(user=key[0], told=f"fired {late} ms late")


@every_run_in("pandas")
def test_state_expires_by_processing_time_and_a_timer_of_the_past_fires_at_once(operator, stream):
    stream.add([("ann", 1, 1.0), ("bob", 2, 1.0)])
    stream.add([("ann", 3, 1.0)])
    output = operator.of(stream.frame(), Minutes(), "user", mode="ProcessingTime")
    lives = ["Value3600000", "List3600000", "Map3600000"]
    wanted = {("ann", f"[3] {lives}")}
    seen = [tuple(row) for batch in stream.run_until(output, wanted) for row in batch]
    assert sorted(seen) == sorted(
        [("ann", "[1] []"), ("bob", "[2] []"), ("ann", "fired 1 ms late"), ("ann", "fired 1 ms late"), *wanted]
    )

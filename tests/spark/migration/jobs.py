"""The jobs that are migrated: the same processor for PySpark's operator and for Millpond's."""

from datetime import UTC, datetime

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

HOUR_MS = 3_600_000
TIMER_MS = 1_000_000
LEDGER = "user string, kind string, n long, ids array<long>, entries array<string>"
RECENT = "user string, n long"


def seconds(value):
    """A naive time of the session's zone, which is UTC in these tests, in seconds."""
    return int(value.replace(tzinfo=UTC).timestamp())


class Ledger(StatefulProcessor):
    """Every kind of state, and a timer at a key's last event. Rows, event time."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n long, last timestamp")
        self.ids = handle.getListState("ids", "id long")
        self.entries = handle.getMapState("entries", "name string", "n long")
        self.unused = handle.getValueState("unused", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        if initialState.total is not None:
            self.total.update((initialState.total["n"], initialState.total["last"]))
        if initialState.ids is not None:
            self.ids.put([(element["id"],) for element in initialState.ids])
        for entry in initialState.entries or []:
            self.entries.updateValue((entry["key"]["name"],), (entry["value"]["n"],))
        for expiry_ms in initialState.timers or []:
            self.handle.registerTimer(expiry_ms)

    def handleInputRows(self, key, rows, timerValues):
        rows = sorted(rows, key=lambda row: row.id)
        n = self.total.get()[0] if self.total.exists() else 0
        last = max(row.at for row in rows)
        self.total.update((n + len(rows), last.replace(tzinfo=None)))
        self.ids.appendList([(row.id,) for row in rows])
        for row in rows:
            self.entries.updateValue((f"entry-{row.id}",), (row.id,))
        self.handle.registerTimer(seconds(last) * 1000 + TIMER_MS)
        yield self.told(key[0], "rows")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.told(key[0], f"timer {expiredTimerInfo.getExpiryTimeInMs()}")

    def told(self, user, kind):
        ids = [element[0] for element in self.ids.get()]
        entries = sorted(f"{name[0]}={value[0]}" for name, value in self.entries.iterator())
        return Row(user=user, kind=kind, n=self.total.get()[0], ids=ids, entries=entries)

    def close(self):
        pass


class Recent(StatefulProcessor):
    """Every kind of state with a time to live, and a timer of processing time. Pandas."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n long", HOUR_MS)
        self.ids = handle.getListState("ids", "id long", HOUR_MS)
        self.entries = handle.getMapState("entries", "name string", "n long", HOUR_MS)

    def handleInitialState(self, key, initialState, timerValues):
        row = initialState.iloc[0]
        if row["total"] is not None:
            self.total.update((row["total"]["n"],))
        if row["ids"] is not None:
            self.ids.put([(element["id"],) for element in row["ids"]])
        for entry in row["entries"] if row["entries"] is not None else []:
            self.entries.updateValue((entry["key"]["name"],), (entry["value"]["n"],))
        for expiry_ms in row["timers"] if row["timers"] is not None else []:
            self.handle.registerTimer(int(expiry_ms))

    def handleInputRows(self, key, rows, timerValues):
        ids = [int(number) for frame in rows for number in frame["id"]]
        n = (self.total.get()[0] if self.total.exists() else 0) + len(ids)
        self.total.update((n,))
        self.ids.appendList([(number,) for number in ids])
        for number in ids:
            self.entries.updateValue((f"entry-{number}",), (number,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 24 * HOUR_MS)
        lasting = [len(list(self.ids.get())), len(list(self.entries.keys())), len(list(self.handle.listTimers()))]
        assert lasting[:2] == [n, n], lasting
        yield pd.DataFrame({"user": [key[0]], "n": [n]})

    def close(self):
        pass


def counted(key, frames, state):
    """For `applyInPandasWithState`: how many rows a key had, and when it was quiet for long enough."""
    if state.hasTimedOut:
        n = state.get[0]
        state.remove()
        yield pd.DataFrame({"user": [key[0]], "kind": ["timeout"], "n": [n]})
        return
    n, last = (state.get[0] if state.exists else 0), 0
    for frame in frames:
        n += len(frame)
        last = max(last, *(int(at.timestamp()) for at in frame["at"]))
    state.update((n,))
    state.setTimeoutTimestamp(last * 1000 + TIMER_MS)
    yield pd.DataFrame({"user": [key[0]], "kind": ["rows"], "n": [n]})


class Counted(StatefulProcessor):
    """What `counted` is as a `StatefulProcessor`."""

    def init(self, handle):
        self.handle = handle
        self.state = handle.getValueState("state", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        if initialState.state is not None:
            self.state.update((initialState.state["n"],))
        for expiry_ms in initialState.timers or []:
            self.handle.registerTimer(expiry_ms)

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        n = (self.state.get()[0] if self.state.exists() else 0) + len(rows)
        self.state.update((n,))
        # A timeout is of the last call, a timer stays until it is deleted.
        for expiry_ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(expiry_ms)
        last = max(seconds(row.at) for row in rows)
        self.handle.registerTimer(last * 1000 + TIMER_MS + 1)
        yield Row(user=key[0], kind="rows", n=n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.state.get()[0]
        self.state.clear()
        yield Row(user=key[0], kind="timeout", n=n)

    def close(self):
        pass


def at(second):
    """A moment, so many seconds after 1970."""
    return datetime.fromtimestamp(second, UTC)

"""Finds the sessions of a website's users: a session ends when half an hour has passed without an event.

Events may come in any order, as late as the watermark permits. So a user may have several open sessions, and an event
between two sessions merges them. A session is emitted once, when the watermark shows that no event can join it.

    spark-submit examples/sessions.py EVENTS_FOLDER SESSIONS_FOLDER CHECKPOINT_FOLDER
"""

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

EVENTS = "user string, page string, at timestamp"
SESSIONS = "user string, number long, start timestamp, end timestamp, events long, top_page string"
GAP_MS = 30 * 60 * 1000
DELAY = "10 minutes"


class Sessions(StatefulProcessor):
    """Keeps three states: the open sessions, their events by page, and the number of ended sessions."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getListState("open", "start_ms long, end_ms long, events long")
        self._pages = handle.getMapState("pages", "start_ms long, page string", "events long")
        self._ended = handle.getValueState("ended", "sessions long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            end_ms = self._add(int(row.at.timestamp() * 1000), row.page)
            # If the watermark is past the session's end already, the timer must be after the watermark.
            self._handle.registerTimer(max(end_ms + GAP_MS, timerValues.getCurrentWatermarkInMs() + 1))
        return iter([])

    def _add(self, at_ms: int, page: str) -> int:
        """Merge an event with the sessions that it touches into one session. Return the end of that session."""
        touched, others = [(at_ms, at_ms, 1)], []
        for session in self._open.get():
            near = session[0] - GAP_MS < at_ms < session[1] + GAP_MS
            (touched if near else others).append(session)
        start_ms, end_ms = min(each[0] for each in touched), max(each[1] for each in touched)
        self._open.put([*others, (start_ms, end_ms, sum(each[2] for each in touched))])
        for each in touched[1:]:
            if each[0] != start_ms:
                self._rename(each[0], start_ms)
        self._count(start_ms, page, 1)
        return end_ms

    def _rename(self, old_start_ms: int, start_ms: int) -> None:
        for (session_ms, page), (events,) in list(self._pages.iterator()):
            if session_ms == old_start_ms:
                self._pages.removeKey((session_ms, page))
                self._count(start_ms, page, events)

    def _count(self, start_ms: int, page: str, events: int) -> None:
        before = self._pages.getValue((start_ms, page))
        self._pages.updateValue((start_ms, page), ((before[0] if before else 0) + events,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        now_ms = expiredTimerInfo.getExpiryTimeInMs()
        sessions = list(self._open.get())
        left = [session for session in sessions if session[1] + GAP_MS > now_ms]
        if left:
            self._open.put(left)
        else:
            self._open.clear()
        for start_ms, end_ms, events in sorted(set(sessions) - set(left)):
            number = (self._ended.get() or (0,))[0] + 1
            self._ended.update((number,))
            yield Row(
                user=key[0],
                number=number,
                start=_time(start_ms),
                end=_time(end_ms),
                events=events,
                top_page=self._take_top_page(start_ms),
            )

    def _take_top_page(self, start_ms: int) -> str:
        counts = [(events, page) for (session_ms, page), (events,) in self._pages.iterator() if session_ms == start_ms]
        for _, page in counts:
            self._pages.removeKey((start_ms, page))
        return min(counts, key=lambda count: (-count[0], count[1]))[1]

    def close(self) -> None:
        pass


def _time(at_ms: int) -> Any:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)


def sessions(events: DataFrame) -> DataFrame:
    """Return the sessions of a stream of events."""
    from millpond.spark import keyed

    timed = events.withWatermark("at", DELAY)
    return keyed(timed, "user").transformWithState(Sessions(), SESSIONS, "Append", "EventTime")


def main(events_folder: str, sessions_folder: str, checkpoint_folder: str) -> None:
    """Process the events that are in the folder, then end."""
    from millpond.spark import session

    events = session("sessions").readStream.schema(EVENTS).parquet(events_folder)
    writer = sessions(events).writeStream.outputMode("append").trigger(availableNow=True)
    writer.option("checkpointLocation", checkpoint_folder).format("parquet").start(sessions_folder).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

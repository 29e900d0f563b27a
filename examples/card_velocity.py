"""Detects cards with too many payments in ten minutes, too large a sum in an hour, or two countries within a minute.

Such a card is blocked for a quarter of an hour, which is reported once. Payments during that time are refused. All
times are processing time. The states of a card have a time to live, so an unused card takes no memory after an hour.

    spark-submit examples/card_velocity.py PAYMENTS_FOLDER ALERTS_FOLDER CHECKPOINT_FOLDER
"""

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

PAYMENTS = "card string, country string, cents long"
ALERTS = "card string, alert string, payments long, cents long"
MINUTE_MS = 60_000
MOST_PAYMENTS, MOST_CENTS = 5, 100_000
BLOCKED_MS = 15 * MINUTE_MS


class CardVelocity(StatefulProcessor):
    """Keeps four states: recent payments, amounts, countries, and the block of a card, which a timer ends."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._recent = handle.getListState("recent", "cents long", ttlDurationMs=10 * MINUTE_MS)
        self._amounts = handle.getListState("amounts", "cents long", ttlDurationMs=60 * MINUTE_MS)
        self._countries = handle.getMapState("countries", "country string", "payments long", ttlDurationMs=MINUTE_MS)
        self._blocked = handle.getValueState("blocked", "refused long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if self._blocked.exists():
                self._blocked.update((self._blocked.get()[0] + 1,))
                continue
            self._recent.appendValue((row.cents,))
            self._amounts.appendValue((row.cents,))
            before = self._countries.getValue((row.country,))
            self._countries.updateValue((row.country,), ((before.payments if before else 0) + 1,))
            alert = self._alert()
            if alert is not None:
                self._blocked.update((0,))
                self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + BLOCKED_MS)
                payments, cents = len(list(self._recent.get())), sum(cents for (cents,) in self._amounts.get())
                yield Row(card=key[0], alert=alert, payments=payments, cents=cents)

    def _alert(self) -> str | None:
        if len(list(self._recent.get())) > MOST_PAYMENTS:
            return "many"
        if sum(cents for (cents,) in self._amounts.get()) > MOST_CENTS:
            return "much"
        return "two countries" if len(list(self._countries.keys())) > 1 else None

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        (refused,) = self._blocked.get()
        self._blocked.clear()
        for state in (self._recent, self._amounts, self._countries):
            state.clear()
        yield Row(card=key[0], alert="unblocked", payments=refused, cents=0)

    def close(self) -> None:
        pass


def alerts(payments: DataFrame) -> DataFrame:
    """Return the alerts for a stream of payments."""
    from millpond.spark import keyed

    return keyed(payments, "card").transformWithState(CardVelocity(), ALERTS, "Append", "ProcessingTime")


def main(payments_folder: str, alerts_folder: str, checkpoint_folder: str) -> None:
    """Watch a folder of payments until it is stopped."""
    from millpond.spark import session

    payments = session("card velocity").readStream.schema(PAYMENTS).parquet(payments_folder)
    writer = alerts(payments).writeStream.outputMode("append").format("parquet")
    writer.option("checkpointLocation", checkpoint_folder).start(alerts_folder).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

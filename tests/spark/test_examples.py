"""The two example jobs: what they tell is what a plain reckoning tells, and what PySpark's own operator tells."""

import random

import pytest
from pyspark.sql import Row

from examples import card_velocity, sessions
from millpond.spark import ProcessorHarness
from tests.spark.pysparks_output import OPERATORS
from tests.spark.streams import FileStream


class PageViews(FileStream):
    schema = "user string, page string, at timestamp"

    def add(self, rows):
        self.write([dict(zip(("user", "page", "at"), row, strict=True)) for row in rows])


def _sessions_of(views):
    """By hand: a user's events in order, cut where more than the gap lies between."""
    gap = sessions.GAP_MS / 1000
    told = set()
    for user in {user for user, _, _ in views}:
        open_views = []
        for view in [*sorted((at, page) for who, page, at in views if who == user), (float("inf"), "")]:
            if open_views and view[0] - open_views[-1][0] >= gap:
                pages = [page for _, page in open_views]
                top = min(set(pages), key=lambda page: (-pages.count(page), page))
                told.add((user, open_views[0][0], open_views[-1][0], len(open_views), top))
                open_views = []
            open_views.append(view)
    return told


@pytest.mark.spark
@pytest.mark.parametrize("operator", OPERATORS)
def test_sessions_are_those_of_a_plain_reckoning_and_of_pyspark(spark, tmp_path, operator):
    rng = random.Random(7)
    views, clock = [], 1_000_000
    for _ in range(5):
        clock += rng.choice([600, 3_000])
        # Out of order, but never later than the watermark lets them.
        views.append([(rng.choice("abc"), rng.choice("xyz"), clock + rng.randint(-290, 290)) for _ in range(8)])
    stream = PageViews(spark, tmp_path)
    for batch in [*views, [("end", "x", clock + 1_000_000)]]:
        stream.add(batch)
    events = stream.frame()
    if operator == "millpond":
        found = sessions.sessions(events)
    else:
        timed = events.withWatermark("at", sessions.DELAY)
        found = timed.groupBy("user").transformWithState(sessions.Sessions(), sessions.SESSIONS, "Append", "EventTime")
    rows = [row for batch in stream.run(found, mode="append") for row in batch]
    told = {(row.user, row.start.timestamp(), row.end.timestamp(), row.events, row.top_page) for row in rows}
    assert told == _sessions_of([view for batch in views for view in batch])
    assert len(told) == len(rows) == len({(row.user, row.number) for row in rows})


def _velocity():
    return ProcessorHarness(
        card_velocity.CardVelocity(),
        rows=card_velocity.PAYMENTS,
        key="card",
        output=card_velocity.ALERTS,
        time_mode="ProcessingTime",
    )


def test_a_card_that_pays_too_often_is_blocked_for_a_while():
    minute = card_velocity.MINUTE_MS
    with _velocity() as harness:
        for at in range(5):
            assert harness.process([("c", "DE", 100)], processing_ms=at * minute) == []
        (alert,) = harness.process([("c", "DE", 100), ("c", "DE", 100)], processing_ms=5 * minute)
        assert alert == Row(card="c", alert="many", payments=6, cents=600)
        assert harness.process([("c", "DE", 100)], processing_ms=6 * minute) == []
        assert harness.advance(processing_ms=20 * minute) == [Row(card="c", alert="unblocked", payments=2, cents=0)]
        assert harness.process([("c", "DE", 100)], processing_ms=21 * minute) == []


def test_what_is_remembered_of_a_card_goes_with_time():
    minute = card_velocity.MINUTE_MS
    with _velocity() as harness:
        for at in range(12):
            assert harness.process([("c", "DE", 100)], processing_ms=at * 3 * minute) == [], "never six in ten minutes"
        assert harness.process([("c", "FR", 100)], processing_ms=35 * minute) == [], "Germany was two minutes ago"
        (alert,) = harness.process([("c", "FR", 98_900)], processing_ms=36 * minute)
        assert (alert.alert, alert.cents) == ("much", 100_200)
        harness.advance(processing_ms=36 * minute + card_velocity.BLOCKED_MS)
        assert harness.state("amounts") == {}
        (alert,) = harness.process([("d", "DE", 1), ("d", "FR", 1)])
        assert alert.alert == "two countries"


@pytest.mark.spark
def test_alerts_on_spark_are_those_of_pyspark(spark):
    rng = random.Random(3)
    rows = [(f"card-{rng.randint(0, 20)}", "DE", rng.randint(1, 30_000)) for _ in range(120)]
    # One payment a row and key in the order of the amounts would be another order of the same alerts.
    payments = spark.createDataFrame(rows, card_velocity.PAYMENTS).coalesce(1)
    own = payments.groupBy("card").transformWithState(
        card_velocity.CardVelocity(), card_velocity.ALERTS, "Append", "ProcessingTime"
    )
    told = [sorted((row.card, row.alert) for row in found.collect()) for found in (card_velocity.alerts(payments), own)]
    assert told[0] == told[1]
    assert {alert for _, alert in told[0]} >= {"many", "much"}

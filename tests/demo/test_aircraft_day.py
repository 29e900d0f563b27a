"""An aircraft's day, told to PySpark's own in-memory tester: no JVM."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from millpond.demo.aircraft_day import OUTPUT, AircraftDay

MINUTE = 60_000
_ids = itertools.count()


def leg(minute: int, *, day: int = 1, delay: float | None = 0.0, landed: int | None = None, **more: object) -> Row:
    fields = {
        "flight_id": next(_ids),
        "time_ms": minute * MINUTE,
        "service_day": day,
        "dep_delay": delay,
        "landed_ms": None if landed is None else landed * MINUTE,
        "arr_delay": None,
        "air_minutes": None,
        "seats": 178,
        "visib": 10.0,
    }
    return Row(**(fields | more))


def legs(answers: list[Row]) -> list[int]:
    return [answer.legs_today for answer in answers]


def test_legs_are_counted_within_a_day_across_calls() -> None:
    tester = TwsTester(AircraftDay())
    assert legs(tester.test("N1", [leg(10), leg(300)])) == [1, 2]
    assert legs(tester.test("N1", [leg(600), leg(1500, day=2)])) == [3, 1]
    assert legs(tester.test("N2", [leg(20)])) == [1]


def test_rows_of_one_call_are_taken_in_the_order_of_their_events() -> None:
    tester = TwsTester(AircraftDay())
    first, second = leg(10, arr_delay=7.0), leg(300)
    answers = tester.test("N1", [second, first])
    assert [answer.flight_id for answer in answers] == [first.flight_id, second.flight_id]
    assert answers[1].arrived_late_minutes == 7.0


def test_ground_time_leaves_out_a_flight_back_as_long_as_the_one_there() -> None:
    tester = TwsTester(AircraftDay())
    tester.test("N1", [leg(10, landed=130, air_minutes=100.0, arr_delay=12.0)])
    (answer,) = tester.test("N1", [leg(300)])
    assert answer.ground_minutes == 300 - 130 - 100
    assert answer.arrived_late_minutes == 12.0


def test_the_first_leg_of_a_day_has_no_leg_before_it() -> None:
    tester = TwsTester(AircraftDay())
    tester.test("N1", [leg(10, landed=130, air_minutes=100.0, arr_delay=12.0)])
    (answer,) = tester.test("N1", [leg(1500, day=2)])
    assert (answer.legs_today, answer.arrived_late_minutes, answer.ground_minutes) == (1, None, None)


def test_a_cancelled_flight_is_answered_and_is_no_leg() -> None:
    tester = TwsTester(AircraftDay())
    assert legs(tester.test("N1", [leg(10), leg(100, delay=None), leg(300)])) == [1, 1, 2]


def test_a_late_record_counts_and_does_not_set_the_aircraft_back() -> None:
    tester = TwsTester(AircraftDay())
    tester.test("N1", [leg(300, landed=400, air_minutes=90.0, arr_delay=5.0)])
    (late,) = tester.test("N1", [leg(10, arr_delay=50.0)])
    assert (late.legs_today, late.arrived_late_minutes) == (2, None)
    (after,) = tester.test("N1", [leg(600)])
    assert (after.legs_today, after.arrived_late_minutes) == (3, 5.0)


def test_answers_have_the_declared_columns() -> None:
    (answer,) = TwsTester(AircraftDay()).test("N1", [leg(10)])
    assert answer.__fields__ == OUTPUT.fieldNames()


@settings(max_examples=30, deadline=None)
@given(minutes=st.lists(st.integers(0, 4 * 1440), min_size=1, max_size=12, unique=True), data=st.data())
def test_in_order_legs_are_what_counting_them_gives(minutes: list[int], data: st.DataObject) -> None:
    rows = [leg(minute, day=minute // 1440) for minute in sorted(minutes)]
    cut = data.draw(st.integers(0, len(rows)))
    tester = TwsTester(AircraftDay())
    answers = tester.test("N1", rows[:cut]) + tester.test("N1", rows[cut:])
    for index, answer in enumerate(answers):
        same_day = [row for row in rows[: index + 1] if row.service_day == rows[index].service_day]
        assert answer.legs_today == len(same_day)

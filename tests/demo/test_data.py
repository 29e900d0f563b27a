"""The clean flights say what the source says, in UTC, and null where it does not know."""

import datetime as dt
import zipfile
import zoneinfo
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millpond.demo import data
from millpond.demo.data import FLIGHTS, HOUR_MS, MINUTE_MS, FlightsData, clean_flights, load
from millpond.errors import DataError, MissingDependencyError


@pytest.fixture(scope="module")
def flights_data() -> FlightsData:
    return load()


def ms(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000)


def raw_flight(**changed: object) -> pa.Table:
    row = {
        "year": 2013,
        "month": 6,
        "day": 1,
        "tailnum": "N1",
        "origin": "JFK",
        "dest": "LAX",
        "carrier": "UA",
        "flight": 1,
        "minute": 0,
        "time_hour": dt.datetime(2013, 6, 1, 12, tzinfo=dt.UTC),
        "dep_delay": 0.0,
        "arr_time": 1100,
        "arr_delay": 0.0,
        "air_time": 330.0,
    } | changed
    schema = pa.schema(list(data._COLUMNS["flights"].items()))
    return pa.Table.from_pylist([row], schema=schema)


AIRPORTS = pa.table(
    {"faa": ["LAX", "BOS", "HNL"], "tzone": ["America/Los_Angeles", "America/New_York", "Pacific/Honolulu"]}
)


def landed(**changed: object) -> int | None:
    return clean_flights(raw_flight(**changed), AIRPORTS)["landed_ms"][0].as_py()


def test_every_flight_of_the_source_is_there_once(flights_data: FlightsData) -> None:
    flights = flights_data.flights
    assert flights.num_rows == 336_776
    assert flights.schema == FLIGHTS
    assert pc.count_distinct(flights["flight_id"]).as_py() == 336_776


def test_the_documented_counts_of_dirty_rows_hold(flights_data: FlightsData) -> None:
    flights, planes = flights_data.flights, flights_data.planes
    cancelled = pc.is_null(flights["dep_delay"])
    anonymous = pc.is_null(flights["tailnum"])
    assert pc.sum(cancelled).as_py() == 8_255
    assert pc.sum(anonymous).as_py() == 2_512
    assert pc.sum(pc.and_(cancelled, anonymous)).as_py() == 2_512
    known = pc.is_in(flights["tailnum"], value_set=planes["tailnum"].combine_chunks())
    assert pc.sum(pc.invert(pc.or_(known, anonymous))).as_py() == 50_094
    departed = pc.invert(cancelled)
    assert pc.sum(pc.and_(departed, pc.is_null(flights["landed_ms"]))).as_py() == 458


def test_a_cancelled_flight_has_its_event_at_its_schedule_and_no_delay() -> None:
    row = clean_flights(raw_flight(dep_delay=None, arr_time=None, minute=30), AIRPORTS).to_pylist()[0]
    assert row["time_ms"] == row["sched_ms"] == ms("2013-06-01T12:30Z")
    assert row["dep_delay"] is row["delayed_15"] is row["landed_ms"] is None


def test_a_departure_happens_when_the_aircraft_leaves_not_when_it_should() -> None:
    late = clean_flights(raw_flight(dep_delay=75.0), AIRPORTS).to_pylist()[0]
    early = clean_flights(raw_flight(dep_delay=-5.0), AIRPORTS).to_pylist()[0]
    assert late["time_ms"] - late["sched_ms"] == 75 * MINUTE_MS
    assert early["time_ms"] - early["sched_ms"] == -5 * MINUTE_MS


@pytest.mark.parametrize(("delay", "share"), [(15.0, 0.0), (16.0, 1.0), (-1.0, 0.0), (None, None)])
def test_delayed_means_more_than_fifteen_minutes(delay: float | None, share: float | None) -> None:
    assert clean_flights(raw_flight(dep_delay=delay), AIRPORTS)["delayed_15"][0].as_py() == share


def test_a_landing_is_in_the_time_of_the_place_it_happens_at() -> None:
    assert landed(arr_time=1100) == ms("2013-06-01T11:00-07:00")


def test_a_landing_after_midnight_is_on_the_next_day() -> None:
    assert landed(dest="BOS", dep_delay=14 * 60.0, arr_time=35) == ms("2013-06-02T00:35-04:00")


def test_midnight_may_be_written_as_2400() -> None:
    assert landed(dest="BOS", dep_delay=14 * 60.0, arr_time=2400) == ms("2013-06-02T00:00-04:00")


def test_a_landing_after_the_clocks_change_counts_the_missing_hour() -> None:
    moment = {"time_hour": dt.datetime(2013, 3, 10, 6, tzinfo=dt.UTC), "day": 10, "month": 3, "dest": "BOS"}
    assert landed(**moment, arr_time=305) == ms("2013-03-10T03:05-04:00")
    assert ms("2013-03-10T03:05-04:00") - ms("2013-03-10T06:00Z") == HOUR_MS + 5 * MINUTE_MS


def test_schedules_agree_with_new_yorks_clock_on_every_row(flights_data: FlightsData) -> None:
    clock = zoneinfo.ZoneInfo("America/New_York")
    flights = (
        flights_data.flights.select(["sched_ms", "service_day"]).group_by(["sched_ms", "service_day"]).aggregate([])
    )
    epoch = dt.date(1970, 1, 1)
    for sched_ms, day in zip(flights["sched_ms"].to_pylist(), flights["service_day"].to_pylist(), strict=True):
        assert (dt.datetime.fromtimestamp(sched_ms / 1000, clock).date() - epoch).days == day


def test_no_flight_lands_before_it_could_but_one_that_the_source_has_wrong(flights_data: FlightsData) -> None:
    flights = flights_data.flights
    flown = pc.subtract(flights["landed_ms"], flights["time_ms"])
    too_fast = pc.less(flown, pc.multiply(pc.cast(flights["air_minutes"], pa.int64()), MINUTE_MS))
    assert pc.sum(too_fast).as_py() == 1
    assert pc.max(flown).as_py() < 24 * HOUR_MS


def test_weather_has_one_row_per_origin_and_hour(flights_data: FlightsData) -> None:
    weather = flights_data.weather
    assert weather.group_by(["origin", "hour_ms"]).aggregate([]).num_rows == weather.num_rows == 26_115


def test_a_missing_package_gives_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "millpond\[demo\]"'):
        load()


def test_a_missing_column_names_the_file_and_the_column(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as packed:
        packed.writestr("flights.csv", "year,month\n2013,1\n")
    with pytest.raises(DataError, match=r"flights\.csv.*'day'"):
        load(tmp_path)


def test_a_malformed_value_names_the_file_and_the_value(tmp_path: Path) -> None:
    columns = list(data._COLUMNS["flights"])
    (tmp_path / "flights.csv").write_text(",".join(columns) + "\n" + ",".join(["soon"] * len(columns)) + "\n")
    with pytest.raises(DataError, match=r"flights\.csv.*soon"):
        load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"flights\.csv is missing"):
        load(tmp_path)


def test_a_destination_without_a_time_zone_is_named() -> None:
    with pytest.raises(DataError, match="'XXX' has no time zone"):
        clean_flights(raw_flight(dest="XXX"), AIRPORTS)

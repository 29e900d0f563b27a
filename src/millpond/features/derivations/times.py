"""Functions of dates and timestamps, in UTC. A timestamp may be given where a date is expected, and vice versa."""

from collections.abc import Callable, Sequence
from typing import Any

from millpond.features.derivations import calendar
from millpond.features.derivations.casts import cast
from millpond.features.derivations.functions import Function, argument, function, plain, written
from millpond.features.derivations.typed import MAY_BE_NONE, Failure, Faults, Typed, strict
from millpond.features.derivations.types import DATE, INT, LONG, STRING, TIMESTAMP
from millpond.features.types import DataType

_D = (("d", DATE),)
_T = (("t", TIMESTAMP),)
_OUTSIDE = Failure("outside the years 1 to 9999", valid=MAY_BE_NONE)
_BEYOND = {
    DATE: ("DATE'0000-12-31'", "DATE'+10000-01-01'"),
    TIMESTAMP: ("TIMESTAMP'0000-12-31 23:59:59.999999Z'", "TIMESTAMP'+10000-01-01 00:00:00Z'"),
}
_DAYS = 4_000_000
_MONTHS = 130_000
_SECONDS = 300_000_000_000


def _clamped(place: str, most: int) -> str:
    """Return SQL of a number that overflows nothing; a null becomes the largest number, so the result is null too."""
    return f"greatest(least({place}, {most}), -{most})"


def _in_range(sql: str, type_: DataType) -> str:
    """Return SQL of the date or time, or of null if it is outside the years 1 to 9999."""
    low, high = _BEYOND[type_]
    return f"nullif(nullif(greatest(least({sql}, {high}), {low}), {high}), {low})"


def _moved(names: str, unit: str, python: Callable[..., Any], most: int, says: str) -> Function:
    name = names.partition(" ")[0]
    sql = _in_range(f"{name}({{0}}, {_clamped('{1}', most)})", DATE)
    return plain(names, (("d", DATE), (unit, INT)), DATE, python, says, sql=sql, failure=_OUTSIDE)


def _from_number(name: str, python: Callable[[int], Any], most: int, says: str) -> Function:
    sql = _in_range(f"{name}({_clamped('{0}', most)})", TIMESTAMP)
    return plain(name, (("n", LONG),), TIMESTAMP, python, says, sql=sql, failure=_OUTSIDE)


_UNITS = {
    "YEAR": "YEAR",
    "YYYY": "YEAR",
    "YY": "YEAR",
    "QUARTER": "QUARTER",
    "MONTH": "MONTH",
    "MON": "MONTH",
    "MM": "MONTH",
    "WEEK": "WEEK",
}
_SMALL_UNITS = {
    "DAY": "DAY",
    "DD": "DAY",
    "HOUR": "HOUR",
    "MINUTE": "MINUTE",
    "SECOND": "SECOND",
    "MILLISECOND": "MILLISECOND",
}


def _unit(value: Typed, units: dict[str, str]) -> str:
    text = written(value, STRING, "unit")
    if text.upper() not in units:
        raise Faults([f"argument unit must be one of {', '.join(sorted(units))}, got {text!r}"])
    return units[text.upper()]


def _date_trunc(args: Sequence[Typed]) -> Typed:
    unit = _unit(args[0], _UNITS | _SMALL_UNITS)
    time = argument(args[1], TIMESTAMP, "t")
    return strict(TIMESTAMP, f"date_trunc('{unit}', {{0}})", [time], calendar.truncate_timestamp, extra=[unit])


def _trunc(args: Sequence[Typed]) -> Typed:
    unit = _unit(args[1], _UNITS)
    return strict(DATE, f"trunc({{0}}, '{unit}')", [argument(args[0], DATE, "d")], calendar.truncate_date, extra=[unit])


FUNCTIONS: tuple[Function, ...] = (
    plain("year", _D, INT, "{0}.year", "The year."),
    plain("quarter", _D, INT, "({0}.month + 2) // 3", "The quarter, 1 to 4."),
    plain("month", _D, INT, "{0}.month", "The month, 1 to 12."),
    plain("day dayofmonth", _D, INT, "{0}.day", "The day of the month."),
    plain("dayofweek", _D, INT, "{0}.isoweekday() % 7 + 1", "The day of the week, 1 is Sunday."),
    plain("weekday", _D, INT, "{0}.weekday()", "The day of the week, 0 is Monday."),
    plain("dayofyear", _D, INT, "{0}.timetuple().tm_yday", "The day of the year."),
    plain("weekofyear", _D, INT, calendar.week_of_year, "The ISO week."),
    plain("hour", _T, INT, "{0}.hour", "The hour, in UTC."),
    plain("minute", _T, INT, "{0}.minute", "The minute."),
    plain("second", _T, INT, "{0}.second", "The second, without its fraction."),
    _moved("date_add dateadd", "days", calendar.add_days, _DAYS, "The date `days` later."),
    _moved("date_sub", "days", calendar.subtract_days, _DAYS, "The date `days` earlier."),
    _moved(
        "add_months",
        "months",
        calendar.add_months,
        _MONTHS,
        "The date `months` later; the last day of the month where that is shorter.",
    ),
    plain(
        "date_diff datediff", (("end", DATE), ("start", DATE)), INT, "({0} - {1}).days", "The days from start to end."
    ),
    plain("last_day", _D, DATE, calendar.last_day, "The last day of the month."),
    function("trunc", "d, unit", "The first day of the year, quarter, month or week; `unit` is a constant.", _trunc, 2),
    function(
        "date_trunc",
        "unit, t",
        "The first moment of the unit, from year to millisecond; `unit` is a constant.",
        _date_trunc,
        2,
    ),
    function("to_date", "x", "x as a date: the same as CAST(x AS DATE).", lambda args: cast(args[0], DATE), 1),
    function(
        "to_timestamp",
        "x",
        "x as a timestamp: the same as CAST(x AS TIMESTAMP).",
        lambda args: cast(args[0], TIMESTAMP),
        1,
    ),
    plain("unix_date", _D, INT, f"{{0}}.toordinal() - {calendar.EPOCH_DAY}", "Days since 1970-01-01."),
    plain("unix_seconds", _T, LONG, calendar.unix_seconds, "Whole seconds since 1970, rounded down."),
    plain("unix_millis", _T, LONG, calendar.unix_millis, "Whole milliseconds since 1970, rounded down."),
    plain("unix_micros", _T, LONG, calendar.unix_micros, "Microseconds since 1970."),
    plain(
        "date_from_unix_date",
        (("days", INT),),
        DATE,
        calendar.from_unix_date,
        "The date `days` after 1970-01-01.",
        sql=_in_range(f"date_from_unix_date({_clamped('{0}', _DAYS)})", DATE),
        failure=_OUTSIDE,
    ),
    _from_number("timestamp_seconds", calendar.from_seconds, _SECONDS, "The time n seconds after 1970."),
    _from_number("timestamp_millis", calendar.from_millis, _SECONDS * 1000, "The time n milliseconds after 1970."),
    _from_number("timestamp_micros", calendar.from_micros, _SECONDS * 1_000_000, "The time n microseconds after 1970."),
)

"""The options of a lookup table, by the seed's names, parsed once and checked whole.

The invariant: what was written is what happens. An unknown name, a value of the wrong form, and an
option that the chosen mode would ignore are all refused, all in one error, before the first row.
Names and the words of choices are read in any case; a duration is a number with a unit (`10 min`),
a number of milliseconds, or a `timedelta`.

Source: FLIP-221, "Table Options for Lookup Cache"; the defaults are Flink's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from millpond.errors import OptionError
from millpond.lookup.trigger import ScheduleMode

Mode: TypeAlias = Literal["NONE", "PARTIAL", "FULL"]

_UNITS = {
    1: ("", "ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNITS_MS = {word: unit_ms for unit_ms, words in _UNITS.items() for word in words}


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """How one lookup table is cached and retried.

    >>> LookupOptions.parse({"lookup.cache": "partial", "lookup.partial-cache.max-rows": "10000"}).max_rows
    10000
    >>> LookupOptions.parse({"lookup.cache": "partial", "lookup.partial-cache.max-row": 1})
    Traceback (most recent call last):
    millpond.errors.OptionError: lookup options:
    - 'lookup.partial-cache.max-row' is unknown; did you mean 'lookup.partial-cache.max-rows'?
    - lookup.cache = PARTIAL needs a limit; give one of lookup.partial-cache.max-rows, \
lookup.partial-cache.expire-after-access, lookup.partial-cache.expire-after-write
    """

    mode: Mode = "NONE"
    max_retries: int = 3
    max_rows: int | None = None
    expire_after_access_ms: int | None = None
    expire_after_write_ms: int | None = None
    cache_missing_key: bool = True
    reload_interval_ms: int | None = None
    schedule_mode: ScheduleMode = "FIXED_DELAY"

    @classmethod
    def parse(cls, options: "Mapping[str, Any] | LookupOptions") -> "LookupOptions":
        """Options from their names and values; `OptionError` lists everything that is wrong."""
        if isinstance(options, LookupOptions):
            return options
        problems: list[str] = []
        given = _canonical(options, problems)
        values = _values(given, problems)
        mode: Mode = values.get("mode", "NONE")
        for name in given:
            needs = next((known for known in ("partial", "full") if name.startswith(f"lookup.{known}-cache.")), None)
            if needs is not None and needs.upper() != mode:
                problems.append(
                    f"{name!r} has no effect with lookup.cache = {mode}; remove it or choose {needs.upper()}"
                )
        limits = [
            f"lookup.partial-cache.{limit}" for limit in ("max-rows", "expire-after-access", "expire-after-write")
        ]
        if mode == "PARTIAL" and not any(limit in given for limit in limits):
            problems.append(f"lookup.cache = PARTIAL needs a limit; give one of {', '.join(limits)}")
        if "lookup.full-cache.periodic-reload.schedule-mode" in given and values.get("reload_interval_ms") is None:
            problems.append("a schedule-mode needs 'lookup.full-cache.periodic-reload.interval'")
        if problems:
            raise OptionError("\n- ".join(["lookup options:", *problems]))
        values.pop("strategy", None)
        return cls(**values)


def _canonical(options: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in options.items():
        known = name.strip().lower()
        if known not in _OPTIONS:
            near = get_close_matches(known, _OPTIONS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_OPTIONS)}"
            problems.append(f"{name!r} is unknown; {hint}")
        elif known in given:
            problems.append(f"{known!r} is given twice, in different cases; keep one")
        else:
            given[known] = value
    return given


def _values(given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in given.items():
        field, parse = _OPTIONS[name]
        try:
            values[field] = parse(text)
        except ValueError as error:
            problems.append(f"{name!r}: expected {error}, got {text!r}")
    return values


def _choice(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        word = str(value).strip().upper().replace("-", "_")
        if word not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return word

    return parse


def _count(value: Any) -> int:
    text = str(value).strip().replace("_", "")
    if isinstance(value, bool) or not text.isdecimal():
        raise ValueError("a whole number of 0 or more")
    return int(text)


def _flag(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _duration(value: Any) -> int:
    if isinstance(value, timedelta):
        duration_ms = value // timedelta(milliseconds=1)
    else:
        parts = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower())
        if parts is None or parts[2] not in _UNITS_MS:
            raise ValueError("a duration such as '10 min', in ms, s, min, h or d")
        duration_ms = int(parts[1]) * _UNITS_MS[parts[2]]
    if duration_ms < 1:
        raise ValueError("a duration of at least 1 ms")
    return duration_ms


_OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "lookup.cache": ("mode", _choice("NONE", "PARTIAL", "FULL")),
    "lookup.max-retries": ("max_retries", _count),
    "lookup.partial-cache.max-rows": ("max_rows", _count),
    "lookup.partial-cache.expire-after-access": ("expire_after_access_ms", _duration),
    "lookup.partial-cache.expire-after-write": ("expire_after_write_ms", _duration),
    "lookup.partial-cache.cache-missing-key": ("cache_missing_key", _flag),
    "lookup.full-cache.reload-strategy": ("strategy", _choice("PERIODIC")),
    "lookup.full-cache.periodic-reload.interval": ("reload_interval_ms", _duration),
    "lookup.full-cache.periodic-reload.schedule-mode": ("schedule_mode", _choice("FIXED_DELAY", "FIXED_RATE")),
}

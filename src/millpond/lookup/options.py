"""The options of a lookup table, with the names of FLIP-221, parsed and checked once.

The invariant: every given option has an effect. An unknown name, a malformed value, and an option that
the chosen mode would ignore are errors. One error lists them all, before the first row.
Names and choices may be written in any case. A duration is a number with a unit (`10 min`),
a number of milliseconds, or a `timedelta`.

Sources: FLIP-221, "Table Options for Lookup Cache"; the defaults are Flink's. The options of
asynchronous lookups are Flink's execution options.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from typing import Any, Literal, TypeAlias

from millpond.lookup.reload.timed import parse_iso_time
from millpond.lookup.reload.trigger import ScheduleMode
from millpond.options import Known, choice, count, duration_ms, flag, named, parsed, refuse_problems, size_bytes

Mode: TypeAlias = Literal["NONE", "PARTIAL", "FULL"]
PartialCachePolicy: TypeAlias = Literal["LRU", "W_TINYLFU"]
ReloadStrategy: TypeAlias = Literal["PERIODIC", "TIMED"]

_PARTIAL = "lookup.partial-cache."
_LIMITS = tuple(_PARTIAL + limit for limit in ("max-rows", "max-bytes", "expire-after-access", "expire-after-write"))
_EXPIRE = _PARTIAL + "expire-after-write"
_REFRESH = _PARTIAL + "refresh-after-write"
_STALE = _PARTIAL + "stale-if-error"
_JITTER = _PARTIAL + "expiry-jitter"
_RELOAD = "lookup.full-cache."
_INTERVAL = _RELOAD + "periodic-reload.interval"
_ISO_TIME = _RELOAD + "timed-reload.iso-time"
_NEEDS: dict[str, tuple[str, str]] = {
    _PARTIAL: ("lookup.cache", "PARTIAL"),
    _RELOAD: ("lookup.cache", "FULL"),
    _RELOAD + "periodic-reload.": (_RELOAD + "reload-strategy", "PERIODIC"),
    _RELOAD + "timed-reload.": (_RELOAD + "reload-strategy", "TIMED"),
}
"""For each prefix of option names: the option, and its value, without which they have no effect."""


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
lookup.partial-cache.max-bytes, lookup.partial-cache.expire-after-access, lookup.partial-cache.expire-after-write
    """

    mode: Mode = "NONE"
    max_retries: int = 3
    max_rows: int | None = None
    max_bytes: int | None = None
    policy: PartialCachePolicy = "LRU"
    expire_after_access_ms: int | None = None
    expire_after_write_ms: int | None = None
    cache_missing_key: bool = True
    refresh_after_write_ms: int | None = None
    stale_if_error_ms: int = 0
    expiry_jitter_ms: int = 0
    invalidation: bool = False
    hit_rate_curve: bool = False
    reload_strategy: ReloadStrategy = "PERIODIC"
    reload_interval_ms: int | None = None
    schedule_mode: ScheduleMode = "FIXED_DELAY"
    reload_time: time | None = None
    reload_interval_days: int = 1
    async_capacity: int = 100
    async_timeout_ms: int = 180_000

    @classmethod
    def parse(cls, options: "Mapping[str, Any] | LookupOptions") -> "LookupOptions":
        """Parse options from their names and values. One `OptionError` lists every mistake."""
        if isinstance(options, LookupOptions):
            return options
        problems: list[str] = []
        given = named(options, _OPTIONS, problems)
        values = parsed(given, _OPTIONS, problems)
        chosen = {
            name: values.get(_OPTIONS[name][0], None if name in given else default)
            for name, default in (("lookup.cache", "NONE"), (_RELOAD + "reload-strategy", "PERIODIC"))
        }
        for name in given:
            problems.extend(_without_effect(name, chosen))
        if chosen["lookup.cache"] == "PARTIAL" and not any(limit in given for limit in _LIMITS):
            problems.append(f"lookup.cache = PARTIAL needs a limit; give one of {', '.join(_LIMITS)}")
        problems.extend(_wrong_ages(given, values))
        if values.get("schedule_mode") is not None and _INTERVAL not in given:
            problems.append(f"a schedule-mode needs {_INTERVAL!r}")
        if chosen["lookup.cache"] == "FULL" and values.get("reload_strategy") == "TIMED" and _ISO_TIME not in given:
            problems.append(f"{_RELOAD}reload-strategy = TIMED needs {_ISO_TIME!r}")
        refuse_problems("lookup options", problems)
        return cls(**values)


def _without_effect(name: str, chosen: Mapping[str, str | None]) -> list[str]:
    """Return the problem if another option, itself valid, leaves this one without effect; else an empty list."""
    for beginning, (needed, word) in _NEEDS.items():
        if name.startswith(beginning) and chosen[needed] not in (word, None):
            return [f"{name!r} has no effect with {needed} = {chosen[needed]}; remove it or choose {word}"]
    return []


def _wrong_ages(given: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return the problems of the ages at which keys are refreshed, expire, or are no longer kept."""
    problems = [f"{name!r} needs {_EXPIRE!r}" for name in (_STALE, _JITTER) if name in given and _EXPIRE not in given]
    expire_ms, jitter_ms = values.get("expire_after_write_ms"), values.get("expiry_jitter_ms") or 0
    refresh_ms = values.get("refresh_after_write_ms")
    if expire_ms is not None and jitter_ms >= expire_ms:
        problems.append(f"{_JITTER} = {jitter_ms} ms: expected less than {_EXPIRE}, {expire_ms} ms")
    elif expire_ms is not None and refresh_ms is not None and refresh_ms >= expire_ms - jitter_ms:
        problems.append(
            f"{_REFRESH} = {refresh_ms} ms: expected less than {_EXPIRE} less {_JITTER}, {expire_ms - jitter_ms} ms; "
            "what has expired is not loaded ahead"
        )
    return problems


def _at_least_one(value: Any) -> int:
    number = count(value)
    if number < 1:
        raise ValueError("a whole number of 1 or more")
    return number


def _iso_time(value: Any) -> time:
    return value if isinstance(value, time) else parse_iso_time(str(value))


_OPTIONS: Known = {
    "lookup.cache": ("mode", choice("NONE", "PARTIAL", "FULL")),
    "lookup.max-retries": ("max_retries", count),
    _PARTIAL + "max-rows": ("max_rows", count),
    _PARTIAL + "max-bytes": ("max_bytes", size_bytes()),
    _PARTIAL + "policy": ("policy", choice("LRU", "W_TINYLFU")),
    _PARTIAL + "expire-after-access": ("expire_after_access_ms", duration_ms),
    _PARTIAL + "expire-after-write": ("expire_after_write_ms", duration_ms),
    _PARTIAL + "cache-missing-key": ("cache_missing_key", flag),
    _REFRESH: ("refresh_after_write_ms", duration_ms),
    _STALE: ("stale_if_error_ms", duration_ms),
    _JITTER: ("expiry_jitter_ms", duration_ms),
    _PARTIAL + "invalidation": ("invalidation", flag),
    _PARTIAL + "hit-rate-curve": ("hit_rate_curve", flag),
    _RELOAD + "reload-strategy": ("reload_strategy", choice("PERIODIC", "TIMED")),
    _INTERVAL: ("reload_interval_ms", duration_ms),
    _RELOAD + "periodic-reload.schedule-mode": ("schedule_mode", choice("FIXED_DELAY", "FIXED_RATE")),
    _ISO_TIME: ("reload_time", _iso_time),
    _RELOAD + "timed-reload.interval-in-days": ("reload_interval_days", _at_least_one),
    "table.exec.async-lookup.buffer-capacity": ("async_capacity", _at_least_one),
    "table.exec.async-lookup.timeout": ("async_timeout_ms", duration_ms),
}

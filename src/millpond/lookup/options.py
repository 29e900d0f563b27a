"""The options of a lookup table, by the seed's names, parsed once and checked whole.

The invariant: what was written is what happens. An unknown name, a value of the wrong form, and an
option that the chosen mode would ignore are all refused, all in one error, before the first row.
Names and the words of choices are read in any case; a duration is a number with a unit (`10 min`),
a number of milliseconds, or a `timedelta`.

Source: FLIP-221, "Table Options for Lookup Cache"; the defaults are Flink's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from millpond.lookup.trigger import ScheduleMode
from millpond.options import Known, choice, count, duration_ms, flag, named, parsed, refuse_problems

Mode: TypeAlias = Literal["NONE", "PARTIAL", "FULL"]


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
        given = named(options, _OPTIONS, problems)
        values = parsed(given, _OPTIONS, problems)
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
        refuse_problems("lookup options", problems)
        values.pop("strategy", None)
        return cls(**values)


_OPTIONS: Known = {
    "lookup.cache": ("mode", choice("NONE", "PARTIAL", "FULL")),
    "lookup.max-retries": ("max_retries", count),
    "lookup.partial-cache.max-rows": ("max_rows", count),
    "lookup.partial-cache.expire-after-access": ("expire_after_access_ms", duration_ms),
    "lookup.partial-cache.expire-after-write": ("expire_after_write_ms", duration_ms),
    "lookup.partial-cache.cache-missing-key": ("cache_missing_key", flag),
    "lookup.full-cache.reload-strategy": ("strategy", choice("PERIODIC")),
    "lookup.full-cache.periodic-reload.interval": ("reload_interval_ms", duration_ms),
    "lookup.full-cache.periodic-reload.schedule-mode": ("schedule_mode", choice("FIXED_DELAY", "FIXED_RATE")),
}

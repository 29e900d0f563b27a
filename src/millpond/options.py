"""Parse options from strings: names in any letter case, values with units, and one error for all problems.

Parsing goes on after a problem. Each step adds the problems that it finds to a list, and `refuse_problems`
raises them together, so that a user can fix all options at once.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from millpond.errors import OptionError
from millpond.suggestions import hint

Known: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""The known options: a lower-case name, the field it fills, and a parser whose ValueError says what it expects."""

_UNITS = {
    1: ("", "ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNITS_MS = {word: unit_ms for unit_ms, words in _UNITS.items() for word in words}
_SIZES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def named(options: Mapping[str, Any], known: Known, problems: list[str]) -> dict[str, Any]:
    """Return the given values by their known names. A name that is unknown or given twice becomes a problem."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        lower = name.strip().lower()
        if lower not in known:
            problems.append(f"{name!r} is unknown; {hint(lower, known)}")
        elif lower in given:
            problems.append(f"{lower!r} is given twice, in different cases; keep one")
        else:
            given[lower] = value
    return given


def parsed(given: Mapping[str, Any], known: Known, problems: list[str]) -> dict[str, Any]:
    """Return the parsed values by field. A value that cannot be parsed becomes a problem."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        field, parse = known[name]
        try:
            values[field] = parse(text)
        except ValueError as error:
            problems.append(f"{name!r}: expected {error}, got {text!r}")
    return values


def refuse_problems(what: str, problems: Sequence[str]) -> None:
    """Raise one OptionError with all problems, if there are any."""
    if problems:
        raise OptionError("\n- ".join([f"{what}:", *problems]))


def choice(*words: str) -> Callable[[Any], str]:
    """Return a parser for one of these words, which are in upper case with underscores."""

    def parse(value: Any) -> str:
        word = str(value).strip().upper().replace("-", "_")
        if word not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return word

    return parse


def count(value: Any) -> int:
    """Parse a whole number of 0 or more."""
    text = str(value).strip().replace("_", "")
    if isinstance(value, bool) or not text.isdecimal():
        raise ValueError("a whole number of 0 or more")
    return int(text)


def place(value: Any) -> str:
    """Parse a path or URI, which must not be empty."""
    text = str(value).strip()
    if not text:
        raise ValueError("a path or URI")
    return text


def flag(value: Any) -> bool:
    """Parse `true` or `false`."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def duration_ms(value: Any) -> int:
    """Return a duration in ms from a number with a unit, a number of ms, or a timedelta.

    >>> duration_ms("10 min")
    600000
    """
    if isinstance(value, timedelta):
        in_ms = value // timedelta(milliseconds=1)
    else:
        parts = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower())
        if parts is None or parts[2] not in _UNITS_MS:
            raise ValueError("a duration such as '10 min', in ms, s, min, h or d")
        in_ms = int(parts[1]) * _UNITS_MS[parts[2]]
    if in_ms < 1:
        raise ValueError("a duration of at least 1 ms")
    return in_ms


def size_bytes(least: int = 0, most: int = 1 << 50) -> Callable[[Any], int]:
    """Return a parser for sizes from `least` to `most` bytes: a number with a unit (1 kb = 1024 b), or of bytes.

    >>> size_bytes()("64mb")
    67108864
    """

    def parse(value: Any) -> int:
        parts = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower().replace("_", ""))
        if isinstance(value, bool) or parts is None or parts[2] not in _SIZES:
            raise ValueError("a size such as '64mb', in b, kb, mb, gb or tb")
        size = int(parts[1]) * _SIZES[parts[2]]
        if not least <= size <= most:
            raise ValueError(f"a size from {least:,} to {most:,} bytes")
        return size

    return parse

"""The options of the caches in front of state: which cache, and its sizes.

`state.backend.cache` names the cache. A limit of FLIP-325's cache, given alone, chooses that cache, as in FLIP-325. A
limit of 0 means no limit. An option that the chosen cache would ignore is an error.
"""

from collections.abc import Mapping
from typing import Any

from millpond.errors import OptionError
from millpond.options import Known, count, flag, parsed, size_bytes
from millpond.state.wrappers.choice import CacheChoice, CacheHooks, Lru, TwoLayer, WriteBack

_CACHE = "state.backend.cache"
_MAX_ENTRIES, _MAX_BYTES = f"{_CACHE}.max-entries-num", f"{_CACHE}.max-bytes"
_HIT_RATE_CURVE = f"{_CACHE}.hit-rate-curve"
_MAX_SIZE, _MAX_SIZE_L2 = f"{_CACHE}.max-size", f"{_CACHE}.max-size-l2"

_SIZES = {
    "none": (),
    "lru": (_MAX_ENTRIES, _MAX_BYTES),
    "write-back": (_MAX_SIZE,),
    "two-layer": (_MAX_SIZE, _MAX_SIZE_L2),
}
"""The names of the caches, and the options that size each."""

_TAKES = {name: (*sizes, _HIT_RATE_CURVE) if name == "lru" else sizes for name, sizes in _SIZES.items()}
"""The options that each cache takes."""


def _name(value: Any) -> str:
    word = str(value).strip().lower().replace("_", "-")
    if word not in _SIZES:
        raise ValueError(f"one of {', '.join(_SIZES)}")
    return word


def _size(value: Any) -> int:
    size = count(value)
    if size < 1:
        raise ValueError("a whole number of 1 or more")
    return size


CACHE_OPTIONS: Known = {
    _CACHE: ("cache", _name),
    _MAX_ENTRIES: ("max_entries", count),
    _MAX_BYTES: ("max_bytes", size_bytes()),
    _HIT_RATE_CURVE: ("hit_rate_curve", flag),
    _MAX_SIZE: ("max_size", _size),
    _MAX_SIZE_L2: ("max_size_l2", _size),
}


def chosen_cache(given: Mapping[str, Any], hooks: CacheHooks | None, problems: list[str]) -> CacheChoice | None:
    """Return the cache that the given options choose. What is wrong with them is added to `problems`."""
    ours = {name: value for name, value in given.items() if name in CACHE_OPTIONS}
    wrong = len(problems)
    values = parsed(ours, CACHE_OPTIONS, problems)
    if len(problems) > wrong:
        return None
    for field in ("max_entries", "max_bytes"):
        if values.get(field) == 0:
            del values[field]
    name = values.pop("cache", None) or ("lru" if {"max_entries", "max_bytes"} & values.keys() else "none")
    problems.extend(
        f"{option!r} has no effect with {_CACHE} = {name}; remove it or choose {_with(option)}"
        for option in ours
        if option != _CACHE and option not in _TAKES[name] and CACHE_OPTIONS[option][0] in values
    )
    missing = [option for option in _SIZES[name] if CACHE_OPTIONS[option][0] not in values]
    if missing and (name != "lru" or not values):
        problems.append(f"{_CACHE} = {name} needs {' or '.join(missing) if name == 'lru' else ' and '.join(missing)}")
    if hooks is not None and name in {"none", "lru"}:
        problems.append(f"hooks have no effect with {_CACHE} = {name}; remove them or choose {_with(_MAX_SIZE)}")
    return _choice(name, values, hooks, problems) if len(problems) == wrong else None


def _choice(name: str, values: Mapping[str, Any], hooks: CacheHooks | None, problems: list[str]) -> CacheChoice | None:
    try:
        match name:
            case "lru":
                return Lru(**values)
            case "write-back":
                return WriteBack(**values, hooks=hooks or CacheHooks())
            case "two-layer":
                return TwoLayer(**values, hooks=hooks or CacheHooks())
    except OptionError as error:
        problems.append(str(error))
    return None


def _with(option: str) -> str:
    """Return the caches that take an option, as text."""
    return " or ".join(f"{_CACHE} = {name}" for name, options in _TAKES.items() if option in options)

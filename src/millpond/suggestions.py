"""Suggest a valid name for an unknown one.

The search has a fixed order:

1. a name that differs only in letter case,
2. the name that an alias stands for: `text` means `string`, but looks like `date`,
3. a name that begins with the given text,
4. the most similar name.

A name that is less similar than `CUTOFF` is not suggested: a wrong suggestion costs a reader more than none.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

CUTOFF = 0.6
"""The least similarity of a suggestion, by `difflib`: twice the number of matching letters over all letters."""

_SHORTEST_PREFIX = 3
_MOST_LISTED = 20

Aliases = Mapping[str, tuple[str, ...]]
"""Other words for valid names, in lower case. If a word has several names, the first valid one is meant."""

_NO_ALIASES: Aliases = MappingProxyType({})


def suggestion(given: object, valid: Iterable[str], aliases: Aliases = _NO_ALIASES) -> str | None:
    """Return the valid name that was probably meant, or None if no name is similar.

    >>> suggestion("rockdb", ["heap", "rocksdb"]), suggestion("Heap", ["heap", "rocksdb"])
    ('rocksdb', 'heap')
    >>> suggestion("int", ["long", "string"], {"int": ("int", "long")})
    'long'
    >>> suggestion("stddev", ["average", "sum"]) is None
    True
    """
    text = str(given).strip().lower()
    by_lower: dict[str, str] = {}
    for name in valid:
        by_lower.setdefault(name.lower(), name)
    if text in by_lower:
        return by_lower[text]
    for meant in aliases.get(text, ()):
        if meant.lower() in by_lower:
            return by_lower[meant.lower()]
    if len(text) >= _SHORTEST_PREFIX:
        longer = [lower for lower in by_lower if lower.startswith(text)]
        if longer:
            return by_lower[min(longer, key=len)]
    near = get_close_matches(text, by_lower, n=1, cutoff=CUTOFF)
    return by_lower[near[0]] if near else None


def did_you_mean(given: object, valid: Iterable[str], aliases: Aliases = _NO_ALIASES) -> str:
    """Return the end of a sentence that has listed the valid names; empty if no name is similar.

    >>> "the operation 'summ' is unknown" + did_you_mean("summ", ["count", "sum"])
    "the operation 'summ' is unknown; did you mean 'sum'?"
    """
    near = suggestion(given, valid, aliases)
    return "" if near is None else f"; did you mean {near!r}?"


def hint(given: object, valid: Iterable[str], aliases: Aliases = _NO_ALIASES) -> str:
    """Return a question with the most similar name, or else a list of the valid names.

    >>> hint("rockdb", ["heap", "rocksdb"]), hint("x", ["heap", "rocksdb"]), hint("x", [])
    ("did you mean 'rocksdb'?", 'known are heap, rocksdb', 'none are declared')
    """
    names = list(valid)
    near = suggestion(given, names, aliases)
    if near is not None:
        return f"did you mean {near!r}?"
    if not names:
        return "none are declared"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"known are {', '.join(names[:_MOST_LISTED])}{more}"

"""What to write instead of an unknown name: the one place where names are compared.

The order of the search is fixed. A name that differs only in letter case wins; then what an alias
stands for, because `text` means `string` and looks like `date`; then a name that begins with the given
text; then the most similar one. Names that are less similar than `CUTOFF` are not suggested: a wrong
suggestion costs a reader more than none.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

CUTOFF = 0.6
"""The least similarity of a suggestion, as `difflib` counts it: twice the letters in common over all letters."""

_SHORTEST_PREFIX = 3
_MOST_LISTED = 20

Aliases = Mapping[str, tuple[str, ...]]
"""Other words for valid names, in lower case; of several names the first that is valid is meant."""

_NO_ALIASES: Aliases = MappingProxyType({})


def suggestion(given: object, valid: Iterable[str], aliases: Aliases = _NO_ALIASES) -> str | None:
    """The valid name that was probably meant, or None where no name is near.

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
    """The end of a sentence that has named the valid names already; empty where none is near.

    >>> "the operation 'summ' is unknown" + did_you_mean("summ", ["count", "sum"])
    "the operation 'summ' is unknown; did you mean 'sum'?"
    """
    near = suggestion(given, valid, aliases)
    return "" if near is None else f"; did you mean {near!r}?"


def hint(given: object, valid: Iterable[str], aliases: Aliases = _NO_ALIASES) -> str:
    """A question for the nearest name, or else the valid names.

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

"""Estimates how often each key was requested recently, in four bytes per cached entry.

W-TinyLFU compares the request counts of two keys, also of keys that are not cached. Exact counts
would need an unbounded map. So this is a count-min sketch [1]: four rows of counters, in each of which
a key has one counter. The estimate is the smallest of the four. Except for ageing and the cap, it is
never below the true count. The rows are as wide as the cache has entries, rounded up to a power of two.

Two changes make the counts *recent* [2]. Counters stop at 15, since admission only asks which of two
keys has the larger count. And after ten increments per entry all counters are halved, so past
popularity fades with that half-life. Requests of a key whose counters are all at the cap do not count
towards ageing.

Caffeine packs sixteen 4-bit counters into a long. In CPython, shifting and masking cost more than they
save, and so does a loop over the rows. So a byte holds one counter, a row is a `bytearray`, and halving
it is one `translate` in C. The invariant: no counter is above 15. When the cache outgrows the rows, each
row is appended to itself. This keeps every estimate, since the low bits of the longer index are the
shorter index.

Most requests are for the hottest keys, whose counters are at the cap and cannot change. So up to `_MOST_CAPPED` such
keys are remembered with their hashes until the next halving, and a request for one of them touches no row.

Keys are hashed as a one-element tuple, because Python's hash of a number is the number itself, while
that of a tuple mixes the bits. Each row uses another part of the hash. Such hashes differ between
processes, which is fine, since a sketch lives only as long as its cache. The trade-off: with strings,
two runs may decide a near tie differently.

1. Cormode, Muthukrishnan: "An improved data stream summary: the count-min sketch" (2005).
2. Einziger, Friedman, Manes: "TinyLFU: a highly efficient cache admission policy" (2017).
"""

from collections.abc import Iterable

_CAP = 15
_SAMPLE_PER_ENTRY = 10
_LEAST_WIDTH = 64
_MOST_CAPPED = 256
_HALVED = bytes(count // 2 for count in range(256))


class FrequencySketch:
    """Estimates the recent uses of hashable keys, from 0 to 15. Old uses fade.

    >>> sketch = FrequencySketch()
    >>> for _ in range(3): _ = sketch.increment("often")
    >>> sketch.frequency("often"), sketch.frequency("never")
    (3, 0)
    """

    __slots__ = ("_capped", "_increments", "_last", "_rows")

    def __init__(self, entries: int = _LEAST_WIDTH) -> None:
        width = max(_LEAST_WIDTH, 1 << max(entries - 1, 0).bit_length())
        self._rows = (bytearray(width), bytearray(width), bytearray(width), bytearray(width))
        self._last = width - 1
        self._increments = 0
        self._capped: dict[object, int] = {}

    def ensure_width(self, entries: int) -> None:
        """Widen the rows for this number of keys, keeping every estimate."""
        while self._last < entries - 1:
            for row in self._rows:
                row.extend(bytes(row))
            self._last = 2 * self._last + 1

    def increment(self, key: object) -> int:
        """Count one use of a key. Return the hash that chose its counters."""
        spread = hash((key,))
        last = self._last
        first, second, third, fourth = self._rows
        before = self._increments
        place = spread & last
        if (count := first[place]) < _CAP:
            first[place] = count + 1
            self._increments = before + 1
        place = spread >> 11 & last
        if (count := second[place]) < _CAP:
            second[place] = count + 1
            self._increments = before + 1
        place = spread >> 22 & last
        if (count := third[place]) < _CAP:
            third[place] = count + 1
            self._increments = before + 1
        place = spread >> 33 & last
        if (count := fourth[place]) < _CAP:
            fourth[place] = count + 1
            self._increments = before + 1
        if self._increments > _SAMPLE_PER_ENTRY * last:
            self._age()
        return spread

    def increment_all(self, keys: Iterable[object], limit: int) -> list[int]:
        """Count one use of each key, as `increment` does, and return the hashes that are below a limit."""
        first, second, third, fourth = self._rows
        last, increments = self._last, self._increments
        most = _SAMPLE_PER_ENTRY * last
        below = []
        capped = self._capped
        for key in keys:
            known = capped.get(key)
            spread = hash((key,)) if known is None else known
            if spread < limit:
                below.append(spread)
            if known is not None:
                continue
            grows = False
            place = spread & last
            if (count := first[place]) < _CAP:
                first[place] = count + 1
                grows = True
            place = spread >> 11 & last
            if (count := second[place]) < _CAP:
                second[place] = count + 1
                grows = True
            place = spread >> 22 & last
            if (count := third[place]) < _CAP:
                third[place] = count + 1
                grows = True
            place = spread >> 33 & last
            if (count := fourth[place]) < _CAP:
                fourth[place] = count + 1
                grows = True
            if grows:
                increments += 1
                if increments > most:
                    self._increments = increments
                    self._age()
                    increments = self._increments
            elif len(capped) < _MOST_CAPPED:
                capped[key] = spread
        self._increments = increments
        return below

    def frequency(self, key: object) -> int:
        """Return the estimated uses of a key."""
        spread = hash((key,))
        last = self._last
        first, second, third, fourth = self._rows
        return min(
            first[spread & last], second[spread >> 11 & last], third[spread >> 22 & last], fourth[spread >> 33 & last]
        )

    def _age(self) -> None:
        for row in self._rows:
            row[:] = row.translate(_HALVED)
        self._increments //= 2
        self._capped.clear()

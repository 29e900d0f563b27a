"""How often a key was seen lately, for all keys, in four bytes a cached entry.

W-TinyLFU compares two keys by how often they were asked for, also keys that are not cached. Exact
counts would be an unbounded map, so this is a count-min sketch [1]: four rows of counters, a key
has one counter in each row, and its estimate is the least of the four, which is never below the
truth except for ageing and the cap. The rows are as wide as the cache has entries, rounded up to
a power of two.

Two departures make it a measure of *lately* [2]. Counters stop at 15, since to admit a key we only
ask which of two is larger; and after ten increments per entry all counters are halved, so what was
popular once fades with that half-life. Increments to a key whose counters are all at the cap do not
count towards ageing.

Caffeine packs sixteen 4-bit counters into a long. In CPython shifting and masking costs more than
it saves, and so does a loop over the rows: a byte holds a counter of 0 to 15, a row is a
`bytearray`, and halving it is one `translate` in C. The invariant: no counter above 15. When the
cache outgrows the rows they double: appending a row to itself keeps every estimate, since the
longer index has the shorter one as its low bits.

Keys are spread with Python's hash of a tuple, which mixes its bits well (a number's own hash is the
number) and of which each row reads another part. It is right here, though never for what outlives
a process: a sketch lives and dies with its cache. Trade-off: with strings, whose hash changes from run to run,
two runs may decide a near tie differently.

1. Cormode, Muthukrishnan: "An improved data stream summary: the count-min sketch" (2005).
2. Einziger, Friedman, Manes: "TinyLFU: a highly efficient cache admission policy" (2017).
"""

from collections.abc import Iterable

_CAP = 15
_SAMPLE_PER_ENTRY = 10
_LEAST_WIDTH = 64
_HALVED = bytes(count // 2 for count in range(256))


class FrequencySketch:
    """Estimated uses of any hashable key, from 0 to 15, fading with time.

    >>> sketch = FrequencySketch()
    >>> for _ in range(3): _ = sketch.increment("often")
    >>> sketch.frequency("often"), sketch.frequency("never")
    (3, 0)
    """

    __slots__ = ("_increments", "_last", "_rows")

    def __init__(self, entries: int = _LEAST_WIDTH) -> None:
        width = max(_LEAST_WIDTH, 1 << max(entries - 1, 0).bit_length())
        self._rows = (bytearray(width), bytearray(width), bytearray(width), bytearray(width))
        self._last = width - 1
        self._increments = 0

    def ensure_width(self, entries: int) -> None:
        """Make room for the counts of as many keys, keeping every estimate."""
        while self._last < entries - 1:
            for row in self._rows:
                row.extend(bytes(row))
            self._last = 2 * self._last + 1

    def increment(self, key: object) -> int:
        """Count one use; the hash that the key was spread by."""
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
        """Count one use of each key, as `increment` does one by one; those of their hashes that are below a limit."""
        first, second, third, fourth = self._rows
        last, increments = self._last, self._increments
        most = _SAMPLE_PER_ENTRY * last
        below = []
        for key in keys:
            spread = hash((key,))
            if spread < limit:
                below.append(spread)
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
        self._increments = increments
        return below

    def frequency(self, key: object) -> int:
        """The estimate of a key's uses."""
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

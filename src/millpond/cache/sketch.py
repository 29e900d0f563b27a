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
it saves: a byte holds a counter of 0 to 15, a row is a `bytearray`, and halving it is one
`translate` in C. The invariant: no counter above 15. When the cache outgrows the rows they double:
appending a row to itself keeps every estimate, since the longer index has the shorter one as its
low bits.

Keys are spread with Python's `hash`, which is right here, though never for what outlives a process:
a sketch lives and dies with its cache. Trade-off: with strings, whose hash changes from run to run,
two runs may decide a near tie differently.

1. Cormode, Muthukrishnan: "An improved data stream summary: the count-min sketch" (2005).
2. Einziger, Friedman, Manes: "TinyLFU: a highly efficient cache admission policy" (2017).
"""

_CAP = 15
_SAMPLE_PER_ENTRY = 10
_LEAST_WIDTH = 64
_HALVED = bytes(count // 2 for count in range(256))
_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: neighbouring hashes land far apart."""

_SHIFTS = (0, 11, 22, 33)
"""Where in the spread hash each row reads its place."""


class FrequencySketch:
    """Estimated uses of any hashable key, from 0 to 15, fading with time.

    >>> sketch = FrequencySketch()
    >>> for _ in range(3): sketch.increment("often")
    >>> sketch.frequency("often"), sketch.frequency("never")
    (3, 0)
    """

    __slots__ = ("_increments", "_rows", "_width")

    def __init__(self, entries: int = _LEAST_WIDTH) -> None:
        self._width = max(_LEAST_WIDTH, 1 << max(entries - 1, 0).bit_length())
        self._rows = tuple((bytearray(self._width), shift) for shift in _SHIFTS)
        self._increments = 0

    def ensure_width(self, entries: int) -> None:
        """Make room for the counts of as many keys, keeping every estimate."""
        while self._width < entries:
            for row, _ in self._rows:
                row.extend(bytes(row))
            self._width *= 2

    def increment(self, key: object) -> None:
        """Count one use."""
        spread = hash(key) * _MULTIPLIER & _MASK
        spread ^= spread >> 32
        last = self._width - 1
        counted = False
        for row, shift in self._rows:
            place = spread >> shift & last
            if row[place] < _CAP:
                row[place] += 1
                counted = True
        if counted:
            self._increments += 1
            if self._increments >= _SAMPLE_PER_ENTRY * self._width:
                self._age()

    def frequency(self, key: object) -> int:
        """The estimate of a key's uses."""
        spread = hash(key) * _MULTIPLIER & _MASK
        spread ^= spread >> 32
        last = self._width - 1
        return min([row[spread >> shift & last] for row, shift in self._rows])

    def _age(self) -> None:
        for row, _ in self._rows:
            row[:] = row.translate(_HALVED)
        self._increments //= 2

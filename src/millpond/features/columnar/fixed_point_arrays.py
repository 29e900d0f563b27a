"""Exact sums of many fixed-point numbers by array operations: numbers in words of 32 bits, words added as doubles.

Place on the data path: below `array_cells`, which collects events, and below the hop table, which merges stored sums
and stores them again.

A number is cut into limbs of 32 bits, and each limb is shifted into two words. The words of one weight are added per
group as doubles; up to 2**21 of them add up without rounding. Then carries move up through the words. Each group's
words are read as one Python integer, or written as `cells.counts_and_sums.encode_fixed_point` writes it.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.features.stored.packed_columns import PackedColumn, suffix_sums

_WORD_BITS = 32
_WORD_MASK = np.uint64((1 << _WORD_BITS) - 1)
_LOWEST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks for the lowest bytes of a number, by the count of bytes."""

_ADDED_AT_ONCE = 1 << (53 - _WORD_BITS)
"""So many words add up to less than 2**53, below which doubles are exact."""

_BYTES = 0xC4
"""The first byte of MessagePack for up to 255 bytes (bin 8)."""

_MOST_BYTES = 0xFF
_HEAD_BYTES = 2
_SHIFT_BYTES = 2


class WordSums:
    """Sums of fixed-point numbers, one for each group.

    Args:
        groups: the number of groups.
        shifts: for each number that will be added, the least number of bits by which it is shifted.
        most_bits: the bits of the longest number, without its shift.
    """

    def __init__(self, groups: int, shifts: npt.NDArray[np.int64], most_bits: int) -> None:
        self._first = int(shifts.min()) // _WORD_BITS
        self._words = (int(shifts.max()) + most_bits) // _WORD_BITS + 2 - self._first
        self._totals = np.zeros((groups, self._words), np.int64)
        self._groups = groups

    def add(self, index: Any, shifts: Any, limbs: Any, signs: Any = None) -> None:
        """Add a limb of each number.

        Args:
            index: the group of each number.
            shifts: by how many bits each is shifted.
            limbs: up to 32 bits of each, as uint64.
            signs: 1, 0 or -1 for each; None if all are positive.
        """
        shifted = limbs << (shifts % _WORD_BITS).astype(np.uint64)
        places = index * self._words + (shifts // _WORD_BITS - self._first)
        for further, part in enumerate((shifted & _WORD_MASK, shifted >> np.uint64(_WORD_BITS))):
            words = part.astype(np.float64)
            if signs is not None:
                words *= signs
            for start in range(0, len(words), _ADDED_AT_ONCE):
                piece = slice(start, start + _ADDED_AT_ONCE)
                added = np.bincount(places[piece] + further, words[piece], self._totals.size)
                self._totals += added.astype(np.int64).reshape(self._totals.shape)

    def add_following(self, bounds: npt.NDArray[np.int64]) -> None:
        """Replace each sum by the sum of itself and all that follow in its run of groups.

        Args:
            bounds: where each run begins, followed by the number of groups.
        """
        self._totals = suffix_sums(self._totals, bounds)

    def sums(self) -> list[int]:
        """Return the sum of each group."""
        words = self._carried()
        data, width, shift = words.tobytes(), 4 * words.shape[1], _WORD_BITS * self._first
        from_bytes = int.from_bytes
        return [
            from_bytes(data[start : start + width], "little", signed=True) << shift
            for start in range(0, len(data), width)
        ]

    def stored(self) -> list[bytes] | None:
        """Return each sum as `encode_fixed_point` writes it; None if one has more than 255 bytes."""
        packed = self.packed()
        if packed is None:
            return None
        data, bounds = packed
        return [data[begin + _HEAD_BYTES : end] for begin, end in pairwise(bounds.tolist())]

    def packed(self) -> PackedColumn | None:
        """Return the MessagePack of each stored sum; None if one has more than 255 bytes."""
        words = self._carried()
        rows, width = np.arange(len(words)), words.shape[1]
        first = (words != 0).argmax(axis=1)
        lowest = words[rows, first].astype(np.int64)
        present = np.flatnonzero(lowest)
        zeros = np.maximum(np.frexp((lowest & -lowest).astype(np.float64))[1] - 1, 0)
        mantissas, signs = _shifted_right(words, first, zeros)
        magnitudes = mantissas ^ signs[:, None]
        # The magnitude of a negative odd number is its bits inverted, plus one.
        magnitudes[:, 0] |= 1
        top = width - 1 - (magnitudes[:, ::-1] != 0).argmax(axis=1)
        bits = _WORD_BITS * top + np.frexp(magnitudes[rows, top].astype(np.float64))[1]
        sizes = np.zeros(len(words), np.int64)
        sizes[present] = _SHIFT_BYTES + bits[present] // 8 + 1
        if sizes.max() > _MOST_BYTES:
            return None
        bounds = np.concatenate([[0], np.cumsum(_HEAD_BYTES + sizes)])
        begins, ends = bounds[:-1], bounds[1:]
        data = np.empty(bounds[-1], np.uint8)
        data[begins] = _BYTES
        data[begins + 1] = sizes
        shifts = (_WORD_BITS * (self._first + first) + zeros)[present]
        data[begins[present] + _HEAD_BYTES] = shifts >> 8
        data[begins[present] + _HEAD_BYTES + 1] = shifts & 0xFF
        octets = mantissas.view(np.uint8).reshape(len(words), 4 * width)
        lengths = sizes - _SHIFT_BYTES
        for place in range(int(lengths.max())):
            some = np.flatnonzero(lengths > place)
            data[ends[some] - 1 - place] = octets[some, place]
        return PackedColumn(data.tobytes(), bounds)

    def _carried(self) -> npt.NDArray[np.uint32]:
        """Return each sum as words of a two's complement, the lowest first, as few as hold all sums."""
        words = np.empty((self._groups, self._words + 2), "<u4")
        carry = np.zeros(self._groups, np.int64)
        for number in range(self._words):
            total = self._totals[:, number] + carry
            words[:, number] = total & 0xFFFFFFFF
            carry = total >> _WORD_BITS
        words[:, -2] = carry & 0xFFFFFFFF
        words[:, -1] = (carry >> _WORD_BITS) & 0xFFFFFFFF
        while words.shape[1] > 1 and (words[:, -1] == _signs(words[:, :-1])).all():
            words = words[:, :-1]
        return np.ascontiguousarray(words)


def _signs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the word that sign-extends each number: 0 or all ones."""
    return np.where(words[:, -1] >> (_WORD_BITS - 1), np.uint32(0xFFFFFFFF), np.uint32(0))


def _shifted_right(
    words: npt.NDArray[np.uint32], first: Any, bits: Any
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return numbers without their lowest words and bits, and the words that sign-extend them: 0 or all ones."""
    width, signs = words.shape[1], _signs(words)
    longer = np.concatenate([words, signs[:, None]], axis=1).astype(np.uint64)
    places = first[:, None] + np.arange(width)
    low = np.take_along_axis(longer, np.minimum(places, width), axis=1)
    high = np.take_along_axis(longer, np.minimum(places + 1, width), axis=1)
    by = bits[:, None].astype(np.uint64)
    return ((low >> by | high << (np.uint64(_WORD_BITS) - by)) & _WORD_MASK).astype("<u4"), signs


def added_fixed_points(data: Any, bounds: Any, index: Any, groups: int) -> WordSums:
    """Add stored fixed-point numbers (`cells.counts_and_sums.encode_fixed_point`, as MessagePack) by group.

    Args:
        data: the bytes of all numbers, one after the other, as uint8.
        bounds: where each begins, and where the last one ends.
        index: the group of each number.
        groups: the number of groups.

    Raises:
        ValueError: the bytes are not fixed-point numbers.

    >>> data = np.frombuffer(bytes.fromhex("c403000105" "c400" "c403000aff"), np.uint8)
    >>> added_fixed_points(data, np.array([0, 5, 7, 12]), np.array([1, 0, 1]), groups=2).sums()
    [0, -1014]
    """
    begins, lengths = bounds[:-1], np.diff(bounds) - _HEAD_BYTES
    if not ((lengths >= 0).all() and (data[begins] == _BYTES).all() and (data[begins + 1] == lengths).all()):
        raise ValueError("the stored cells are no fixed-point numbers")
    present = np.flatnonzero(lengths)
    begins, index, lengths = begins[present], index[present], lengths[present] - _SHIFT_BYTES
    if not len(present):
        return WordSums(groups, np.zeros(1, np.int64), 0)
    ends = begins + _HEAD_BYTES + _SHIFT_BYTES + lengths
    if not ((lengths > 0).all() and (data[ends - 1] & 1).all()):
        raise ValueError("the stored cells are no fixed-point numbers in their shortest form")
    shifts = data[begins + 2].astype(np.int64) << 8 | data[begins + 3]
    is_negative = data[ends - lengths] >> 7
    limbs = -(-int(lengths.max()) // 4)
    sums = WordSums(groups, shifts, _WORD_BITS * (limbs + 1))
    for eighth in range(-(-limbs // 2)):
        both = _eight_bytes(data, ends, lengths, is_negative, eighth)
        for half in range(min(2, limbs - 2 * eighth)):
            limb = both >> np.uint64(_WORD_BITS) if half else both & _WORD_MASK
            sums.add(index, shifts + _WORD_BITS * (2 * eighth + half), limb)
    if is_negative.any():
        # A negative number that is read as positive is too large by one in the limb above.
        some = np.flatnonzero(is_negative)
        above = shifts[some] + _WORD_BITS * limbs
        sums.add(index[some], above, np.ones(len(some), np.uint64), np.full(len(some), -1.0))
    return sums


def _eight_bytes(data: Any, ends: Any, lengths: Any, is_negative: Any, eighth: int) -> npt.NDArray[np.uint64]:
    """Return the ``eighth``-th eight bytes of each number, from its end; beyond its first byte its sign repeats."""
    before = 8 * (eighth + 1)
    padded = np.concatenate([np.zeros(before, np.uint8), data])
    # At each byte, it and the seven after it as one number.
    overlapping = np.ndarray(len(padded) - 7, ">u8", padded, strides=(1,))
    found = overlapping[ends].astype(np.uint64)
    own = _LOWEST_BYTES[np.clip(lengths - 8 * eighth, 0, 8)]
    numbers: npt.NDArray[np.uint64] = np.where(is_negative, found | ~own, found & own)
    return numbers

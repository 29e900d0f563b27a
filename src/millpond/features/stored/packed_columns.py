"""Columns of batch rows as MessagePack, for many keys at once, by array operations.

Place on the data path: inside the tasks of a hop table, between merged cells and the rows of the batch.

The cells of all keys lie one after the other in one bytes object, each in MessagePack. So the column of a
key is a list header and a slice, and no cell of it becomes a Python object. `GroupByPlan.encode_batch` is the oracle.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

_UNSIGNED = 0xCC
"""The first byte of a MessagePack uint of one byte; the next three are those of 2, 4 and 8 bytes."""

_MOST_OF_KIND = (0x7F, 0xFF, 0xFFFF, 0xFFFFFFFF)
"""The largest whole numbers that need no further byte, one, two and four."""

_encode = msgspec.msgpack.Encoder().encode


class PackedColumn(NamedTuple):
    """The MessagePack of some values, one after the other.

    Args:
        data: the bytes of all values.
        bounds: where each value begins, followed by where the last one ends.
    """

    data: bytes
    bounds: npt.NDArray[np.int64]

    def runs(self, bounds: npt.NDArray[np.int64]) -> list[bytes]:
        r"""Return the MessagePack of each run of values.

        Args:
            bounds: the start of each run, and last the number of values.

        >>> packed_ints(np.array([5, 300, 7])).runs(np.array([0, 1, 3]))
        [b'\x05', b'\xcd\x01,\x07']
        """
        data = self.data
        return [data[begin:end] for begin, end in pairwise(self.bounds[bounds].tolist())]


def packed_lists(lengths: Sequence[int], columns: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    r"""Yield the lists of each row as MessagePack, one after the other. Those of one row have the same length.

    Args:
        lengths: the length of each row's lists.
        columns: the elements of each row's list, as MessagePack.

    >>> list(packed_lists([1, 2], [[b"\x05", b"\x06\x07"], [b"\x08", b"\x09\x0a"]]))
    [b'\x91\x05\x91\x08', b'\x92\x06\x07\x92\t\n']
    """
    headers = list(map(list_header, lengths))
    return map(b"".join, zip(*(part for column in columns for part in (headers, column)), strict=True))


@lru_cache(maxsize=1024)
def list_header(length: int) -> bytes:
    r"""Return the MessagePack header of a list.

    >>> list_header(3), list_header(300)
    (b'\x93', b'\xdc\x01,')
    """
    # Each None takes one byte.
    return _encode([None] * length)[: -length or None]


def packed_ints(values: npt.NDArray[np.int64]) -> PackedColumn:
    r"""Return the MessagePack of whole numbers, none of them negative.

    >>> packed_ints(np.array([5, 300])).data
    b'\x05\xcd\x01,'
    """
    kinds = np.searchsorted(_MOST_OF_KIND, values)
    octets = np.array([0, 1, 2, 4, 8])[kinds]
    bounds = np.concatenate([[0], np.cumsum(1 + octets)])
    ends = bounds[1:]
    data = np.empty(bounds[-1], np.uint8)
    data[bounds[:-1]] = np.where(kinds == 0, values, _UNSIGNED - 1 + kinds)
    for place in range(int(octets.max(initial=0))):
        some = np.flatnonzero(octets > place)
        data[ends[some] - 1 - place] = values[some] >> (8 * place) & 0xFF
    return PackedColumn(data.tobytes(), bounds)


def suffix_sums(values: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> Any:
    """Return for each value the sum of itself and all later values of its run.

    Args:
        values: whole numbers, or rows of them; the sum of all must fit into 63 bits.
        bounds: where each run begins, followed by the number of values.

    >>> suffix_sums(np.array([1, 2, 3, 10, 20]), np.array([0, 3, 5])).tolist()
    [6, 5, 3, 30, 20]
    """
    none = np.zeros_like(values[:1])
    added = np.concatenate([np.cumsum(values[::-1], axis=0)[::-1], none])
    following = np.repeat(added[bounds[1:]], np.diff(bounds), axis=0)
    return added[:-1] - following

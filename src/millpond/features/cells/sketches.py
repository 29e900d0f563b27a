"""Sketches: approx_unique_count, approx_percentile, approx_histogram_k.

The sketches are from Apache DataSketches, and their bytes are the cells. A merge reads both sides into new
sketches, so nothing in a cache changes.

| operation           | sketch                | exact up to              | bound beyond                          |
|---------------------|-----------------------|--------------------------|---------------------------------------|
| approx_unique_count | CPC, lg k = 11        | –                        | 1.6 % standard error                  |
| approx_percentile   | KLL, k = 200          | 200 values               | rank error 1.33 % at 99 % confidence  |
| approx_histogram_k  | frequent items of 2^m | 3/4 of 2^m values        | count error 3.5 / 2^m of all counts   |

m is at least 8, and 2^m at least 8 k.

- A CPC sketch that went through a union is a function of the set of its hashes alone. So every cell is
  taken from a union, and merging is associative and commutative to the bit.
- A KLL sketch flips coins when it compacts, and the library has no seed for them. So up to 200 values
  the cell is the sorted values themselves, and merges to the bit. With more, two merges of the same values
  may differ within the bound.
- Frequent items depend on the order of the values once the map is full. So up to that size the
  cell is the dict of exact counts, and merges to the bit. With more, merges differ within the bound.

The library does not check the bytes that it reads, and altered ones can crash the process. So a stored sketch
begins with the CRC-32 of its bytes, and is read only if that fits.

Sources: K. Lang, "Back to the future: an even more nearly optimal cardinality estimation algorithm"
(2017), for CPC; Z. Karnin, K. Lang, E. Liberty, "Optimal quantile approximation in streams" (2016);
D. Anderson et al., "A high-performance algorithm for identifying frequent items in data streams" (2017).
"""

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import xxhash

from millpond.errors import MissingDependencyError
from millpond.features.cells.cell import Cell, CellOperation, Finish, Operation, Parameter
from millpond.features.cells.counts_and_sums import long_result
from millpond.features.cells.memory import value_bytes
from millpond.features.cells.ordered import in_order
from millpond.features.cells.sets_and_maps import (
    added,
    dict_bytes,
    dict_decoder,
    dict_encoder,
    histogram_result,
)
from millpond.features.cells.stored_values import list_of
from millpond.features.types import MAP_KEYS, SCALARS, DataType, parse_type

UNIQUE_LG_K = 11
"""The size of CPC sketches: standard error 1.6 %, at most about 1,300 bytes."""

PERCENTILE_K = 200
"""The size of KLL sketches, and the most values that are kept exactly."""

_CHECKSUM_BYTES = 4
_MAX_SKETCH_BYTES = 1 << 26
_SMALLEST_LG_ITEMS = 8

_BYTES_OF: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "binary": bytes,
    "decimal": lambda unscaled: str(unscaled).encode(),
}


def library() -> Any:
    """Return the module of Apache DataSketches.

    Raises:
        MissingDependencyError: the module is not installed.
    """
    try:
        import datasketches  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as cause:
        raise MissingDependencyError(
            "approx_unique_count, approx_percentile and approx_histogram_k need Apache DataSketches; "
            "install it with: pip install 'millpond[features]'"
        ) from cause
    return datasketches


def sketch_with_checksum(sketch: bytes) -> bytes:
    """Put the checksum before the bytes of a sketch.

    >>> sketch_with_checksum(b"a").hex()
    'e8b7be4361'
    """
    return zlib.crc32(sketch).to_bytes(_CHECKSUM_BYTES, "big") + sketch


def open_sketch(stored: Any) -> bytes:
    """Return the bytes of a sketch without their checksum.

    Raises:
        TypeError: the stored form is not bytes.
        ValueError: the checksum does not fit, or the sketch is larger than any can be.
    """
    if type(stored) is not bytes:
        raise TypeError(f"expected a sketch, found {type(stored).__name__}")
    sketch = stored[_CHECKSUM_BYTES:]
    if not sketch or len(sketch) > _MAX_SKETCH_BYTES or stored != sketch_with_checksum(sketch):
        raise ValueError(f"{len(stored)} bytes are no sketch: their checksum does not fit")
    return sketch


def _by_length(sketch: bytes) -> tuple[int, bytes]:
    """Return a sort key for sketches, so that a merge of two is the same in either order, except for random coins."""
    return len(sketch), sketch


# Distinct values.


def _hashable(type_: DataType) -> Callable[[Any], int | float]:
    """Return the function that turns a value into a number for the sketch to hash; the library ignores empty texts."""
    if type_.kind in {"string", "binary", "decimal"}:
        as_bytes: Callable[[Any], bytes] = _BYTES_OF[type_.kind]
        return lambda value: xxhash.xxh3_64_intdigest(as_bytes(value)) - (1 << 63)
    return float if type_.kind in {"float", "double"} else _unsigned_beyond_doubles


def _unsigned_beyond_doubles(value: int) -> int:
    """Return the number to hash for a whole number; the library turns negative ones into doubles, which have 53 bits.

    >>> _unsigned_beyond_doubles(-1), _unsigned_beyond_doubles(-(1 << 63))
    (-1, 9223372036854775808)
    """
    return int(value) if value >= -(1 << 53) else value & ((1 << 64) - 1)


def approx_unique_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that estimate the number of distinct values.

    >>> cell = approx_unique_cells(parse_type("long"))
    >>> cell.merge(cell.collect([0, 0], [1, 2]), cell.collect([0, 0], [2, 1])) == cell.collect([0, 0], [1, 2])
    True
    """
    if type_ is None:
        raise TypeError("events have no value that could be distinct")
    sketches, number = library(), _hashable(type_)
    read = sketches.cpc_sketch.deserialize

    def united(parts: Iterable[Any]) -> bytes:
        union = sketches.cpc_union(UNIQUE_LG_K)
        for part in parts:
            union.update(part)
        found: bytes = union.get_result().serialize()
        return found

    def merge_all(cells: Sequence[bytes]) -> bytes:
        filled = [cell for cell in cells if cell]
        if not filled:
            return b""
        return filled[0] if len(filled) == 1 else united(map(read, filled))

    def collect(_: Sequence[int], values: Sequence[Any]) -> bytes:
        if not values:
            return b""
        sketch = sketches.cpc_sketch(UNIQUE_LG_K)
        for value in set(values):
            sketch.update(number(value))
        return united([sketch])

    return CellOperation(
        id=f"cpc({UNIQUE_LG_K}):{type_.name}",
        empty=b"",
        suffix=False,
        plain=False,
        collect=collect,
        merge=lambda left, right: merge_all((left, right)),
        merge_all=merge_all,
        delete=None,
        encode=lambda cell: sketch_with_checksum(cell) if cell else None,
        decode=lambda stored: b"" if stored is None else open_sketch(stored),
        size=value_bytes,
    )


def _finish_approx_unique(_: DataType | None, __: Parameter) -> Finish:
    deserialize = library().cpc_sketch.deserialize
    return lambda cell: round(deserialize(cell).get_estimate()) if cell else None


# Percentiles.


def percentile_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells of percentiles: up to 200 doubles in order, or the bytes of a KLL sketch.

    >>> percentile_cells(parse_type("long")).collect([0, 0, 0], [3, 1, 2])
    (1.0, 2.0, 3.0)
    """
    if type_ is None:
        raise TypeError("events have no value that could have percentiles")
    sketches, unit = library(), 10**type_.scale

    def cell_of(values: list[float], merged: Iterable[bytes] = ()) -> Cell:
        kept = sorted(values)
        others = sorted(merged, key=_by_length, reverse=True)
        if not others and len(kept) <= PERCENTILE_K:
            return tuple(kept)
        first = sketches.kll_doubles_sketch
        sketch = first.deserialize(others[0]) if others else first(PERCENTILE_K)
        for other in others[1:]:
            sketch.merge(first.deserialize(other))
        if kept:
            import numpy as np

            sketch.update(np.frombuffer(array("d", kept)))
        return sketch.serialize()

    def collect(_: Sequence[int], values: Sequence[Any]) -> Cell:
        return cell_of([value / unit for value in values] if unit > 1 else list(map(float, values)))

    def merge_all(cells: Sequence[Cell]) -> Cell:
        exact = chain.from_iterable(cell for cell in cells if type(cell) is tuple)
        return cell_of(list(exact), (cell for cell in cells if type(cell) is bytes))

    def merge(left: Cell, right: Cell) -> Cell:
        if not left or not right:
            return left or right
        return merge_all((left, right))

    def decode(stored: Any) -> Cell:
        if type(stored) is bytes:
            return open_sketch(stored)
        values = tuple(map(parse_type("double").form.checked, list_of(stored, PERCENTILE_K)))
        return in_order(values)

    return CellOperation(
        id=f"kll({PERCENTILE_K}):{type_.name}",
        empty=(),
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=None,
        encode=lambda cell: sketch_with_checksum(cell) if type(cell) is bytes else list(cell),
        decode=decode,
        size=lambda cell: value_bytes(cell) + (sum(map(value_bytes, cell)) if type(cell) is tuple else 0),
    )


def _finish_percentiles(_: DataType | None, percentiles: Parameter) -> Finish:
    if not isinstance(percentiles, tuple):
        raise TypeError("approx_percentile needs percentiles")
    wanted = list(percentiles)
    deserialize = library().kll_doubles_sketch.deserialize

    def finish(cell: Cell) -> list[float] | None:
        if type(cell) is bytes:
            sketch = deserialize(cell)
            # The sketch knows the least and the greatest value exactly, but may not have retained them.
            ends = {0.0: sketch.get_min_value(), 1.0: sketch.get_max_value()}
            return [
                ends.get(percentile, answer)
                for percentile, answer in zip(wanted, sketch.get_quantiles(wanted, inclusive=True), strict=True)
            ]
        if not cell:
            return None
        return [cell[max(0, math.ceil(percentile * len(cell)) - 1)] for percentile in wanted]

    return finish


def _percentiles_result(_: DataType, __: Parameter) -> DataType:
    return parse_type("array<double>")


# The most frequent values.


def frequent_cells(type_: DataType | None, k: Parameter) -> CellOperation:
    """Make the cells that count the most frequent values: exact counts, or the bytes of a sketch.

    >>> frequent_cells(parse_type("string"), 2).collect([0, 0, 0], ["b", "a", "b"])
    {'b': 2, 'a': 1}
    """
    if type_ is None or not isinstance(k, int):
        raise TypeError("approx_histogram_k needs values and a whole number k")
    lg_items = max(_SMALLEST_LG_ITEMS, (8 * k - 1).bit_length())
    exactly = 3 << lg_items - 2
    make = partial(library().frequent_strings_sketch, lg_items)
    deserialize = library().frequent_strings_sketch.deserialize

    def limited(counts: dict[Any, int], merged: Sequence[bytes] = ()) -> Cell:
        if not merged and len(counts) <= exactly:
            return counts
        others = sorted(merged, key=_by_length, reverse=True)
        sketch = deserialize(others[0]) if others else make()
        for other in others[1:]:
            sketch.merge(deserialize(other))
        for value in sorted(counts):
            sketch.update(str(value), counts[value])
        return sketch.serialize()

    def collect(_: Sequence[int], values: Sequence[Any]) -> Cell:
        return limited(dict(Counter(values)))

    def merge_all(cells: Sequence[Cell]) -> Cell:
        exact = [cell for cell in cells if type(cell) is dict]
        return limited(added(*exact), [cell for cell in cells if type(cell) is bytes])

    def merge(left: Cell, right: Cell) -> Cell:
        if not left or not right:
            return left or right
        return merge_all((left, right))

    encode_counts, decode_counts = dict_encoder(type_), dict_decoder(type_, exactly)

    def decode(stored: Any) -> Cell:
        if type(stored) is bytes:
            return open_sketch(stored)
        counts = decode_counts(stored)
        if min(counts.values(), default=1) < 0:
            raise ValueError("a count below 0, though these cells never delete")
        return counts

    return CellOperation(
        id=f"frequent({lg_items}):{type_.name}",
        empty={},
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=None,
        encode=lambda cell: sketch_with_checksum(cell) if type(cell) is bytes else encode_counts(cell),
        decode=decode,
        size=lambda cell: value_bytes(cell) if type(cell) is bytes else dict_bytes(cell),
    )


def _finish_frequent(type_: DataType | None, k: Parameter) -> Finish:
    sketches, most = library(), k if isinstance(k, int) else 0
    read: Callable[[str], Any] = str if type_ is None or type_.kind == "string" else int
    every = sketches.frequent_items_error_type.NO_FALSE_NEGATIVES

    def finish(cell: Cell) -> dict[Any, int] | None:
        if type(cell) is bytes:
            items = sketches.frequent_strings_sketch.deserialize(cell).get_frequent_items(every)
            counts = {read(item[0]): item[1] for item in items}
        else:
            counts = cell
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
        return dict(ranked) or None

    return finish


APPROX_UNIQUE_COUNT = Operation((approx_unique_cells,), SCALARS, long_result, _finish_approx_unique, exact=False)
"""About the number of distinct values."""

APPROX_PERCENTILE = Operation(
    (percentile_cells,),
    ("int", "long", "float", "double", "decimal"),
    _percentiles_result,
    _finish_percentiles,
    parameter="percentiles",
    exact=False,
)
"""For each percentile, about the least value that at least this part of the values does not exceed."""

APPROX_HISTOGRAM_K = Operation(
    (frequent_cells,), MAP_KEYS, histogram_result, _finish_frequent, parameter="k", exact=False
)
"""The k most frequent values with their approximate counts, the most frequent first."""

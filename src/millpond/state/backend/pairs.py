"""Cells as pairs of bytes: what a backend that keeps bytes hands out, and takes in, without decoding them."""

from collections.abc import Iterator
from dataclasses import dataclass

Pair = tuple[bytes, bytes]
"""Of a cell: its place and what stands there."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of one state and key group, as two columns: a tuple for each cell would cost more than its bytes."""

    places: list[bytes]
    stored: list[bytes]

    def __getitem__(self, part: slice) -> "Pairs":
        return Pairs(self.places[part], self.stored[part])

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Pair]:
        return zip(self.places, self.stored, strict=True)

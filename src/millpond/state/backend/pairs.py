"""Cells as pairs of bytes: backends that keep bytes hand them out, and take them in, without decoding them."""

from collections.abc import Iterator
from dataclasses import dataclass

Pair = tuple[bytes, bytes]
"""A cell's place, and the bytes stored there."""


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

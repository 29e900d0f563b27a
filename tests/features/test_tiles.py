import pytest

from millpond.errors import DataError
from millpond.features import Tile
from millpond.features.tiles import tiles_between

SIZE = 300_000


def test_tiles_are_taken_in_any_order_and_given_oldest_first():
    tiles = [Tile(start * SIZE, SIZE) for start in (3, 1, 2, 0)]
    assert [tile.start_ms // SIZE for tile in tiles_between(tiles, SIZE, 3 * SIZE)] == [1, 2]


def test_a_span_given_twice_is_refused_even_with_another_version():
    with pytest.raises(DataError, match="overlaps"):
        tiles_between([Tile(0, SIZE), Tile(0, SIZE, version=1)], 0, SIZE)


def test_a_larger_tile_must_not_reach_over_the_next():
    assert len(tiles_between([Tile(0, 2 * SIZE), Tile(2 * SIZE, SIZE)], 0, 10 * SIZE)) == 2
    with pytest.raises(DataError, match=f"{SIZE}"):
        tiles_between([Tile(0, 2 * SIZE), Tile(SIZE, SIZE)], 0, 10 * SIZE)

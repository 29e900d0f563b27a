import pytest

from millpond.errors import DataError
from millpond.features import TILE_MS, Tile
from millpond.features.tiles import tiles_between


def test_tiles_are_taken_in_any_order_and_given_oldest_first():
    tiles = [Tile(start * TILE_MS) for start in (3, 1, 2, 0)]
    assert [tile.start_ms // TILE_MS for tile in tiles_between(tiles, TILE_MS, 3 * TILE_MS)] == [1, 2]


def test_a_span_given_twice_is_refused_even_with_another_version():
    with pytest.raises(DataError, match="overlaps"):
        tiles_between([Tile(0), Tile(0, version=1)], 0, TILE_MS)


def test_a_larger_tile_must_not_reach_over_the_next():
    assert len(tiles_between([Tile(0, 2 * TILE_MS), Tile(2 * TILE_MS)], 0, 10 * TILE_MS)) == 2
    with pytest.raises(DataError, match=f"{TILE_MS}"):
        tiles_between([Tile(0, 2 * TILE_MS), Tile(TILE_MS)], 0, 10 * TILE_MS)

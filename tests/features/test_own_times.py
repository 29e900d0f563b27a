"""Tiles whose cells are kept by the own times of rows that come and go."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features import Aggregation, EntitySource, EventSource, Field, GroupBy, Tile, compile_group_by
from millpond.features.answering import TileDecoder
from millpond.features.own_times import keeps_own_times
from millpond.features.partial_ir import UNKNOWN, PartialIr
from tests.features.oracle import DAY, HOUR, MINUTE

B = 16_000 * DAY
ENTITY = EntitySource("rows", "changes")


def listings(*aggregations, sources=(ENTITY,), **options):
    return GroupBy("listings", (Field("town", "string"),), (Field("price", "long"),), aggregations, sources, **options)


SUMS = listings(Aggregation("sum", "price", ("1h", "3d", None)), Aggregation("max", "price", ("3d",)))
PLAN = compile_group_by(SUMS)
GOLDEN_TILE = (
    "02a362c385bd2bbdb403ade80d2a871bb31a59af4f8f97cf00000141dd760000ce000493e0c20096cf00000141d3294800f9"
    "cf00000141dd6cd84015cf00000141dd7600000196cf00000141d3294800ffcf00000141dd6cd84001cf00000141dd760000"
    "0194cf00000141dd6cd84015cf00000141dd76000001"
)
"""Never edited: a new form of tiles gets a new version."""

ROWS = st.lists(st.tuples(st.integers(-3 * HOUR, HOUR), st.tuples(st.none() | st.integers(-5, 5))), max_size=6)


def tile_of(came, gone=()):
    irs = [PLAN.tile_cells.collect([B + time for time, _ in rows], [row for _, row in rows]) for rows in (came, gone)]
    return Tile(B, PLAN.tile_ms, ir=PLAN.delete(*irs))


def test_a_row_of_the_batch_that_goes_is_subtracted_from_the_windows_that_hold_it():
    batch = PLAN.batch_ir([(B - 2 * DAY, (7,)), (B - 10 * MINUTE, (20,))], B)
    tile = tile_of(came=[(-10 * MINUTE, (21,)), (1, (1,))], gone=[(-2 * DAY, (7,)), (-10 * MINUTE, (20,))])
    found = PLAN.finish(B + 30 * MINUTE, B, batch, [tile])
    assert found == {"price_sum_1h": 22, "price_sum_3d": 22, "price_sum": 22, "price_max_3d": 21}
    assert PLAN.finish(B + 2 * HOUR, B, batch, [tile])["price_sum_1h"] is None


@given(ROWS, ROWS, ROWS)
def test_tiles_merge_to_the_same_bytes_in_any_order_and_a_delete_undoes_a_row(one, two, three):
    irs = [tile_of(rows).ir for rows in (one, two, three)]
    whole = tile_of([*one, *two, *three]).ir
    for left, middle, right in itertools.permutations(irs):
        assert PLAN.merge_tiles([left, PLAN.merge_tiles([middle, right])]) == whole
        assert PLAN.merge_tiles([left, middle, right]) == whole
    sums = [place for place, cell in enumerate(PLAN.cells.cells) if cell.delete is not None]
    gone = tile_of([*one, *two], gone=two).ir
    assert [gone[place] for place in sums] == [irs[0][place] for place in sums]


def test_a_tile_has_the_same_bytes_as_ever_and_both_decoders_read_it():
    tile = tile_of([(-10 * MINUTE, (21,)), (1, (1,))], gone=[(-2 * DAY, (7,))])
    data = PLAN.encode_tile(b"k", tile)
    assert data.hex() == GOLDEN_TILE
    assert PLAN.decode_tile(b"k", data) == TileDecoder(PLAN).decode(b"k", data) == tile


def test_cells_that_a_tile_lacks_stay_unknown():
    known = tile_of([(1, (1,))]).ir
    lacking = Tile(B, PLAN.tile_ms, ir=PartialIr([*known[:-1], UNKNOWN]))
    found = PLAN.finish(B + 30 * MINUTE, B, None, [lacking, Tile(B + PLAN.tile_ms, PLAN.tile_ms, ir=known)])
    assert found == {"price_sum_1h": 2, "price_sum_3d": 2, "price_sum": 2}


@pytest.mark.parametrize(
    ("group_by", "kept"),
    [
        (SUMS, True),
        (listings(Aggregation("sum", "price")), False),
        (listings(Aggregation("sum", "price", ("1h",)), sources=(EventSource("rows"),)), False),
        (listings(Aggregation("sum", "price", ("1h",)), sources=(EventSource("rows"), ENTITY)), True),
    ],
)  # fmt: skip
def test_only_windows_over_rows_that_come_and_go_need_own_times(group_by, kept):
    plan = compile_group_by(group_by)
    assert keeps_own_times(group_by) is plan.keeps_own_times is kept
    assert ("own times" in plan.explain()) is kept
    assert (plan.tile_cells is plan.cells) is not kept

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.features import Aggregation, Field, GroupBy, Tile, compile_group_by, tile_start
from tests.features import oracle
from tests.features.oracle import DAY, HOUR, MINUTE

MARK = 5 * MINUTE
B = 19_000 * DAY
WINDOWS = ("1h", "6h", "1d", "7d", "30d", None)

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("carrier", "string")),
    inputs=(Field("delay", "double"), Field("late", "boolean"), Field("distance", "long"), Field("tail", "string")),
    aggregations=(
        Aggregation("count", windows=WINDOWS),
        Aggregation("average", "delay", WINDOWS),
        Aggregation("sum", "delay", ("6h", None)),
        Aggregation("max", "delay", WINDOWS),
        Aggregation("average", "late", ("1d", "30d")),
        Aggregation("sum", "distance", ("3h", "7d", None)),
        Aggregation("count", "distance", ("1d",)),
        Aggregation("min", "tail", ("7d", None)),
    ),
)
PLAN = compile_group_by(ROUTE)

INPUTS = st.tuples(
    st.none() | st.floats(-1e6, 1e6) | st.sampled_from((0.1, 0.2, -0.0, 5e-324, 1e300, -1e300)),
    st.none() | st.booleans(),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.text(max_size=3),
)
# Mostly near the batch end and at the edges of hops, where mistakes are made.
OFFSETS = st.one_of(
    st.integers(-40 * DAY, 2 * DAY + HOUR),
    st.integers(-HOUR, HOUR),
    st.builds(
        lambda hop, count, nudge: hop * count + nudge,
        st.sampled_from((MARK, HOUR, DAY)),
        st.integers(-40, 40),
        st.sampled_from((-1, 0, 1)),
    ),
)
EVENTS = st.lists(st.tuples(OFFSETS.map(lambda offset: B + offset), INPUTS), max_size=25)
MARKS = st.integers(0, 2 * DAY // MARK).map(lambda count: B + count * MARK)
ANY_WINDOW = st.none() | st.builds(lambda count, unit: f"{count}{unit}", st.integers(1, 400), st.sampled_from("mhd"))


KEY = PLAN.encode_key(("JFK", "UA"))


def times_of(rows):
    return [0] * len(rows)


def collected(*rows, plan=PLAN):
    return plan.collect(times_of(rows), rows)


def tiles_of(plan, events, batch_end=B, closed=None, query=None):
    """The tiles of the events at or after the batch end, as the stream makes them: one event at a time.

    With a closing time and a query they are those that a reader takes: large ones where they are closed.
    """
    layers = [{} for _ in plan.layers]
    for time, inputs in events:
        if time >= batch_end:
            for layer, size in enumerate(plan.layers):
                start = tile_start(time, size)
                ir = layers[layer].get(start, plan.new_ir())
                layers[layer][start] = plan.merge(ir, plan.collect([time], [inputs]))
    if query is None:
        return [Tile(start, plan.tile_ms, ir=ir) for start, ir in layers[0].items()]
    return [
        Tile(start, plan.layers[layer], ir=ir)
        for layer, first, last in plan.spans(batch_end, query, closed, plan.window_starts(query))
        for start, ir in layers[layer].items()
        if first <= start < last
    ]


def stored(tiles):
    return [PLAN.encode_tile(KEY, tile) for tile in tiles]


def answer(plan, events, query, batch_end=B, closed=None):
    batch = plan.decode_batch(KEY, plan.encode_batch(KEY, plan.batch_ir(events, batch_end)))
    tiles = tiles_of(plan, events, batch_end, closed, None if closed is None else query)
    stored = [plan.decode_tile(KEY, plan.encode_tile(KEY, tile)) for tile in tiles]
    return plan.finish(query, batch_end, batch, stored)


@given(EVENTS, MARKS)
@settings(max_examples=200, deadline=None)
def test_batch_and_tiles_answer_as_the_raw_events_do(events, query):
    assert answer(PLAN, events, query) == oracle.features(ROUTE, events, query)


@given(
    EVENTS, st.data(), st.lists(ANY_WINDOW, min_size=1, max_size=6, unique=True), st.integers(-72, 72), st.booleans()
)
@settings(max_examples=300, deadline=None)
def test_any_windows_batch_ends_and_layers_answer_as_the_raw_events_do(events, data, windows, hours, tiled):
    aggregation = Aggregation("average", "delay", tuple(windows))
    plan = compile_group_by(GroupBy("any", ROUTE.keys, ROUTE.inputs, (aggregation,), tiled=tiled))
    step = max(plan.tile_ms, HOUR)
    batch_end = (B + hours * HOUR) // step * step
    query = batch_end + data.draw(st.integers(0, 2 * DAY // plan.tile_ms)) * plan.tile_ms
    closed = batch_end + data.draw(st.integers(-DAY, 3 * DAY))
    expected = oracle.features(plan.group_by, events, query)
    assert answer(plan, events, query, batch_end) == expected
    assert answer(plan, events, query, batch_end, closed) == expected


@given(EVENTS, st.integers(0, 2 * DAY).map(lambda offset: B + offset))
@settings(max_examples=100, deadline=None)
def test_off_a_mark_the_tile_that_the_query_lies_in_counts_whole(events, query):
    as_tiles_see_them = [(time if time < B else tile_start(time, MARK), inputs) for time, inputs in events]
    assert answer(PLAN, events, query) == oracle.features(ROUTE, as_tiles_see_them, query)


@given(EVENTS, st.integers(0, 2 * DAY).map(lambda offset: B + offset))
@settings(max_examples=100, deadline=None)
def test_off_a_mark_a_query_about_now_is_exact(events, now):
    so_far = [(time, inputs) for time, inputs in events if time < now]
    assert answer(PLAN, so_far, now) == oracle.features(ROUTE, so_far, now)


@given(EVENTS, MARKS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_events_and_tiles_changes_no_byte_and_no_answer(events, query, random):
    shuffled = random.sample(events, len(events))
    one, other = PLAN.batch_ir(events, B), PLAN.batch_ir(shuffled, B)
    assert PLAN.encode_batch(KEY, one) == PLAN.encode_batch(KEY, other)
    tiles, others = tiles_of(PLAN, events), tiles_of(PLAN, shuffled)
    assert sorted(stored(tiles)) == sorted(stored(others))
    assert PLAN.finish(query, B, one, tiles) == PLAN.finish(query, B, other, random.sample(others, len(others)))


@given(st.lists(INPUTS, max_size=6), st.lists(INPUTS, max_size=6), st.lists(INPUTS, max_size=6))
def test_merging_irs_is_collecting_all_their_events(one, two, three):
    irs = [collected(*rows) for rows in (one, two, three)]
    whole = collected(*one, *two, *three)
    assert all(PLAN.merge(PLAN.merge(a, b), c) == whole for a, b, c in itertools.permutations(irs))
    assert PLAN.merge(irs[0], PLAN.merge(irs[1], irs[2])) == whole
    assert PLAN.merge(whole, PLAN.new_ir()) == whole


@given(EVENTS, MARKS)
@settings(max_examples=100, deadline=None)
def test_answering_changes_nothing_that_a_cache_holds(events, query):
    batch, tiles = PLAN.batch_ir(events, B), tiles_of(PLAN, events)
    before = PLAN.encode_batch(KEY, batch), stored(tiles)
    first = PLAN.finish(query, B, batch, tiles)
    assert PLAN.finish(query, B, batch, tiles) == first
    assert (PLAN.encode_batch(KEY, batch), stored(tiles)) == before


def test_irs_batches_and_tiles_refuse_to_be_changed():
    batch, tile = PLAN.batch_ir([(B - 1, (1.0, True, 1, "a"))], B), Tile(B, MARK, ir=PLAN.new_ir())
    with pytest.raises(TypeError):
        batch.columns[0][0] = 7
    for thing, name in ((batch, "columns"), (tile, "ir"), (tile, "version")):
        with pytest.raises(AttributeError):
            setattr(thing, name, ())


def test_a_key_of_many_events_is_collected_in_parts():
    events = [(B - 1 - number, (0.1, number % 2 == 0, number, str(number))) for number in range(10_000)]
    assert answer(PLAN, events, B) == oracle.features(ROUTE, events, B)


def test_an_event_at_exactly_the_batch_end_belongs_to_the_stream():
    at_the_end = [(B, (1.0, True, 1, "a"))]
    assert PLAN.batch_ir(at_the_end, B).segments == ()
    assert PLAN.finish(B + MARK, B, None, tiles_of(PLAN, at_the_end))["count_1h"] == 1
    assert PLAN.finish(B, B, None, tiles_of(PLAN, at_the_end))["count_1h"] is None


def test_a_late_event_of_the_batch_is_in_the_next_upload():
    events = [(B - HOUR, (1.0, True, 1, "a"))]
    late = [(B - DAY, (3.0, False, 2, "b"))]
    assert answer(PLAN, events + late, B)["delay_average"] == 2.0


def test_a_late_event_of_the_stream_amends_its_tile():
    tile = Tile(B, MARK, complete=True, ir=collected((1.0, None, None, None)))
    late = collected((3.0, None, None, None))
    amended = Tile(B, MARK, complete=True, version=1, ir=PLAN.merge(tile.ir, late))
    assert PLAN.finish(B + HOUR, B, None, [tile])["delay_average_1h"] == 1.0
    assert PLAN.finish(B + HOUR, B, None, [amended])["delay_average_1h"] == 2.0


def test_no_data_gives_none_for_every_feature():
    nothing = dict.fromkeys(PLAN.feature_names)
    assert PLAN.finish(B, B, None, []) == nothing
    assert PLAN.finish(B, B, PLAN.batch_ir([], B), []) == nothing
    assert list(PLAN.finish(B, B, None, [])) == list(ROUTE.feature_names)


def test_none_inputs_are_skipped_by_all_but_the_count_of_events():
    values = PLAN.finish(B, B, PLAN.batch_ir([(B - 1, (None, None, None, None))], B), [])
    assert values.pop("count_1h") == 1
    names = ("count_6h", "count_1d", "count_7d", "count_30d", "count")
    assert {name: value for name, value in values.items() if value is not None} == dict.fromkeys(names, 1)


def test_tiles_before_the_batch_end_are_left_out():
    events = [(B - MARK, (1.0, True, 1, "a"))]
    already_uploaded = tiles_of(PLAN, events, batch_end=B - DAY)
    assert PLAN.finish(B, B, PLAN.batch_ir(events, B), already_uploaded)["count_1h"] == 1


def test_merged_tiles_answer_windows_that_hold_them_whole_and_no_others():
    merged = Tile(B, size_ms=3 * MARK, ir=collected((1.0, True, 1, "a")))
    assert PLAN.finish(B + HOUR, B, None, [merged])["count_1h"] == 1
    with pytest.raises(DataError, match=str(B + MARK)):
        PLAN.finish(B + HOUR + MARK, B, None, [merged])


def test_overlapping_tiles_are_refused():
    with pytest.raises(DataError, match="overlaps"):
        PLAN.finish(B + HOUR, B, None, [Tile(B, MARK, ir=PLAN.new_ir()), Tile(B, MARK, version=1, ir=PLAN.new_ir())])


def test_a_query_before_the_batch_end_is_refused():
    with pytest.raises(OptionError, match=f"query_ms {B - 1} .* batch end {B}"):
        PLAN.finish(B - 1, B, None, [])


def test_a_batch_end_off_the_hour_is_refused_with_the_hour_before_it():
    for ask in (lambda: PLAN.batch_ir([], B + 1), lambda: PLAN.finish(B + 2, B + 1, None, [])):
        with pytest.raises(OptionError, match=str(B)):
            ask()


def test_a_batch_of_another_batch_end_is_refused():
    with pytest.raises(DataError, match=str(B - DAY)):
        PLAN.finish(B, B, PLAN.batch_ir([], B - DAY), [])


def test_nothing_is_stale_within_two_days():
    assert all(PLAN.stale_features(B + offset, B) == () for offset in range(0, 2 * DAY + 1, HOUR))


def test_after_two_days_the_windows_that_still_need_the_batch_are_named():
    stale = PLAN.stale_features(B + 3 * DAY, B)
    assert stale == (
        "count_7d",
        "delay_average_7d",
        "delay_max_7d",
        "distance_sum_7d",
        "tail_min_7d",
        "count_30d",
        "delay_average_30d",
        "delay_max_30d",
        "late_average_30d",
    )


@given(EVENTS, st.integers(0, 40 * DAY // MARK).map(lambda count: B + count * MARK))
@settings(max_examples=100, deadline=None)
def test_what_is_not_stale_is_exact_at_any_time_and_what_is_stale_reaches_back_further(events, query):
    stale = PLAN.stale_features(query, B)
    given, expected = answer(PLAN, events, query), oracle.features(ROUTE, events, query)
    for name in PLAN.feature_names:
        if name not in stale:
            assert given[name] == expected[name]
        elif name.startswith("count"):
            assert (given[name] or 0) >= (expected[name] or 0)


def test_a_group_by_that_only_counts_needs_no_inputs():
    plan = compile_group_by(GroupBy("visits", ROUTE.keys, (), (Aggregation("count", windows=("1h", None)),)))
    assert answer(plan, [(B - DAY, ()), (B, ())], B + MARK) == {"count_1h": 1, "count": 2}


def test_aggregations_share_their_cells():
    group_by = GroupBy(
        "shared",
        ROUTE.keys,
        ROUTE.inputs,
        tuple(Aggregation(operation, "delay") for operation in ("average", "sum", "count")),
    )
    assert len(compile_group_by(group_by).new_ir()) == 2


def test_a_plan_travels_by_pickle():
    copy = pickle.loads(pickle.dumps(PLAN))
    assert (copy.group_by, copy.definition_hash) == (PLAN.group_by, PLAN.definition_hash)


def test_a_plan_explains_itself():
    told = PLAN.explain()
    for part in ("route", PLAN.definition_hash, "origin string", "sum:double:delay", "0: count", "hop 1d"):
        assert part in told
    assert all(name in told for name in PLAN.feature_names)

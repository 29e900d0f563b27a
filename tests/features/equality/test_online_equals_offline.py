"""Online equals offline equals the rule: for random definitions, events, splits, batch ends and queries."""

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.features import Aggregation, EntitySource, Field, GroupBy, compile_group_by
from millpond.kv import MemoryStore
from millpond.serving import Fetcher
from tests.features.equality import rule
from tests.features.equality.definitions import WHOLE_DAYS, group_bys, inputs_of
from tests.features.equality.offline import changing_training_set, training_set
from tests.features.equality.online import Online
from tests.features.oracle import DAY, HOUR, MINUTE, is_in_window
from tests.serving.world import upload_values

MIDNIGHT = 16_000 * DAY
USERS = (("a", 1), ("b", 2), ("a", 2))
CACHES = ({"enable_fetcher_caching": True}, {"fetcher_cache_size": 1, "fetcher_tile_cache_size": 1}, {})
HOPS = (MINUTE, 5 * MINUTE, HOUR, DAY)


def cases(usual):
    """How many cases are drawn: more under ``--hypothesis-profile=soak``."""
    return usual * settings().max_examples // 100


def moments(first_ms, last_ms):
    """Times of a span, many of them at the edges of hops."""
    near = st.builds(
        lambda at, hop, by: min(max(at // hop * hop + by, first_ms), last_ms),
        st.integers(first_ms, last_ms),
        st.sampled_from(HOPS),
        st.integers(-1, 1),
    )
    return near | st.integers(first_ms, last_ms)


def batch_ends(plan):
    step_ms = max(plan.tile_ms, HOUR)
    return st.sampled_from((MIDNIGHT, MIDNIGHT, MIDNIGHT + 7 * HOUR, MIDNIGHT + 23 * HOUR)).map(
        lambda end: end // step_ms * step_ms
    )


@st.composite
def histories(draw, tiled):
    """A definition, a batch end, past events, and micro-batches: events in partitions, then a watermark."""
    group_by = draw(group_bys(tiled=tiled))
    plan = compile_group_by(group_by)
    batch_end = draw(batch_ends(plan))
    inputs, users = inputs_of(group_by), st.sampled_from(USERS)
    past = draw(st.lists(st.tuples(users, moments(batch_end - 45 * DAY, batch_end - 1), inputs), max_size=10))
    batches, watermark = [], batch_end
    for _ in range(draw(st.integers(1, 4))):
        now = watermark + draw(st.sampled_from((0, MINUTE, HOUR, 9 * HOUR)))
        events = draw(
            st.lists(
                st.tuples(users, moments(batch_end, now) | moments(max(batch_end, watermark - HOUR), now), inputs),
                max_size=7,
            )
        )
        parts = draw(st.integers(1, 3))
        watermark = min(
            watermark + draw(st.sampled_from((0, 1, MINUTE, HOUR, 5 * HOUR, 15 * HOUR))), batch_end + 2 * DAY
        )
        batches.append(([events[n::parts] for n in range(parts)], watermark))
    return group_by, batch_end, past, batches


@given(data=st.data(), tiled=st.booleans())
@settings(max_examples=cases(120), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_fetch_is_the_training_set_is_the_rule(data, tiled):
    group_by, batch_end, past, batches = data.draw(histories(tiled))
    online = Online(group_by, batch_end, data.draw(st.integers(1, 3)))
    online.upload({user: [(time, inputs) for own, time, inputs in past if own == user] for user in USERS})
    fetcher = Fetcher(online.store, [online.plan], **data.draw(st.sampled_from(CACHES)), background=lambda work: work())
    arrived = list(past)
    for partitions, watermark in batches:
        # What lies before the batch end is in the upload already; what has no key belongs to nobody.
        left_out = [(*event, False) for event in past[:2]] + [
            ((None, 1), batch_end, (None,) * len(group_by.inputs), False)
        ]
        rows = [[(*event, False) for event in events] for events in partitions]
        online.micro_batch([*rows, left_out], watermark)
        arrived += [event for events in partitions for event in events]
        if data.draw(st.booleans()):
            fetcher.refresh()
        queries = data.draw(
            st.lists(st.tuples(st.sampled_from(USERS), moments(batch_end, batch_end + 3 * DAY)), min_size=1, max_size=3)
        )
        check(group_by, online.plan, fetcher, batch_end, arrived, queries)


def check(group_by, plan, fetcher, batch_end, events, queries):
    offline = training_set(group_by, events, queries)
    for (user, query), of_training in zip(queries, offline, strict=True):
        own = [(time, inputs) for of_user, time, inputs in events if of_user == user]
        assert rule.differences(group_by, of_training, rule.answers(group_by, own, query)) == {}
        sees_until = -(-query // plan.tile_ms) * plan.tile_ms
        stale = set(plan.stale_features(query, batch_end))
        expected = rule.answers(group_by, own, query, sees_until_ms=sees_until)
        expected = {name: value for name, value in expected.items() if name not in stale}
        answer = fetcher.fetch(group_by.name, dict(zip(("user", "shop"), user, strict=True)), query)
        assert rule.differences(group_by, answer.features, expected) == {}
        assert set(answer.errors) == stale
        if group_by.tiled is False or not any(query <= time < sees_until for time, _ in own):
            kept = {name: value for name, value in of_training.items() if name not in stale}
            assert rule.differences(group_by, answer.features, kept) == {}


@given(data=st.data(), tiled=st.booleans())
@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_rows_that_were_taken_away_are_subtracted_by_what_can_delete_and_ignored_by_the_rest(data, tiled):
    group_by, batch_end, past, batches = data.draw(histories(tiled))
    online = Online(group_by, batch_end)
    online.upload({user: [(time, inputs) for own, time, inputs in past if own == user] for user in USERS})
    fetcher = Fetcher(online.store, [online.plan], **data.draw(st.sampled_from(CACHES)), background=lambda work: work())
    arrived, gone = list(past), []
    for partitions, watermark in batches:
        rows = [[(*event, False) for event in events] for events in partitions]
        came = [event for events in partitions for event in events]
        arrived += came
        standing = [event for event in arrived if event[1] >= batch_end]
        for event in gone:
            standing.remove(event)
        now_gone = [event for event in standing if data.draw(st.integers(0, 2)) == 0]
        gone += now_gone
        online.micro_batch([*rows, [(*event, True) for event in now_gone]], watermark)
        fetcher.refresh()
    user, query = data.draw(st.tuples(st.sampled_from(USERS), moments(batch_end, batch_end + 2 * DAY)))
    query = -(-query // online.plan.tile_ms) * online.plan.tile_ms
    own, of_gone = ([(time, inputs) for of_user, time, inputs in rows if of_user == user] for rows in (arrived, gone))
    expected = rule.answers(group_by, own, query, gone=of_gone)
    answer = fetcher.fetch(group_by.name, dict(zip(("user", "shop"), user, strict=True)), query)
    stale = set(online.plan.stale_features(query, batch_end))
    assert (
        rule.differences(
            group_by, answer.features, {name: value for name, value in expected.items() if name not in stale}
        )
        == {}
    )
    deleting = {feature.name for feature in online.plan.cells.features if feature.deletes}
    changes = [(*event[:1], None, *event[1:], False) for event in arrived]
    changes += [(event[0], None, *event[1:], True) for event in gone]
    (offline,) = changing_training_set(group_by, changes, [(user, query)])
    assert (
        rule.differences(
            group_by,
            {name: value for name, value in offline.items() if name in deleting},
            {name: value for name, value in expected.items() if name in deleting},
        )
        == {}
    )


@given(data=st.data(), tiled=st.booleans())
@settings(max_examples=cases(50), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_features_of_added_cells_are_unknown_as_long_as_their_windows_hold_older_tiles(data, tiled):
    # A count over a short window and one over all time fix the tiles, so all definitions are of one generation.
    fixed = Aggregation("count", windows=("7m", None))
    drawn = data.draw(group_bys(tiled=tiled))
    others = [one for one in drawn.aggregations if not set(one.feature_names) & set(fixed.feature_names)]
    grown = replace(drawn, aggregations=(fixed, *others))
    small = replace(drawn, aggregations=(fixed, *others[: data.draw(st.integers(0, len(others)))]))
    plan, before = compile_group_by(grown), compile_group_by(small)
    assert plan.generation == before.generation
    known = {cell.id for cell in before.cells.cells}
    added = {
        feature.name: feature.window
        for feature in plan.cells.features
        if any(plan.cells.cells[place].id not in known for place in feature.positions)
    }
    batch_end = data.draw(batch_ends(plan))
    events = st.tuples(st.sampled_from(USERS), moments(batch_end, batch_end + 20 * HOUR), inputs_of(grown))
    online = Online(small, batch_end)
    parts = [data.draw(st.lists(events, max_size=6)) for _ in range(3)]
    watermarks = sorted(data.draw(st.tuples(*[moments(batch_end, batch_end + 20 * HOUR)] * 3)))
    online.micro_batch([[(*event, False) for event in parts[0]]], watermarks[0])
    online.restart(grown)
    online.upload({})
    fetcher = Fetcher(online.store, [plan], **data.draw(st.sampled_from(CACHES)), background=lambda work: work())
    for part, watermark in zip(parts[1:], watermarks[1:], strict=True):
        online.micro_batch([[(*event, False) for event in part]], watermark)
        fetcher.refresh()
        user, query = data.draw(st.tuples(st.sampled_from(USERS), moments(batch_end, batch_end + 2 * DAY)))
        sees_until = -(-query // plan.tile_ms) * plan.tile_ms
        arrived = [*parts[0], *parts[1], *(part if part is parts[2] else ())]
        own = [(time, inputs) for of_user, time, inputs in arrived if of_user == user]
        older = [min(time, query - 1) for of_user, time, _ in parts[0] if of_user == user and time < sees_until]
        unknown = {name for name, window in added.items() if any(is_in_window(time, query, window) for time in older)}
        expected = rule.answers(grown, own, query, sees_until_ms=sees_until)
        answer = fetcher.fetch(grown.name, dict(zip(("user", "shop"), user, strict=True)), query)
        assert set(answer.errors) == unknown
        known_values = {name: value for name, value in expected.items() if name not in unknown}
        assert rule.differences(grown, answer.features, known_values) == {}


class Entity:
    """A table whose rows come and go: what the first upload has, and the changes since.

    A row is (user, own time, inputs), a change (mutation time, row, is taken away).
    """

    def __init__(self, past):
        self.past = past
        self.changes = []

    def standing(self, before_ms):
        """The rows of the table as of a time."""
        rows = [*self.past, *(row for at, row, is_gone in self.changes if at < before_ms and not is_gone)]
        for at, row, is_gone in self.changes:
            if at < before_ms and is_gone:
                rows.remove(row)
        return rows

    def upload(self, online, batch_end):
        """Upload the snapshot as of a batch end."""
        rows = self.standing(batch_end)
        of_user = {user: [(time, inputs) for own, time, inputs in rows if own == user] for user in USERS}
        online.upload(of_user, batch_end)

    def answers(self, group_by, user, query, batch_end, sees_until):
        """What the rule says: what cannot delete begins with the rows of the batch, and only gains since then."""
        changed = [(row, gone) for at, row, gone in self.changes if batch_end <= at < sees_until and row[0] == user]
        came = [row[1:] for row in self.standing(batch_end) if row[0] == user]
        came += [row[1:] for row, is_gone in changed if not is_gone]
        gone = [row[1:] for row, is_gone in changed if is_gone]
        return rule.answers(group_by, came, query, gone=gone, sees_until_ms=sees_until)

    def trained(self, group_by, user, query):
        """What the training set says."""
        changes = [(user, None, *row, False) for user, *row in self.past]
        changes += [(user, at, *row, is_gone) for at, (user, *row), is_gone in self.changes]
        return changing_training_set(group_by, changes, [(user, query)])[0]


@st.composite
def changes_of(draw, entity, inputs, first_ms, last_ms):
    """Rows that come, also with an own time long ago, rows that go, and rows that change."""
    found = []
    for _ in range(draw(st.integers(0, 5))):
        at = draw(moments(first_ms, last_ms))
        kept = entity.standing(at)
        for later, row, is_gone in entity.changes:
            if later >= at and is_gone and row in kept:
                kept.remove(row)
        before = draw(st.sampled_from(kept)) if kept and draw(st.booleans()) else None
        if before is not None:
            entity.changes.append((at, before, True))
            found.append(entity.changes[-1])
        if before is None or draw(st.booleans()):
            own = draw(moments(first_ms - 45 * DAY, at)) if before is None or draw(st.booleans()) else before[1]
            user = draw(st.sampled_from(USERS)) if before is None else before[0]
            entity.changes.append((at, (user, own, draw(inputs)), False))
            found.append(entity.changes[-1])
    return found


@given(data=st.data(), tiled=st.booleans())
@settings(max_examples=cases(80), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_changes_of_an_entity_are_the_training_set_are_the_rule(data, tiled):
    group_by = data.draw(group_bys(tiled=tiled, sources=(EntitySource("rows", "changes"),)))
    plan = compile_group_by(group_by)
    batch_end = data.draw(batch_ends(plan))
    inputs, users = inputs_of(group_by), st.sampled_from(USERS)
    past = data.draw(st.lists(st.tuples(users, moments(batch_end - 45 * DAY, batch_end - 1), inputs), max_size=8))
    entity = Entity(past)
    online = Online(group_by, batch_end, data.draw(st.integers(1, 2)))
    entity.upload(online, batch_end)
    fetcher = Fetcher(online.store, [online.plan], **data.draw(st.sampled_from(CACHES)), background=lambda work: work())
    watermark = batch_end
    for _ in range(data.draw(st.integers(1, 3))):
        now = watermark + data.draw(st.sampled_from((MINUTE, HOUR, 9 * HOUR)))
        changes = data.draw(changes_of(entity, inputs, batch_end, now))
        rows = [(user, at, values, is_gone, own) for at, (user, own, values), is_gone in changes]
        online.micro_batch([rows[::2], rows[1::2]], watermark)
        watermark = max(batch_end, now - data.draw(st.sampled_from((0, MINUTE, HOUR))))
        if data.draw(st.integers(0, 3)) == 0 and watermark > batch_end:
            step_ms = max(plan.tile_ms, HOUR)
            batch_end = max(batch_end, watermark // step_ms * step_ms)
            entity.upload(online, batch_end)
        fetcher.refresh()
        user, query = data.draw(st.tuples(users, moments(batch_end, batch_end + 2 * DAY)))
        expected = entity.answers(group_by, user, query, batch_end, -(-query // plan.tile_ms) * plan.tile_ms)
        answer = fetcher.fetch(group_by.name, dict(zip(("user", "shop"), user, strict=True)), query)
        assert answer.errors == {}
        assert rule.differences(group_by, answer.features, expected) == {}
        exact = entity.answers(group_by, user, query, batch_end, query)
        # What cannot delete forgets the rows that went at each upload; the training set does so at each midnight.
        same_day = batch_end % DAY == 0 and query < batch_end + DAY
        kept = {one.name for one in plan.cells.features if one.deletes or same_day}
        trained = {name: value for name, value in entity.trained(group_by, user, query).items() if name in kept}
        assert rule.differences(group_by, trained, {name: exact[name] for name in kept}) == {}


@given(data=st.data())
@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_snapshot_is_the_training_set_as_of_the_batch_end_is_the_rule(data):
    group_by = data.draw(group_bys(WHOLE_DAYS, accuracy="snapshot"))
    plan, store = compile_group_by(group_by), MemoryStore()
    batch_end = data.draw(batch_ends(plan))
    times = moments(batch_end - 45 * DAY, batch_end + DAY)
    events = data.draw(st.lists(st.tuples(st.sampled_from(USERS), times, inputs_of(group_by)), max_size=15))
    values = {}
    for user in USERS:
        own = [(time, inputs) for of_user, time, inputs in events if of_user == user]
        answer = plan.finish(batch_end, batch_end, plan.batch_ir(own, batch_end), [])
        values[user] = [answer[name] for name in plan.feature_names]
    upload_values(store, plan, values, batch_end)
    fetcher = Fetcher(store, [plan], **data.draw(st.sampled_from(CACHES)), background=lambda work: work())
    offline = training_set(group_by, events, [(user, batch_end) for user in USERS])
    for user, of_training in zip(USERS, offline, strict=True):
        own = [(time, inputs) for of_user, time, inputs in events if of_user == user]
        expected = rule.answers(group_by, own, batch_end)
        assert rule.differences(group_by, of_training, expected) == {}
        query = data.draw(moments(batch_end, batch_end + 2 * DAY))
        answer = fetcher.fetch("any", dict(zip(("user", "shop"), user, strict=True)), query)
        assert rule.differences(group_by, answer.features, expected) == {}


@given(seed=st.integers(0, 1 << 32), tiled=st.booleans())
@settings(max_examples=cases(4))
def test_sketches_of_many_values_stay_within_their_bounds_online_and_offline(seed, tiled):
    random = Random(seed)
    numbers, names = Field("x", "double"), Field("name", "string")
    group_by = GroupBy(
        "any",
        (Field("user", "string"),),
        (numbers, names),
        (
            Aggregation("approx_percentile", "x", ("1d", None), percentiles=(0.0, 0.1, 0.5, 0.99, 1.0)),
            Aggregation("approx_unique_count", "name", ("1d", None)),
            Aggregation("approx_histogram_k", "name", ("1d", None), k=3),
        ),
        tiled=tiled,
    )
    often = ["a"] * 900 + ["b"] * 600 + ["c"] * 400

    def events(first_ms, last_ms):
        found = often + [f"n{random.randrange(5_000)}" for _ in range(1_500)]
        random.shuffle(found)
        return [(random.randrange(first_ms, last_ms), (random.gauss(0, 9), name)) for name in found]

    past, streamed = events(MIDNIGHT - 3 * DAY, MIDNIGHT), events(MIDNIGHT, MIDNIGHT + 5 * HOUR)
    online = Online(group_by, MIDNIGHT)
    online.upload({("a",): past})
    for part in range(3):
        rows = [(("a",), *event, False) for event in streamed[part::3]]
        online.micro_batch([rows[::2], rows[1::2]], MIDNIGHT + part * 2 * HOUR)
    query = MIDNIGHT + 6 * HOUR
    of_fetch = Fetcher(online.store, [online.plan]).fetch("any", {"user": "a"}, query).features
    (of_training,) = training_set(group_by, [(("a",), *event) for event in past + streamed], [(("a",), query)])
    for window in ("1d", None):
        held = [inputs for time, inputs in past + streamed if is_in_window(time, query, window)]
        after = f"_{window}" if window else ""
        for found in (of_fetch, of_training):
            check_percentiles(found[f"x_approx_percentile{after}"], sorted(x for x, _ in held))
            distinct = len({name for _, name in held})
            assert abs(found[f"name_approx_unique_count{after}"] - distinct) <= 4 * rule.UNIQUE_ERROR * distinct
            counts = Counter(name for _, name in held)
            assert list(found[f"name_approx_histogram3{after}"]) == ["a", "b", "c"]
            for name, count in found[f"name_approx_histogram3{after}"].items():
                assert abs(count - counts[name]) <= 3.5 / 256 * len(held)


def check_percentiles(found, values):
    """The rank of each answer lies within twice the bound that holds for 99 of 100."""
    for percentile, value in zip((0.0, 0.1, 0.5, 0.99, 1.0), found, strict=True):
        low, high = bisect_left(values, value) / len(values), bisect_right(values, value) / len(values)
        assert low - 2 * 0.0133 <= percentile <= high + 2 * 0.0133

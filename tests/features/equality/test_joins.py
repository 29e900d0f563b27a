"""A Join is fetched as the rule says, for random parts, key mappings, prefixes, derivations and contexts."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.features import compile_group_by
from millpond.kv import MemoryStore
from millpond.serving import Fetcher
from tests.features.equality.joins import drawn_joins, requests_of
from tests.features.equality.online import land
from tests.features.equality.test_online_equals_offline import CACHES, MIDNIGHT, batch_ends, cases, moments
from tests.features.oracle import DAY


@given(data=st.data())
@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_join_is_fetched_as_the_rule_says(data):
    drawn = data.draw(drawn_joins(moments(MIDNIGHT - 45 * DAY, MIDNIGHT + DAY - 1)))
    store, ends, tiles = MemoryStore(), {}, {}
    for part in drawn.join.parts:
        name = part.group_by.name
        ends[name] = data.draw(batch_ends(compile_group_by(part.group_by)))
        watermark = data.draw(moments(MIDNIGHT, MIDNIGHT + DAY))
        tiles[name] = land(store, part.group_by, ends[name], drawn.events[name], watermark).tile_ms
    fetcher = Fetcher(store, [drawn.join], **data.draw(st.sampled_from(CACHES)), background=lambda work: work())
    for _ in range(2):
        request = data.draw(requests_of(drawn.join))
        query = data.draw(moments(max(ends.values()), MIDNIGHT + DAY))
        keys = {name: value for name, value in request.items() if name != "amount"}
        answer = fetcher.fetch("joined", keys, query, context={"amount": request["amount"]})
        assert answer.errors == {}
        seen = {name: -(-query // size) * size for name, size in tiles.items()}
        expected = drawn.answers(request, query, ends=ends, sees_until=seen)
        assert drawn.differences(answer.features, expected) == {}

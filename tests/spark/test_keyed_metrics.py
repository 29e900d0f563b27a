"""The sums of a keyed operator: by shard they are those of the whole, whatever order the shards report in."""

from hypothesis import given
from hypothesis import strategies as st

from millpond.spark.spec.metrics import COUNTERS, BatchMetrics, KeyedMetrics, ShardDetail

BATCHES = st.lists(
    st.builds(
        BatchMetrics,
        shard=st.integers(0, 3),
        rows=st.integers(0, 9),
        late_rows=st.integers(0, 9),
        state_rows=st.integers(0, 9),
        store_seconds=st.integers(0, 9).map(float),
        detail=st.builds(ShardDetail, hot_groups=st.just(((1, 2),))),
    ),
    max_size=20,
)


@given(BATCHES)
def test_the_shards_add_up_to_the_whole_and_keep_their_newest_levels(batches):
    total = KeyedMetrics()
    for stage, batch in enumerate(batches):
        total += KeyedMetrics.of(batch, stage, "query")
    for name in COUNTERS:
        if name != "batches":
            assert sum(getattr(shard, name) for shard in total.shards.values()) == getattr(total, name)
    newest = {batch.shard: batch for batch in batches}
    assert {shard: batch.state_rows for shard, batch in total.shards.items()} == {
        shard: batch.state_rows for shard, batch in newest.items()
    }
    assert total.query == ("query" if batches else "")

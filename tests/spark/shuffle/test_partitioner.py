"""Routing keys of shards: one for each partition, by Spark's own hash."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.spark.shuffle.partitioner import partition_of, routing_keys


@given(st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_every_shard_has_the_smallest_routing_key_of_its_own_partition(shards):
    found = routing_keys(shards)
    assert [partition_of(routing_key, shards) for routing_key in found] == list(range(shards))
    for shard in {0, shards // 2, shards - 1}:
        assert all(partition_of(smaller, shards) != shard for smaller in range(found[shard]))


def test_an_operator_without_shards_has_no_routing_keys():
    with pytest.raises(OptionError, match="shards is 0"):
        routing_keys(0)

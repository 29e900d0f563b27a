"""The estimate of an entry's bytes sees what it says it sees."""

from dataclasses import dataclass

import numpy as np

from millpond.cache import deep_size, new_cache


@dataclass(slots=True)
class Slotted:
    payload: bytes


@dataclass
class Open:
    payload: bytes


def test_payloads_are_found_in_containers_and_instances():
    payload = 10_000
    for holder in (
        [bytes(payload)],
        {"k": bytes(payload)},
        (bytes(payload),),
        Slotted(bytes(payload)),
        Open(bytes(payload)),
    ):
        assert payload < deep_size("k", holder) < payload + 2_000


def test_an_array_weighs_its_buffer():
    assert deep_size("k", np.zeros(1_000)) >= 8_000
    assert deep_size("k", np.zeros(1_000)[::2]) >= 4_000


def test_an_object_that_holds_itself_is_weighed_once():
    circle = []
    circle.append(circle)
    assert deep_size("k", circle) < 1_000


def test_a_cache_bounded_in_bytes_weighs_by_itself():
    cache = new_cache("c", max_bytes=100_000)
    for key in range(100):
        cache.put(key, bytes(10_000))
    assert 8 <= len(cache) <= 10
    assert cache.stats().bytes <= 100_000

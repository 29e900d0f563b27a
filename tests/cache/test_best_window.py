"""The window is as large as the load wants it: small for frequency, large for recency."""

import random
from collections import deque

from millpond.cache.best_window import WINDOWS, BestWindow
from millpond.cache.miniature import LEAST_HASH
from millpond.cache.tinylfu import TinyLfuOrder

ENTRIES = 1_000


def chosen(keys):
    windows = BestWindow()
    windows.choose(ENTRIES)
    for key in keys:
        spread = hash((key,))
        if spread < windows.limit:
            windows.use(spread)
    return windows.choose(ENTRIES)


def test_keys_of_lasting_popularity_want_a_small_window():
    generator = random.Random(1)
    names = [generator.getrandbits(60) for _ in range(20_000)]
    assert chosen(generator.choices(names, [1 / rank for rank in range(1, 20_001)], k=200_000)) <= 0.2


def test_keys_that_come_again_soon_and_then_never_want_a_large_window():
    generator = random.Random(1)
    recent = deque((generator.getrandbits(60) for _ in range(700)), maxlen=700)
    keys = []
    for _ in range(100_000):
        if generator.random() < 0.3:
            recent.append(generator.getrandbits(60))
        keys.append(generator.choice(recent))
    assert chosen(keys) >= 0.5


def test_no_key_is_wanted_after_choices_that_confirm_the_present_window_the_longer_the_more_there_were():
    windows = BestWindow()
    windows.choose(ENTRIES)
    sampled = windows.limit
    first = windows.choose(ENTRIES)
    for rests in (0, 1, 1, 2, 2, 3, 3, 3, 3):
        assert windows.choose(ENTRIES) == first
        for _ in range(rests):
            assert windows.limit == LEAST_HASH
            assert windows.choose(ENTRIES) is None
        assert windows.limit == sampled


def test_a_choice_of_another_window_ends_the_rests():
    windows = BestWindow()
    windows.choose(ENTRIES)
    while windows.limit > LEAST_HASH:
        windows.choose(ENTRIES)
    while windows.limit == LEAST_HASH:
        windows.choose(ENTRIES)
    windows._hits[-1] = 1_000.0
    assert windows.choose(ENTRIES) == WINDOWS[-1]
    assert windows.limit > LEAST_HASH


def test_a_cache_that_grew_much_while_its_miniatures_rested_is_tried_anew():
    windows = BestWindow()
    for _ in range(4):
        windows.choose(ENTRIES)
    assert windows.limit == LEAST_HASH
    assert windows.choose(100 * ENTRIES) is None
    assert windows.limit > LEAST_HASH


def test_a_small_cache_keeps_the_window_it_has():
    windows = BestWindow()
    assert windows.choose(100) is None
    assert windows.choose(100) is None


def test_a_cache_of_another_size_is_tried_anew():
    windows = BestWindow()
    assert windows.choose(1_000) is None
    assert windows.choose(1_500) in WINDOWS
    before = windows.limit
    assert windows.choose(100_000) is None
    assert windows.limit < before


def test_the_order_takes_the_share_that_was_chosen():
    class Always:
        limit = -(1 << 63)

        def use(self, spread):
            raise AssertionError("no key is wanted")

        def choose(self, entries):
            assert entries == 100
            return 0.9

    order = TinyLfuOrder(100, None, windows=Always())
    for key in range(95):
        order.added(key, 0)
    assert len(order._window.weights) == 90

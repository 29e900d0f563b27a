"""Every form of the cache, over every bound, does what a plain list would do."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.cache import MISSING, Bounds, new_cache

KEYS = st.one_of(st.integers(0, 12), st.none())
VALUES = st.one_of(st.none(), st.integers(0, 9))


def weigh(key, value):
    return value or 1


class PlainModel:
    """The oracle: it looks at every entry of [key, value, weight, written_ms, used_ms], coldest first."""

    def __init__(self, max_entries, max_bytes, after_access_ms, after_write_ms, weigher):
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.after_access_ms = after_access_ms
        self.after_write_ms = after_write_ms
        self.weigher = weigher
        self.entries = []
        self.evicted = []
        self.hits = self.misses = 0

    def sweep(self, now_ms):
        for entry in list(self.entries):
            key, value, _, written_ms, used_ms = entry
            too_old = self.after_write_ms is not None and now_ms - written_ms >= self.after_write_ms
            too_idle = self.after_access_ms is not None and now_ms - used_ms >= self.after_access_ms
            if too_old or too_idle:
                self.entries.remove(entry)
                self.evicted.append((key, value, "expired"))

    def find(self, key):
        return next((entry for entry in self.entries if entry[0] == key), None)

    def get(self, key, default, now_ms):
        self.sweep(now_ms)
        entry = self.find(key)
        if entry is None:
            self.misses += 1
            return default
        self.hits += 1
        self.entries.remove(entry)
        self.entries.append(entry)
        entry[4] = now_ms
        return entry[1]

    def peek(self, key, default, now_ms):
        self.sweep(now_ms)
        entry = self.find(key)
        return default if entry is None else entry[1]

    def put(self, key, value, now_ms):
        self.sweep(now_ms)
        entry = self.find(key)
        if entry is not None:
            self.entries.remove(entry)
        weight = self.weigher(key, value)
        if self.max_bytes is not None and weight > self.max_bytes:
            self.evicted.append((key, value, "size"))
            return
        self.entries.append([key, value, weight, now_ms, now_ms])
        while self.is_over():
            gone = self.entries.pop(0)
            self.evicted.append((gone[0], gone[1], "size"))

    def resize(self, max_entries, max_bytes, now_ms):
        self.sweep(now_ms)
        self.max_entries, self.max_bytes = max_entries, max_bytes
        while self.is_over():
            gone = self.entries.pop(0)
            self.evicted.append((gone[0], gone[1], "size"))

    def is_over(self):
        too_many = self.max_entries is not None and len(self.entries) > self.max_entries
        return too_many or (self.max_bytes is not None and self.bytes() > self.max_bytes)

    def bytes(self):
        return sum(entry[2] for entry in self.entries)

    def invalidate(self, key, now_ms):
        entry = self.find(key)
        if entry is not None:
            self.entries.remove(entry)

    def clear(self):
        self.entries.clear()

    def items(self):
        return [(entry[0], entry[1]) for entry in self.entries]


class LruMatchesAPlainList(RuleBasedStateMachine):
    @initialize(
        max_entries=st.one_of(st.none(), st.integers(0, 8)),
        max_bytes=st.one_of(st.none(), st.integers(0, 25)),
        after_access_ms=st.one_of(st.none(), st.integers(1, 20)),
        after_write_ms=st.one_of(st.none(), st.integers(1, 20)),
        shared=st.booleans(),
    )
    def open(self, max_entries, max_bytes, after_access_ms, after_write_ms, shared):
        self.now_ms = 0
        self.evicted = []
        if max_entries is max_bytes is after_access_ms is after_write_ms is None:
            max_entries = 4
        self.cache = new_cache(
            "model",
            max_entries=max_entries,
            max_bytes=max_bytes,
            weigher=None if max_bytes is None else weigh,
            expire_after_access_ms=after_access_ms,
            expire_after_write_ms=after_write_ms,
            on_evict=lambda *gone: self.evicted.append(gone),
            clock=lambda: self.now_ms,
            shared=shared,
        )
        self.model = PlainModel(max_entries, max_bytes, after_access_ms, after_write_ms, weigh)

    @rule(key=KEYS)
    def get(self, key):
        assert self.cache.get(key, MISSING) is self.model.get(key, MISSING, self.now_ms)

    @rule(key=KEYS)
    def peek(self, key):
        assert self.cache.peek(key, MISSING) is self.model.peek(key, MISSING, self.now_ms)

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.cache.put(key, value)
        self.model.put(key, value, self.now_ms)

    @rule(key=KEYS, value=VALUES)
    def load(self, key, value):
        expected = self.model.get(key, MISSING, self.now_ms)
        if expected is MISSING:
            self.model.put(key, value, self.now_ms)
            expected = value
        assert self.cache.get_or_load(key, lambda _: value) is expected

    @rule(key=KEYS)
    def fail_to_load(self, key):
        try:
            value = self.cache.get_or_load(key, lambda _: 1 // 0)
        except ZeroDivisionError:
            value = MISSING
        assert value is self.model.get(key, MISSING, self.now_ms)

    @rule(key=KEYS)
    def invalidate(self, key):
        self.cache.invalidate(key)
        self.model.invalidate(key, self.now_ms)

    @rule()
    def clear(self):
        self.cache.clear()
        self.model.clear()

    @rule(max_entries=st.integers(0, 8), max_bytes=st.integers(0, 25))
    def resize(self, max_entries, max_bytes):
        weighs = self.model.max_bytes is not None
        self.cache.resize(Bounds(max_entries, max_bytes if weighs else None))
        self.model.resize(max_entries, max_bytes if weighs else None, self.now_ms)

    @rule(passed_ms=st.integers(1, 12))
    def move_the_clock(self, passed_ms):
        self.now_ms += passed_ms

    @invariant()
    def both_hold_and_told_the_same(self):
        if not hasattr(self, "cache"):
            return
        self.model.sweep(self.now_ms)
        assert list(self.cache.items()) == self.model.items()
        stats = self.cache.stats()
        assert sorted(map(repr, self.evicted)) == sorted(map(repr, self.model.evicted))
        assert (stats.hits, stats.misses) == (self.model.hits, self.model.misses)
        assert stats.entries == len(self.cache) == len(self.model.entries)
        assert stats.bytes in (None, self.model.bytes())
        assert stats.evictions + stats.expirations == len(self.evicted)


class TinyLfuKeepsItsPromises(RuleBasedStateMachine):
    """Which keys stay is the policy's choice; that none is lost or invented, and no bound broken, is not."""

    @initialize(
        max_entries=st.one_of(st.none(), st.integers(0, 12)),
        max_bytes=st.integers(0, 40),
        after_write_ms=st.one_of(st.none(), st.integers(1, 30)),
    )
    def open(self, max_entries, max_bytes, after_write_ms):
        self.now_ms = 0
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self.last_put = {}
        self.cache = new_cache(
            "model",
            policy="w-tinylfu",
            max_entries=max_entries,
            max_bytes=max_bytes,
            weigher=weigh,
            expire_after_write_ms=after_write_ms,
            on_evict=self.gone,
            clock=lambda: self.now_ms,
        )

    def gone(self, key, value, cause):
        assert self.last_put.pop(key, MISSING) is value

    @rule(key=KEYS)
    def get(self, key):
        found = self.cache.get(key, MISSING)
        assert found is self.last_put.get(key, MISSING)

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.last_put[key] = value
        self.cache.put(key, value)

    @rule(key=KEYS)
    def invalidate(self, key):
        self.cache.invalidate(key)
        self.last_put.pop(key, None)

    @rule(max_entries=st.one_of(st.none(), st.integers(0, 12)), max_bytes=st.integers(0, 40))
    def resize(self, max_entries, max_bytes):
        self.cache.resize(Bounds(max_entries, max_bytes))
        self.max_entries, self.max_bytes = max_entries, max_bytes

    @rule(passed_ms=st.integers(1, 12))
    def move_the_clock(self, passed_ms):
        self.now_ms += passed_ms

    @invariant()
    def nothing_is_lost_in_silence_and_the_bounds_hold(self):
        if not hasattr(self, "cache"):
            return
        held = list(self.cache.items())
        assert len(held) == len(dict(held)) == len(self.cache)
        assert dict(held) == self.last_put
        stats = self.cache.stats()
        assert stats.bytes == sum(weigh(*entry) for entry in held) <= self.max_bytes
        assert self.max_entries is None or stats.entries <= self.max_entries
        self.every_key_has_one_home_and_the_shares_are_kept()

    def every_key_has_one_home_and_the_shares_are_kept(self):
        order = self.cache._order
        segments = (order._window, order._probation, order._protected)
        assert sum(len(segment.weights) for segment in segments) == len(order._home) == len(self.cache)
        for key, home in order._home.items():
            assert home.weights[key] == weigh(key, self.last_put[key])
        for segment in segments:
            assert segment.bytes == sum(segment.weights.values())
            assert not segment.is_over()


TestLruMatchesAPlainList = LruMatchesAPlainList.TestCase
TestLruMatchesAPlainList.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTinyLfuKeepsItsPromises = TinyLfuKeepsItsPromises.TestCase
TestTinyLfuKeepsItsPromises.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

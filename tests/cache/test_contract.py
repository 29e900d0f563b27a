"""What a user of the cache is promised, one promise a test, over every form."""

import pytest

from millpond.cache import MISSING, new_cache
from millpond.errors import OptionError

FORMS = {
    "plain": {"max_entries": 3},
    "bytes": {"max_bytes": 3, "weigher": lambda _key, _value: 1},
    "expiring": {"max_entries": 3, "expire_after_write_ms": 1_000, "clock": lambda: 0},
    "w-tinylfu": {"max_entries": 3, "policy": "w-tinylfu"},
    "shared": {"max_entries": 3, "shared": True},
    "shared w-tinylfu": {"max_entries": 3, "policy": "w-tinylfu", "shared": True},
}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request):
    return request.param


def test_none_is_a_value_and_not_an_absence(form):
    cache = new_cache("c", **form)
    cache.put("known", None)
    assert cache.get("known", MISSING) is None
    assert cache.get("unknown", MISSING) is MISSING
    assert cache.get("unknown") is None
    assert (cache.stats().hits, cache.stats().misses) == (1, 2)


def test_none_is_a_key(form):
    cache = new_cache("c", **form)
    cache.put(None, 1)
    assert cache.get(None) == 1


def test_a_loaded_none_is_loaded_once(form):
    cache = new_cache("c", **form)
    calls = []
    for _ in range(2):
        assert cache.get_or_load("k", calls.append) is None
    assert calls == ["k"]
    assert cache.stats().loads == 1


def test_a_failed_load_is_raised_counted_and_never_cached(form):
    cache = new_cache("c", **form)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("k", lambda _: 1 // 0)
    assert cache.get("k", MISSING) is MISSING
    assert cache.get_or_load("k", lambda _: 7) == 7
    stats = cache.stats()
    assert (stats.loads, stats.load_failures) == (2, 1)


def test_a_loader_that_asks_for_its_own_key_is_told_so(form):
    cache = new_cache("planes", **form)
    with pytest.raises(OptionError, match=r"'planes'.*'N101'.*for ever"):
        cache.get_or_load("N101", lambda key: cache.get_or_load(key, lambda _: 1))
    assert cache.get_or_load("N101", lambda _: 2) == 2


def test_a_loader_may_load_other_keys(form):
    cache = new_cache("c", **form)
    assert cache.get_or_load("a", lambda _: 1 + cache.get_or_load("b", lambda _: 1)) == 2
    assert cache.get("b") == 1


def test_peek_is_neither_a_use_nor_counted():
    cache = new_cache("c", max_entries=2)
    cache.put("old", 1)
    cache.put("new", 2)
    assert cache.peek("old") == 1
    cache.put("newer", 3)
    assert cache.peek("old", MISSING) is MISSING
    assert cache.stats().hits == cache.stats().misses == 0


def test_a_cache_of_size_zero_keeps_nothing_and_answers_everything(form):
    sizeless = {name: value for name, value in form.items() if not name.startswith("max_")}
    gone = []
    cache = new_cache("c", max_entries=0, on_evict=lambda *entry: gone.append(entry), **sizeless)
    assert cache.get_or_load("k", lambda _: 1) == 1
    assert len(cache) == 0
    assert gone == [("k", 1, "size")]


def test_an_entry_heavier_than_the_cache_pushes_nobody_out():
    gone = []
    cache = new_cache("c", max_bytes=10, weigher=lambda _, value: value, on_evict=lambda *entry: gone.append(entry))
    cache.put("small", 4)
    cache.put("grown", 3)
    cache.put("grown", 11)
    assert list(cache.items()) == [("small", 4)]
    assert gone == [("grown", 11, "size")]


def test_an_entry_stays_when_its_listener_fails():
    def refuse(*entry):
        raise OSError("disk full")

    cache = new_cache("c", max_entries=1, on_evict=refuse)
    cache.put("dirty", 1)
    with pytest.raises(OSError, match="disk full"):
        cache.put("next", 2)
    assert cache.peek("dirty") == 1


def test_what_the_caller_takes_away_is_not_an_eviction(form):
    gone = []
    cache = new_cache("c", on_evict=lambda *entry: gone.append(entry), **form)
    cache.put("a", 1)
    cache.put("a", 2)
    cache.invalidate("a")
    cache.invalidate("never there")
    cache.put("b", 3)
    cache.clear()
    assert gone == []
    assert len(cache) == cache.stats().entries == 0


def test_an_entry_goes_when_its_age_reaches_the_limit():
    now_ms = 0
    gone = []
    cache = new_cache("c", expire_after_write_ms=10, clock=lambda: now_ms, on_evict=lambda *entry: gone.append(entry))
    cache.put("k", 1)
    now_ms = 9
    assert cache.get("k") == 1
    now_ms = 10
    assert cache.get("k", MISSING) is MISSING
    assert gone == [("k", 1, "expired")]
    assert cache.stats().expirations == 1
    assert cache.stats().evictions == 0


def test_a_use_postpones_expiry_after_access_but_not_after_write():
    now_ms = 0
    cache = new_cache("c", expire_after_access_ms=10, expire_after_write_ms=25, clock=lambda: now_ms)
    cache.put("k", 1)
    for now_ms in (9, 18, 24):  # noqa: B007 - the clock reads it
        assert cache.get("k") == 1
    now_ms = 25
    assert cache.get("k", MISSING) is MISSING


def test_an_empty_cache_is_true(form):
    assert new_cache("c", **form)


def test_items_is_a_copy_that_later_changes_do_not_disturb(form):
    cache = new_cache("c", **form)
    cache.put("a", 1)
    items = cache.items()
    cache.put("b", 2)
    assert list(items) == [("a", 1)]


def test_the_hit_rate_before_the_first_request_is_zero(form):
    assert new_cache("c", **form).stats().hit_rate == 0.0


def test_bytes_are_known_only_where_something_is_weighed():
    assert new_cache("c", max_entries=1).stats().bytes is None
    weighed = new_cache("c", max_entries=1, weigher=lambda _key, _value: 5)
    weighed.put("k", 1)
    assert weighed.stats().bytes == 5


def test_a_cache_without_any_bound_is_refused():
    with pytest.raises(OptionError, match=r"'planes'.*max_entries, max_bytes, expire_after"):
        new_cache("planes")


@pytest.mark.parametrize(
    "options",
    [
        {"max_entries": -1},
        {"max_entries": 1.5},
        {"max_entries": True},
        {"max_bytes": "50MB"},
        {"max_entries": 1, "expire_after_write_ms": 0},
        {"max_entries": 1, "expire_after_access_ms": -5},
        {"max_entries": 1, "policy": "lfu"},
    ],
)
def test_a_bad_option_is_named_with_what_was_expected(options):
    with pytest.raises(OptionError, match=rf"{list(options)[-1]}: expected .*, got "):
        new_cache("planes", **options)

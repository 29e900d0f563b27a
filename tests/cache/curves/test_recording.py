"""Recording a cache changes nothing about it, takes bounded room, and gives the curves of both policies."""

import gc
import random
import threading
import tracemalloc

import pytest

from millpond.cache import MISSING, Bounds, new_cache
from millpond.cache.curves import curves_view, record, reports
from millpond.cache.curves.recording import MOST_BYTES, Recording
from millpond.cache.curves.registry import recordings
from millpond.errors import OptionError

from .test_reuse_distances import zipf

FORMS = {
    "plain": {"max_entries": 200},
    "bytes": {"max_bytes": 2_000, "weigher": lambda _key, _value: 10},
    "w-tinylfu": {"max_entries": 200, "policy": "w-tinylfu"},
    "shared": {"max_entries": 200, "shared": True},
}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request):
    return request.param


def only(name):
    (found,) = [report for report in reports() if report.name == name]
    return found


def ask(cache, keys):
    for key in keys:
        if cache.get(key) is None:
            cache.put(key, True)


def test_a_recorded_cache_does_what_the_same_cache_does_unrecorded(form):
    generator = random.Random(3)
    one, other = record(new_cache("one", **form)), new_cache("other", **form)
    for _ in range(3_000):
        key, act = int(generator.expovariate(0.004)), generator.randrange(7)
        for cache in (one, other):
            match act:
                case 0 | 1:
                    cache.put(key, key)
                case 2:
                    cache.get_or_load(key, lambda given: given)
                case 3:
                    cache.invalidate(key)
                case 4:
                    cache.resize(Bounds(None, 1_500) if "max_bytes" in form else Bounds(150))
        answers = {cache.get(key, MISSING) for cache in (one, other)}
        found = [cache.get_present(range(key, key + 5)) for cache in (one, other)]
        assert len(answers) == 1
        assert found[0] == found[1]
        assert one.peek(key) == other.peek(key)
        assert one.bounds == other.bounds
    assert list(one.items()) == list(other.items())
    assert one.stats() == other.stats()
    assert len(one) == len(other)
    one.clear()
    assert len(one) == 0


def test_a_shared_cache_is_recorded_in_place_for_all_who_have_it():
    cache = new_cache("in place", max_entries=100, shared=True)
    cache.put(1, 1)
    assert record(cache) is cache
    ask(cache, range(50))
    assert cache.get(1) == 1
    assert only("in place").requests == 51


def test_every_way_of_asking_counts_as_a_request(form):
    cache = record(new_cache("ways", **form))
    cache.get(1)
    cache.get_present([1, 2, 3])
    cache.get_or_load(4, lambda key: key)
    cache.peek(5)
    stats = cache.stats()
    assert only("ways").requests == stats.hits + stats.misses == 5


def test_the_curve_at_the_present_size_is_the_hit_rate_that_the_cache_has(form):
    cache = record(new_cache("present", **form))
    ask(cache, zipf(0.9, count=30_000, of=3_000))
    report = only("present")
    assert report.policy == cache.policy
    assert report.present == pytest.approx(200, rel=0.05)
    assert report.present_rate() == pytest.approx(cache.stats().hit_rate, abs=0.035)


def test_a_scan_among_popular_keys_shows_that_the_other_policy_is_better():
    generator = random.Random(5)
    cache = record(new_cache("scanned", max_entries=500))
    popular = [generator.getrandbits(60) for _ in range(400)]
    for number in range(60_000):
        ask(cache, (generator.choice(popular), number))
    report = only("scanned")
    assert report.present_rate("w-tinylfu") > report.present_rate("lru") + 0.03


def test_a_recording_takes_bounded_room_whatever_comes():
    cache = new_cache("large", max_entries=5_000)
    generator = random.Random(9)
    keys = [generator.getrandbits(60) for _ in range(150_000)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        recording = Recording(cache)
        for key in keys:
            recording.asked(key)
            recording.wrote(key, None, lambda _key, _value: 100)
        for key in keys[-20_000:]:
            recording.asked(key)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 100_000 < taken <= MOST_BYTES


def test_a_recording_goes_with_its_cache():
    cache = record(new_cache("gone", max_entries=10))
    assert "gone" in recordings()
    del cache
    gc.collect()
    assert "gone" not in recordings()


def test_caches_of_one_name_are_told_apart():
    caches = [record(new_cache("twin", max_entries=size)) for size in (10, 20)]
    ask(caches[1], range(5))
    assert {name: one.requests for name, one in recordings().items() if name.startswith("twin")} == {
        "twin": 0,
        "twin (2)": 5,
    }


def test_curves_may_be_read_while_threads_ask():
    cache = record(new_cache("read", max_entries=1_000, shared=True))
    stop = threading.Event()
    failures = []

    def asking(seed):
        generator = random.Random(seed)
        try:
            while not stop.is_set():
                ask(cache, [generator.randrange(50_000) for _ in range(200)])
        except Exception as error:  # noqa: BLE001 - the test says what it was
            failures.append(error)

    threads = [threading.Thread(target=asking, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    views = [curves_view() for _ in range(30)]
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert any(one["name"] == "read" and one["curves"] for one in views[-1]["caches"])


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(-1), Bounds(10, 10)])
def test_a_bound_that_a_cache_cannot_have_is_refused(bounds):
    with pytest.raises(OptionError, match="'narrow'"):
        new_cache("narrow", max_entries=10).resize(bounds)
    with pytest.raises(OptionError, match="'narrow'"):
        new_cache("narrow", max_entries=10, policy="w-tinylfu").resize(bounds)


def test_where_others_decide_which_keys_are_put_only_those_could_hit():
    """Every third key is never put: no size would hit it."""
    fed, keys = new_cache("fed", max_entries=100), [number % 300 for number in range(9_000)]
    apart = record(fed, fed_apart=True)
    for key in keys:
        if apart.get(key) is None and key % 3:
            apart.put(key, True)
    curve = only("fed").curves["lru"]
    assert curve.at_entries(150) < 0.05
    assert curve.at_entries(210) == pytest.approx(2 / 3 * 29 / 30, abs=0.01)
    assert curve.highest() == curve.at_entries(210)


def test_keys_that_are_asked_for_at_once_could_hit_once_they_were_put():
    apart = record(new_cache("fed at once", max_entries=100), fed_apart=True)
    for _ in range(50):
        for key in set(range(60)) - set(apart.get_present(range(60))) - set(range(20)):
            apart.put(key, True)
    assert only("fed at once").requests == 3_000
    assert only("fed at once").curve.highest() == pytest.approx(2 / 3 * 49 / 50, abs=0.01)


def test_a_door_keeper_that_the_simulation_does_not_know_is_in_the_curve():
    generator = random.Random(8)
    cache = record(new_cache("kept", max_entries=200, policy="w-tinylfu"))
    for key in zipf(0.9, count=30_000, of=3_000):
        if cache.get(key) is None and generator.random() < 0.02:
            cache.put(key, True)
    assert only("kept").present_rate() == pytest.approx(cache.stats().hit_rate, abs=0.001)
    cache.resize(Bounds(400))
    assert only("kept").present_rate() > cache.stats().hit_rate, "another size begins anew"


def test_with_room_for_nearly_all_keys_no_policy_gains():
    cache = record(new_cache("roomy", max_entries=100, policy="w-tinylfu"))
    ask(cache, zipf(0.9, count=30_000, of=3_000))
    report = only("roomy")
    assert report.present_rate("w-tinylfu") > report.present_rate("lru") + 0.03
    assert report.curves["w-tinylfu"].at_entries(2_500) == pytest.approx(
        report.curves["lru"].at_entries(2_500), abs=0.01
    )

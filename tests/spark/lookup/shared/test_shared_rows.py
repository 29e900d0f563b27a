"""Executors that share a cache: each key is loaded by its owner, and every executor gets the source's rows."""

import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.lookup.column_cache.key_hash import hashes
from millpond.spark.lookup.invalidations import Invalidated
from millpond.spark.lookup.shared.owner import GONE_MS
from millpond.spark.lookup.shared.ownership import owners, seed
from tests.spark.lookup.shared.executors import PARTIAL

NUMBERS = list(range(300))
NEW = 1_000


def texts_of(n):
    """No row for every third number, two for every other."""
    return [] if n % 3 == 0 else [(f"first {n}",), (f"second {n}",)] if n % 2 else [(f"only {n}",)]


def expected(numbers):
    return [[text for (text,) in texts_of(n)] for n in numbers]


def invalidated(version, *numbers):
    return Invalidated(version, 0, pa.table({"__version": [version] * len(numbers), "n": list(numbers)})).encode()


def test_each_key_is_loaded_once_by_one_of_the_executors_and_all_get_its_rows(executors):
    several = executors(texts_of)
    backwards = NUMBERS[::-1]
    for executor, numbers in zip(several, (NUMBERS, backwards, NUMBERS), strict=True):
        assert executor.texts(numbers) == expected(numbers)
    loads = [executor.forget() for executor in several]
    assert sorted(n for asked in loads for n in asked) == NUMBERS
    assert all(len(asked) > len(NUMBERS) // 5 for asked in loads)


def test_the_counters_of_an_answer_tell_what_the_owners_did(executors):
    one, two = executors(texts_of, names=("one", "two"))
    first, second = one.matches(NUMBERS).counted, two.matches(NUMBERS).counted
    assert (first.stats.miss_count, first.stats.load_count, first.stats.hit_count) == (300, 300, 0)
    assert (second.stats.miss_count, second.stats.load_count, second.stats.hit_count) == (0, 0, 300)
    assert first.stats.owner_ask_count == len(two.asked)
    assert second.stats.owner_ask_count == len(one.asked)
    assert first.stats.owner_failure_count == second.stats.owner_failure_count == 0
    assert first.total().num_cached_record == len(one.asked)


def test_keys_of_others_that_are_asked_for_twice_are_kept_near(executors, clock):
    one, two = executors(texts_of, names=("one", "two"))
    assert one.matches(NUMBERS).counted.stats.owner_ask_count == len(two.asked)
    clock.ms += 1
    second = one.matches(NUMBERS).counted
    assert (second.stats.hit_count, second.stats.owner_ask_count) == (300, len(two.asked))
    assert second.total().num_cached_record == 300, "its own keys, and those near"
    third = one.matches(NUMBERS).counted.stats
    assert (third.hit_count, third.event_hit_count, third.owner_ask_count) == (300, 300, 0)
    assert one.texts(NUMBERS[::-1]) == expected(NUMBERS[::-1])
    assert len(one.asked) + len(two.asked) == 300


def test_a_key_of_another_that_comes_once_is_not_kept_near(executors):
    one, two = executors(texts_of, names=("one", "two"))
    two.texts(NUMBERS)
    theirs = two.forget()
    hot = theirs[:10]
    for _ in range(2):
        one.texts(hot)
    first, again = one.matches(theirs).counted, one.matches(hot).counted.stats
    assert first.levels["near one"].records == len(hot), "its owner had all in its cache, but only these came twice"
    assert (first.stats.owner_ask_count, again.owner_ask_count) == (len(theirs) - len(hot), 0)
    assert two.asked == []


def test_missing_keys_are_asked_for_again_where_they_are_not_to_be_cached(executors):
    options = {**PARTIAL, "lookup.partial-cache.cache-missing-key": False}
    one, two = executors(texts_of, names=("one", "two"), options=options)
    for _ in range(2):
        assert one.texts(NUMBERS) == expected(NUMBERS)
    assert sorted(one.asked + two.asked) == sorted(NUMBERS + NUMBERS[::3])


@pytest.mark.parametrize("option", ["expire-after-write", "refresh-after-write"])
def test_a_row_gets_no_older_near_than_at_its_owner(executors, clock, option):
    options = {**PARTIAL, f"lookup.partial-cache.{option}": "10 s"}
    one, two = executors(texts_of, names=("one", "two"), options=options)
    two.texts(NUMBERS)
    theirs = two.forget()
    one.forget()
    clock.ms += 6_000
    for _ in range(2):
        assert one.texts(theirs) == expected(theirs)
    clock.ms += 3_999
    assert one.matches(theirs).counted.stats.owner_ask_count == 0
    assert two.forget() == []
    clock.ms += 1
    assert one.matches(theirs).counted.stats.owner_ask_count == len(theirs)
    two.lookup.close()  # waits for a refresh
    assert sorted(two.asked) == sorted(theirs)


def test_a_partition_that_brings_invalidated_keys_gets_new_rows_from_every_owner(executors, clock):
    calls = []

    def find(n):
        calls.append(n)
        return [(f"{n}, call {calls.count(n)}",)]

    one, two = executors(find, names=("one", "two"))
    numbers = list(range(40))
    for executor in (one, two):
        clock.ms += 1
        assert executor.texts(numbers) == [[f"{n}, call 1"] for n in numbers]
    changed = numbers[::2]
    told = invalidated(1, *changed)
    fresh = [[f"{n}, call {2 if n in changed else 1}"] for n in numbers]
    assert one.texts(numbers, told) == fresh
    assert one.texts(numbers, told) == fresh
    # The other executor's partition began before, and its near cache was not told.
    assert two.texts(numbers, told) == fresh
    assert sorted(calls) == sorted(numbers + changed)
    everything = Invalidated(3, 3, pa.table({"__version": pa.array([], pa.int64()), "n": pa.array([], pa.int64())}))
    assert two.texts(numbers, everything.encode()) == [[f"{n}, call {3 if n in changed else 2}"] for n in numbers]


def test_what_an_owner_answered_before_an_invalidation_is_not_kept_near(executors, clock):
    told, meanwhile = invalidated(1, *NUMBERS), []

    def find(n):
        if n == NEW:
            # While the owner answers, another partition of the executor that asked hears of the invalidation.
            meanwhile.append(n)
            one.shared.open(told)
        return texts_of(n)

    one, two = executors(find, names=("one", "two"))
    two.texts(NUMBERS)
    clock.ms += 1
    theirs = two.forget()
    one.texts(theirs)
    one.texts([*theirs, NEW])
    assert meanwhile == [NEW]
    assert one.matches(theirs, told).counted.stats.owner_ask_count == len(theirs)


def test_the_keys_of_an_owner_that_is_gone_are_loaded_by_those_who_need_them(executors, clock, capfd):
    one, two = executors(texts_of, names=("one", "two"))
    one.texts(NUMBERS[:10])
    two.close()
    stats = one.matches(NUMBERS).counted.stats
    assert stats.owner_failure_count == stats.owner_ask_count > 0
    assert "two at 127.0.0.1, port" in capfd.readouterr().err
    assert one.texts(NUMBERS) == expected(NUMBERS)
    more = list(range(1_000, 1_300))
    assert one.matches(more).counted.stats.owner_ask_count == 0, "it is not asked for a while"
    assert sorted(one.asked) == NUMBERS + more
    clock.ms += GONE_MS
    assert one.matches(range(2_000, 2_300)).counted.stats.owner_failure_count > 0


def test_an_owner_that_comes_back_is_asked_again_at_its_new_address(executors):
    one, two = executors(texts_of, names=("one", "two"))
    two.close()
    one.texts(NUMBERS)
    (again,) = executors(texts_of, names=("two",))
    more = list(range(1_000, 1_300))
    stats = one.matches(more).counted.stats
    assert stats.owner_ask_count == len(again.asked) > 0
    assert stats.owner_failure_count == 0


def test_a_source_that_an_owner_cannot_reach_fails_the_batch_and_is_not_asked_twice(executors):
    tries = []

    def find(n):
        tries.append(n)
        raise UnavailableError("the database sleeps")

    options = {**PARTIAL, "lookup.max-retries": 0}
    one, two = executors(find, names=("one", "two"), options=options)
    of_two = owners(hashes([pa.array(NUMBERS)]), [seed("one at 127.0.0.1"), seed("two at 127.0.0.1")]) == 1
    theirs = [n for n in NUMBERS if of_two[n]]
    rows = one.shared.open()
    with pytest.raises(UnavailableError, match="the database sleeps"):
        rows.match([pa.array(theirs)])
    assert one.asked == []
    assert tries == two.asked == theirs[:1]
    assert rows.failed.num_load_failure == 1


def test_an_error_of_user_code_at_an_owner_is_raised_where_the_task_runs(executors):
    def find(n):
        raise ZeroDivisionError(f"no row for {n}")

    one, _ = executors(find, names=("one", "two"))
    with pytest.raises(ZeroDivisionError, match="no row for"):
        one.texts(NUMBERS)


def test_a_poison_key_fails_alone_whoever_owns_it(executors):
    def find(n):
        if n % 10 == 7:
            raise ValueError(f"{n} is poison")
        return texts_of(n)

    one, two = executors(find, names=("one", "two"), dead_letter=True)
    poison = [n for n in NUMBERS if n % 10 == 7]
    for executor in (one, two, one):
        found = executor.matches(NUMBERS)
        assert sorted(found.failures) == poison
        assert all(found.failures[n][0] == f"ValueError: {n} is poison" for n in poison)
        good = [n for n in NUMBERS if n not in poison]
        assert executor.texts(good) == expected(good)


def test_an_executor_alone_loads_every_key(executors):
    (one,) = executors(texts_of, names=("one",))
    assert one.texts(NUMBERS) == expected(NUMBERS)
    assert one.asked == NUMBERS

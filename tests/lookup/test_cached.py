"""Any Python function behind a lookup cache."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import DefaultLookupCache, Retries, cached
from millpond.metrics import MemoryRecorder

PATIENCE_S = 20


def test_a_function_runs_once_per_arguments_as_they_are_written():
    calls = []

    @cached(max_rows=10)
    def add(a, b=1):
        """Add."""
        calls.append((a, b))
        return a + b

    assert [add(1), add(1), add(1, 2), add(a=1), add(a=1)] == [2, 2, 3, 2, 2]
    assert calls == [(1, 1), (1, 2), (1, 1)]
    assert (add.__name__, add.__doc__) == ("add", "Add.")


def test_none_is_remembered_as_a_missing_key_or_asked_for_again():
    for remembered, expected in ((True, 1), (False, 2)):
        calls = []
        find = cached(max_rows=10, cache_missing_key=remembered)(calls.append)
        assert find("x") is None
        assert find("x") is None
        assert len(calls) == expected


def test_what_the_function_raised_is_not_remembered():
    answers = [ValueError("broken"), 7]

    @cached(max_rows=10)
    def find():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="broken"):
        find()
    assert find() == find() == 7
    assert find.stats().num_load_failure == 1


def test_results_expire_and_can_be_forgotten():
    now_ms, calls = 0, []

    @cached(expire_after_write_ms=100, clock=lambda: now_ms)
    def find(key):
        calls.append(key)
        return len(calls)

    assert [find("x"), find("x")] == [1, 1]
    now_ms = 100
    assert find("x") == 2
    find.invalidate("x")
    assert find("x") == 3


def test_passing_failures_are_tried_again_only_when_asked_for():
    failures = [ConnectionError("reset")] * 2

    def find():
        if failures:
            raise failures.pop()
        return 7

    with pytest.raises(UnavailableError, match="1 tries"):
        cached(max_rows=1)(find)()
    assert cached(max_rows=1, retries=Retries(1, sleep=lambda _: None))(find)() == 7


def test_threads_that_want_one_result_run_the_function_once():
    entered, leave, calls = threading.Event(), threading.Event(), []

    @cached(max_rows=10)
    def slow(key):
        calls.append(key)
        entered.set()
        assert leave.wait(PATIENCE_S)
        return key

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(slow, 1) for _ in range(4)]
        assert entered.wait(PATIENCE_S)
        leave.set()
        assert [future.result(PATIENCE_S) for future in futures] == [1] * 4
    assert calls == [1]


def test_a_coroutine_function_is_awaited():
    calls = []

    @cached(max_rows=10)
    async def find(key):
        calls.append(key)
        await asyncio.sleep(0)
        return key * 2

    async def look():
        return await asyncio.gather(find(1), find(1), find(2))

    assert asyncio.run(look()) == [2, 2, 4]
    assert calls == [1, 2]
    assert find.stats().hit_count == 1


def test_a_method_is_cached_per_object():
    class Shop:
        def __init__(self, name):
            self.name = name
            self.calls = 0

        @cached(max_rows=10)
        def price(self, thing):
            self.calls += 1
            return f"{self.name} {thing}"

    one, other = Shop("one"), Shop("other")
    assert [one.price("tea"), one.price("tea"), other.price("tea")] == ["one tea", "one tea", "other tea"]
    assert (one.calls, other.calls) == (1, 1)
    assert Shop.price.stats().hit_count == 1


def test_metrics_go_under_the_name_of_the_function():
    recorder = MemoryRecorder()

    @cached(max_rows=10, recorder=recorder)
    def find(key):
        return key

    find(1)
    find(1)
    name = find.__wrapped__.__qualname__
    assert recorder.total("millpond_lookup_requests_total", name=name, result="hit") == 1
    assert find.stats().num_cached_record == 1


def test_no_limit_two_caches_and_arguments_that_cannot_be_keys_are_refused():
    with pytest.raises(OptionError, match="no bound"):
        cached()
    with pytest.raises(OptionError, match="max_rows have no effect"):
        cached(cache=DefaultLookupCache(max_rows=1), max_rows=2)
    with pytest.raises(DataError, match="unhashable"):
        cached(max_rows=1)(len)([1])


def test_functions_decorated_by_one_decorator_have_results_of_their_own():
    small = cached(max_rows=10)
    double, square = small(lambda n: 2 * n), small(lambda n: n * n)
    assert (double(3), square(3), double(3)) == (6, 9, 6)

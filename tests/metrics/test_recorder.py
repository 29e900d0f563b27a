"""The in-memory recorder adds up, and refuses what exporters could not show."""

import threading

import pytest

from millpond.errors import OptionError
from millpond.metrics import NO_METRICS, MemoryRecorder


def test_counts_with_one_name_and_result_add_up():
    recorder = MemoryRecorder()
    recorder.count("reads_total", 2, name="planes", result="hit")
    recorder.count("reads_total", name="planes", result="hit")
    recorder.count("reads_total", name="planes", result="miss")
    assert recorder.totals() == {("reads_total", "planes", "hit"): 3, ("reads_total", "planes", "miss"): 1}


def test_what_was_never_counted_is_zero_and_an_unset_level_is_none():
    recorder = MemoryRecorder()
    assert recorder.total("reads_total") == 0
    assert recorder.level("cached_bytes") is None


def test_a_gauge_keeps_only_its_last_value():
    recorder = MemoryRecorder()
    recorder.gauge("cached_bytes", 10, name="planes")
    recorder.gauge("cached_bytes", 4, name="planes")
    assert recorder.level("cached_bytes", name="planes") == 4


@pytest.mark.parametrize(
    ("metric", "amount", "result"),
    [("reads", 1, "hit"), ("reads_total", -1, "hit"), ("reads_total", 1, "key-4711")],
)
def test_a_counter_that_no_exporter_could_show_is_refused(metric, amount, result):
    with pytest.raises(OptionError, match="counter 'reads"):
        MemoryRecorder().count(metric, amount, result=result)


def test_a_gauge_named_like_a_counter_is_refused():
    with pytest.raises(OptionError, match="_total"):
        MemoryRecorder().gauge("reads_total", 1)


def test_threads_lose_no_counts():
    recorder = MemoryRecorder()

    def work():
        for _ in range(2_000):
            recorder.count("reads_total")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.total("reads_total") == 8_000


def test_the_null_recorder_takes_everything():
    NO_METRICS.count("reads_total", 3, result="hit")
    NO_METRICS.gauge("cached_bytes", 1)

"""The harness against plain dictionaries: records, both times, timers, late records, failures."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.metrics import MemoryRecorder
from millpond.state.heap.backend import HeapBackend
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.testing.harness import Harness


class Count:
    """Counts the records of a key."""

    def open(self, states):
        self.seen = states.value("seen", int, default=0)

    def process(self, key, record, context):
        self.seen.update(self.seen.get() + 1)
        return [(key, self.seen.get())]


class Alarm:
    """Sets a timer ten ms after a record's time, and tells when it goes off."""

    def open(self, states):
        self.states = states

    def process(self, key, record, context):
        context.event_timers.register(context.at_ms + 10)

    def on_timer(self, key, timer, context):
        yield key, timer.at_ms, timer.domain, context.watermark_ms, context.at_ms


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request, tmp_path):
    """Makes backends."""
    if request.param == "heap":
        return HeapBackend
    return lambda groups: RocksDbBackend(groups, tmp_path / str(groups.start))


def _word(record):
    return record[0]


@pytest.mark.parametrize("shards", [1, 3])
def test_every_key_counts_alone_whatever_shard_it_is_in(backend, shards):
    words = [f"word {number % 17}" for number in range(100)]
    with Harness(Count, key=str, key_type=str, shards=shards, backend=backend) as harness:
        harness.process_many(words)
        so_far = Counter()
        for word, seen in harness.take_output():
            so_far[word] += 1
            assert seen == so_far[word]
        assert harness.state("seen") == Counter(words) == so_far
        assert harness.take_output() == []


def test_keys_of_several_columns_come_as_tuples():
    with Harness(Count, key=lambda record: record, key_type=tuple[str, int], shards=2) as harness:
        harness.process_many([("a", 1), ("a", 2), ("a", 1)])
        assert harness.take_output() == [(("a", 1), 1), (("a", 2), 1), (("a", 1), 2)]
        assert harness.state("seen") == {("a", 1): 2, ("a", 2): 1}


def test_a_float_key_is_one_key_however_it_is_written():
    with Harness(Count, key=lambda record: record, key_type=float) as harness:
        harness.process_many([0.0, -0.0, 0, float("nan"), -float("nan"), 1, 1.0])
        assert sorted(harness.state("seen").values()) == [2, 2, 3]


@pytest.mark.parametrize(
    ("key", "key_type", "says"),
    [(["a"], str, "list"), ("a", int, "int64"), ({}, str, "dict"), (("a",), tuple[str, int], "2 fields")],
)
def test_what_cannot_be_a_key_is_refused(key, key_type, says):
    with (
        Harness(Count, key=lambda record: record, key_type=key_type) as harness,
        pytest.raises(DataError, match=f"the key of a record.*{says}"),
    ):
        harness.process(key)


def test_a_record_whose_key_function_fails_costs_that_record_and_not_the_harness():
    with Harness(Count, key=_word, key_type=str) as harness:
        records = iter([("ann",), (), ("ann",)])
        with pytest.raises(DataError, match=r"record \(\): the key function of the harness raised IndexError"):
            harness.process_many(records)
        harness.process_many(records)
        assert harness.state("seen") == {"ann": 2}


def test_a_record_whose_time_function_fails_costs_that_record_and_not_the_harness():
    with Harness(Count, key=_word, key_type=str, time=lambda record: record[1]) as harness:
        with pytest.raises(DataError, match=r"record \('ann',\): the time function of the harness raised IndexError"):
            harness.process_many([("ann",)])
        harness.process(("ann", 5))
        assert harness.state("seen") == {"ann": 1}


def test_a_key_that_does_not_fit_costs_its_record_and_not_the_harness():
    with Harness(Count, key=lambda record: record, key_type=int) as harness:
        records = iter([1, "two", None, 1])
        with pytest.raises(DataError, match="The record is 'two'"):
            harness.process_many(records)
        harness.process_many(records)
        assert harness.state("seen") == {1: 2, None: 1}


class WithoutOpen:
    def process(self, key, record, context):
        pass


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (Count(), "an instance of Count.* Give the class, Count"),
        (WithoutOpen, r"WithoutOpen is no operator: it has no open\(self, states\)"),
        (dict, "dict is no operator: it has no open.* and no process"),
        (7, "the operator is int 7; expected a class"),
    ],
)
def test_what_is_no_operator_is_refused_by_name(operator, says):
    with pytest.raises(OptionError, match=says):
        Harness(operator, key=str, key_type=str)


def test_a_closed_harness_says_that_it_is_closed():
    harness = Harness(Count, key=str, key_type=str)
    harness.process("ann")
    harness.close()
    harness.close()
    acts = (
        lambda: harness.state("seen"),
        lambda: harness.process("ann"),
        lambda: harness.advance_watermark(1),
        harness.checkpoint,
        harness.rollback,
        harness.restore,
        harness.crash,
    )
    for act in acts:
        with pytest.raises(OptionError, match="the harness is closed"):
            act()


def test_state_that_was_lost_is_not_shown():
    with Harness(Count, key=str, key_type=str) as harness:
        harness.crash()
        with pytest.raises(OptionError, match=r"state was lost. Call restore\(\)"):
            harness.state("seen")


def test_a_key_type_that_no_key_can_have_is_refused():
    with pytest.raises(OptionError, match="expected one of bool, int"):
        Harness(Count, key=str, key_type=list)


def test_timers_fire_in_the_order_of_time_when_the_watermark_reaches_them(backend):
    records = [("ann", 30), ("bob", 5), ("cid", 7), ("ann", 1)]
    with Harness(Alarm, key=_word, key_type=str, time=lambda record: record[1], shards=3, backend=backend) as harness:
        harness.process_many(records)
        harness.advance_watermark(14)
        assert harness.take_output() == [("ann", 11, "event", 14, None)]
        harness.advance_watermark(17)
        assert harness.take_output() == [("bob", 15, "event", 17, None), ("cid", 17, "event", 17, None)]
        harness.advance_watermark(1000)
        assert [fired[1] for fired in harness.take_output()] == [40]
        harness.advance_watermark(2000)
        assert harness.take_output() == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=20), st.lists(st.integers(0, 50)))
def test_each_timer_fires_once_in_the_first_advance_that_reaches_it(records, watermarks):
    with Harness(Alarm, key=_word, key_type=str, shards=2) as harness:
        for word, at_ms in records:
            harness.process((word,), at_ms=at_ms)
        waiting = sorted({(at_ms + 10, word) for word, at_ms in records})
        for watermark in sorted(watermarks):
            harness.advance_watermark(watermark)
            fired = [(at_ms, word) for word, at_ms, *_ in harness.take_output()]
            assert [at_ms for at_ms, _ in fired] == sorted(at_ms for at_ms, _ in fired)
            assert sorted(fired) == [timer for timer in waiting if timer[0] <= watermark]
            waiting = [timer for timer in waiting if timer[0] > watermark]


class Again(Alarm):
    """Sets timers from its timer handler: one at the same time, one in the past."""

    def on_timer(self, key, timer, context):
        yield timer.at_ms
        if timer.at_ms >= 10:
            context.event_timers.register(timer.at_ms)
            context.event_timers.register(timer.at_ms - 7)


def test_a_timer_set_again_at_its_own_time_is_lost_and_one_in_the_past_fires_in_the_next_advance(backend):
    with Harness(Again, key=_word, key_type=str, backend=backend) as harness:
        harness.process(("ann",), at_ms=5)
        harness.advance_watermark(20)
        assert harness.take_output() == [15]
        harness.advance_watermark(20)
        assert harness.take_output() == [8]
        harness.advance_watermark(100)
        assert harness.take_output() == []


class Rival:
    """Two timers of a key, of which the first deletes the second."""

    def open(self, states):
        pass

    def process(self, key, record, context):
        context.event_timers.register(10)
        context.event_timers.register(20)

    def on_timer(self, key, timer, context):
        yield key, timer.at_ms
        context.event_timers.delete(20)
        context.event_timers.register(30)


def test_a_timer_that_an_earlier_handler_of_the_advance_deleted_does_not_fire(backend):
    with Harness(Rival, key=str, key_type=str, backend=backend) as harness:
        harness.process_many(["ann", "bob"])
        harness.advance_watermark(25)
        assert sorted(harness.take_output()) == [("ann", 10), ("bob", 10)]
        harness.checkpoint()
        harness.restore()
        harness.advance_watermark(100)
        assert sorted(harness.take_output()) == [("ann", 30), ("bob", 30)]


class Changing(Rival):
    """Its first timer deletes the second and sets it again."""

    def on_timer(self, key, timer, context):
        yield timer.at_ms
        context.event_timers.delete(20)
        if timer.at_ms == 10:
            context.event_timers.register(20)


def test_a_timer_that_was_deleted_and_set_again_in_the_advance_fires_once():
    with Harness(Changing, key=str, key_type=str) as harness:
        harness.process("ann")
        harness.advance_watermark(25)
        harness.advance_watermark(25)
        assert harness.take_output() == [10, 20]


@pytest.mark.parametrize("moment", [None, 1.5, 1 << 63])
def test_an_advance_to_what_is_no_time_is_refused_and_the_harness_goes_on(moment):
    with Harness(Alarm, key=_word, key_type=str) as harness:
        harness.process(("ann",), at_ms=5)
        for advance in (harness.advance_watermark, harness.advance_processing_time):
            with pytest.raises(OptionError, match=r"the (watermark|processing time) is .*expected a .*number of ms"):
                advance(moment)
        harness.advance_watermark(15)
        assert [at for _, at, *_ in harness.take_output()] == [15]


class Reminder:
    """Both kinds of timers, listed and deleted."""

    def open(self, states):
        pass

    def process(self, key, record, context):
        context.processing_timers.register(context.processing_ms + 10)
        context.processing_timers.register(context.processing_ms + 20)
        context.event_timers.register(10)
        context.processing_timers.delete(context.processing_ms + 20)
        yield list(context.processing_timers.of_key()), list(context.event_timers.of_key())

    def on_timer(self, key, timer, context):
        yield timer


def test_the_two_times_do_not_touch_each_other():
    with Harness(Reminder, key=str, key_type=str) as harness:
        harness.advance_processing_time(1000)
        harness.process("ann")
        assert harness.take_output() == [([1010], [10])]
        harness.advance_processing_time(5000)
        assert harness.take_output() == [(1010, "processing")]
        harness.advance_watermark(10)
        assert harness.take_output() == [(10, "event")]


def test_a_timer_without_a_handler_is_refused_when_it_is_set():
    class Forgetful(Count):
        def process(self, key, record, context):
            context.event_timers.register(5)

    with (
        Harness(Forgetful, key=str, key_type=str) as harness,
        pytest.raises(OptionError, match=r"Forgetful uses a timer .* no on_timer"),
    ):
        harness.process("ann")


def test_a_record_at_or_before_the_watermark_is_late_and_counted():
    with Harness(Count, key=_word, key_type=str, time=lambda record: record[1]) as harness:
        harness.process_many([("ann", 0), ("ann", 50)])
        harness.advance_watermark(50)
        harness.process_many([("ann", 50), ("ann", 51), ("ann", None)])
        harness.process(("ann", 7))
        harness.process(("ann", 7), at_ms=60)
        harness.process(("ann", 70), at_ms=7)
        assert harness.state("seen") == {"ann": 5}
        assert harness.late_records == 3


def test_time_does_not_go_back():
    with Harness(Count, key=str, key_type=str) as harness:
        harness.advance_watermark(10)
        harness.advance_processing_time(10)
        with pytest.raises(OptionError, match="watermark is 10 ms and cannot go back to 9 ms"):
            harness.advance_watermark(9)
        with pytest.raises(OptionError, match="processing time is 10 ms"):
            harness.advance_processing_time(9)


class Recent:
    """One of each kind of state, with a time to live of ten ms."""

    def open(self, states):
        self.last = states.value("last", str, ttl=10)
        self.all = states.list("all", str, ttl=10)
        self.counts = states.map("counts", str, int, ttl=10)

    def process(self, key, record, context):
        self.last.update(record)
        self.all.append(record)
        self.counts.put(record, 1)


def test_values_expire_by_the_processing_time(backend):
    with Harness(Recent, key=lambda record: record[0], key_type=str, backend=backend) as harness:
        harness.process("a1")
        harness.advance_processing_time(5)
        harness.process("a2")
        assert harness.state("last") == {"a": "a2"}
        assert harness.state("all") == {"a": ["a1", "a2"]}
        assert harness.state("counts") == {"a": {"a1": 1, "a2": 1}}
        harness.advance_processing_time(10)
        assert harness.state("all") == {"a": ["a2"]}
        assert harness.state("counts") == {"a": {"a2": 1}}
        harness.advance_processing_time(15)
        assert harness.state("last") == harness.state("all") == harness.state("counts") == {}


def test_a_state_that_nobody_declared_is_refused_by_name():
    with (
        Harness(Count, key=str, key_type=str) as harness,
        pytest.raises(OptionError, match=r"no state 'sen'; the operator declared \['seen'\]"),
    ):
        harness.state("sen")


class Poisoned(Count):
    """Fails in the middle of a call, after it changed the state."""

    def process(self, key, record, context):
        self.seen.update(self.seen.get() + 1)
        yield key
        if record == "poison":
            raise ZeroDivisionError(record)


def test_what_user_code_raises_comes_out_as_it_is_and_nothing_goes_on_after_it():
    with Harness(Poisoned, key=str, key_type=str) as harness:
        with pytest.raises(ZeroDivisionError, match="poison") as raised:
            harness.process_many(["fine", "poison", "never"])
        assert raised.traceback[-1].name == "process"
        assert harness.state("seen") == {"fine": 1, "poison": 1}
        for act in (lambda: harness.process("fine"), lambda: harness.advance_watermark(5)):
            with pytest.raises(OptionError, match=r"failed before.*rollback\(\)"):
                act()


def test_the_cache_that_the_options_ask_for_tells_the_recorder_of_its_hits():
    recorder = MemoryRecorder()
    options = {"state.backend.cache.max-entries-num": "10"}
    with Harness(Count, key=str, key_type=str, options=options, recorder=recorder) as harness:
        harness.process_many(["ann", "bob", "ann"])
        harness.checkpoint()
    requests = "millpond_state_cache_requests_total"
    # A count reads twice: the second time what it has just updated.
    assert (recorder.total(requests, result="hit"), recorder.total(requests, result="miss")) == (4, 2)


class Failing:
    """Fails for the records that say so."""

    def open(self, states):
        pass

    def process(self, key, record, context):
        if record == "fail":
            raise ValueError(record)
        return [context.at_ms]


def test_after_a_rollback_a_record_without_a_time_has_none():
    with Harness(Failing, key=str, key_type=str) as harness:
        with pytest.raises(ValueError, match="fail"):
            harness.process("fail", at_ms=5)
        harness.rollback()
        harness.process("ann")
        assert harness.take_output() == [None]

"""What is served is known without making a request wait, until it is too old to be believed."""

import asyncio
import threading

import pytest

from millpond.errors import UnavailableError
from millpond.features import DAY_MS, HOUR_MS, SERVING_INFO_DATASET
from millpond.kv import Put, open_store
from millpond.serving import Fetcher
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.groups.serving_info import ServingInfos

from .world import BATCH_END_MS, EWR, NOON_MS, ROUTE_PLAN, Clock, Later, Stream, WatchedStore, upload


class Known:
    """Serving infos over a store, with a clock and a background that a test moves."""

    def __init__(self):
        self.store, self.clock, self.later = WatchedStore(), Clock(), Later()
        self.group = ServedGroup(ROUTE_PLAN)
        self.pauses = []
        upload(self.store, ROUTE_PLAN, {})
        self.infos = ServingInfos(
            self.store,
            {"route": self.group},
            clock=self.clock,
            background=self.later,
            pause=self.pauses.append,
        )
        self.infos.refresh()
        self.store.asked.clear()

    @property
    def landing_ms(self):
        return self.group.served.landed.info.batch_landing_ms


def test_before_8_s_nothing_is_read():
    known = Known()
    known.clock.now_ms = 7_999
    known.infos.ensure()
    assert (known.later.work, known.store.asked) == ([], [])


def test_at_8_s_one_refresh_begins_in_the_background_and_callers_get_what_is_known():
    known = Known()
    upload(known.store, ROUTE_PLAN, {}, landing_ms=2)
    known.clock.now_ms = 8_000
    for _ in range(100):
        known.infos.ensure()
    assert (len(known.later.work), known.landing_ms) == (1, 1)
    known.later.run()
    assert (known.landing_ms, len(known.store.asked)) == (2, 1)


def test_at_16_s_all_callers_wait_together_for_one_refresh():
    known = Known()
    upload(known.store, ROUTE_PLAN, {}, landing_ms=2)
    known.clock.now_ms = 16_000
    seen = []
    threads = [threading.Thread(target=lambda: (known.infos.ensure(), seen.append(known.landing_ms))) for _ in range(5)]
    for thread in threads:
        thread.start()
    while not known.later.work:
        pass
    assert seen == []
    known.later.run()
    for thread in threads:
        thread.join(10)
    assert (seen, len(known.store.asked)) == ([2] * 5, 1)


def test_a_failed_refresh_is_retried_with_growing_pauses_and_counted_and_then_told_to_those_who_wait():
    known = Known()
    known.store.failing = True
    known.clock.now_ms = 16_000
    flight = known.infos.begin()
    known.later.run()
    assert known.pauses == sorted(known.pauses)
    assert known.infos.failures == len(known.pauses) + 1 == len(known.store.asked)
    with pytest.raises(UnavailableError, match="the store is away"):
        flight.result()


def test_between_8_and_16_s_a_failing_store_fails_no_caller():
    known = Known()
    known.store.failing = True
    known.clock.now_ms = 8_000
    known.infos.ensure()
    known.later.run()
    known.infos.ensure()
    assert known.landing_ms == 1
    assert known.later.work == []


def test_a_store_that_comes_back_is_read_again():
    known = Known()
    known.store.failing = True
    known.clock.now_ms = 16_000
    known.infos.begin()
    known.later.run()
    known.store.failing = False
    flight = known.infos.begin()
    known.later.run()
    assert flight.result() is None


def test_a_record_that_does_not_decode_is_named_in_the_answer_and_mended_by_the_next():
    known = Known()
    fetcher = Fetcher(known.store, [ROUTE_PLAN], refresh_ms=0)
    known.store.put_many(SERVING_INFO_DATASET, [Put(b"route", b"\x02rubbish")])
    assert "serving info" in fetcher.fetch("route", EWR, NOON_MS).errors["route"]
    upload(known.store, ROUTE_PLAN, {})
    assert fetcher.fetch("route", EWR, NOON_MS).errors == {}


def test_the_batch_of_another_definition_is_refused_with_both_named():
    known = Known()
    upload(known.store, ROUTE_PLAN, {})
    info = known.group.served.landed.info
    other = type(info)(**{**{name: getattr(info, name) for name in info.__struct_fields__}, "batch_form": "f" * 16})
    known.store.put_many(SERVING_INFO_DATASET, [Put(b"route", other.encode())])
    reason = Fetcher(known.store, [ROUTE_PLAN]).fetch("route", EWR, NOON_MS).errors["route"]
    assert "f" * 16 in reason
    assert ROUTE_PLAN.batch_form in reason


def test_the_record_of_another_group_by_is_refused():
    known = Known()
    info = known.group.served.landed.info
    other = type(info)(**{name: getattr(info, name) for name in info.__struct_fields__} | {"group_by": "airport"})
    known.store.put_many(SERVING_INFO_DATASET, [Put(b"route", other.encode())])
    reason = Fetcher(known.store, [ROUTE_PLAN]).fetch("route", EWR, NOON_MS).errors["route"]
    assert "serving info of 'airport'" in reason


def test_the_border_is_the_landed_batchs_own_while_a_new_batch_lands():
    known = Known()
    before = known.group.served.landed
    upload(known.store, ROUTE_PLAN, {}, BATCH_END_MS + DAY_MS, landing_ms=3)
    known.infos.refresh()
    assert (before.batch_end_ms, known.group.served.landed.batch_end_ms) == (BATCH_END_MS, BATCH_END_MS + DAY_MS)


def test_a_caller_that_is_cancelled_leaves_the_refresh_to_those_who_wait_for_it():
    known = Known()
    known.clock.now_ms = 16_000

    async def two_callers():
        first, second = (asyncio.create_task(known.infos.ensure_async()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        known.later.run()
        return first.cancelled(), await second

    assert asyncio.run(two_callers()) == (True, None)


def test_a_refresh_without_a_thread_is_a_failure_and_the_next_caller_begins_another():
    known = Known()
    threads = [RuntimeError("can't start new thread")]

    def background(work):
        if threads:
            raise threads.pop()
        known.later(work)

    infos = ServingInfos(known.store, {"route": known.group}, clock=known.clock, background=background)
    with pytest.raises(UnavailableError, match="can't start new thread"):
        infos.ensure()
    flight = infos.begin()
    known.later.run()
    assert (infos.failures, flight.result(0)) == (1, None)


def test_a_request_that_meets_a_new_batch_cleans_up_itself_if_there_is_no_thread_for_it():
    known, done = Known(), []

    def background(_work):
        raise RuntimeError("can't start new thread")

    infos = ServingInfos(
        known.store,
        {"route": known.group},
        clock=known.clock,
        background=background,
        on_landing=lambda _group, landed, _in_request: lambda: done.append(landed.info.batch_landing_ms),
    )
    upload(known.store, ROUTE_PLAN, {}, landing_ms=2)
    (rows,) = known.store.get_many([infos.confirm_get("route")])
    assert (infos.learn(known.group, rows).landed.info.batch_landing_ms, done) == (2, [2])


def test_a_read_that_began_before_a_refresh_does_not_undo_it():
    known = Known()

    class OvertakenStore(WatchedStore):
        """A batch lands after these rows were read, and is refreshed before they are taken."""

        def get_many(self, gets):
            rows = known.store.get_many(gets)
            upload(known.store, ROUTE_PLAN, {}, landing_ms=2)
            if not self.asked:
                self.asked.append(gets)
                slow.refresh()
            return rows

    slow = ServingInfos(OvertakenStore(), {"route": known.group}, clock=known.clock, background=known.later)
    slow.refresh()
    assert known.landing_ms == 2


def test_what_is_learned_of_a_batch_does_not_undo_what_was_read_of_its_stream_meanwhile():
    known, stream = Known(), Stream(WatchedStore(), ROUTE_PLAN)

    def on_landing(_group, _landed, in_request):
        if in_request:
            stream.publish(NOON_MS - HOUR_MS)
            infos.refresh()
        return lambda: None

    infos = ServingInfos(
        stream.store, {"route": known.group}, clock=known.clock, background=known.later, on_landing=on_landing
    )
    upload(stream.store, ROUTE_PLAN, {}, landing_ms=2)
    stream.publish(NOON_MS)
    infos.refresh()
    upload(stream.store, ROUTE_PLAN, {}, landing_ms=3)
    (rows,) = stream.store.get_many([infos.confirm_get("route")])
    served = infos.learn(known.group, rows)
    assert (served.restarts, served.closed_ms) == (1, NOON_MS - HOUR_MS)
    assert known.group.served is served


def test_an_event_loop_reads_in_the_background_also_if_every_fetch_must_wait_for_it():
    known = Known()
    infos = ServingInfos(known.store, {"route": known.group}, refresh_ms=0, clock=known.clock, background=known.later)

    async def ensure():
        call = asyncio.create_task(infos.ensure_async())
        await asyncio.sleep(0)
        asked = len(known.store.asked)
        known.later.run()
        await call
        return asked, len(known.store.asked)

    assert asyncio.run(ensure()) == (0, 1)
    infos.ensure()
    assert (len(known.store.asked), known.later.work) == (2, [])


def test_a_gap_between_batch_and_stream_is_told_until_they_meet():
    known = Known()
    stream = Stream(known.store, ROUTE_PLAN)
    before = known.group.served.landed
    stream.publish(BATCH_END_MS + HOUR_MS, started_ms=BATCH_END_MS + HOUR_MS)
    known.infos.refresh()
    assert known.group.served.landed is None
    assert f"its batch ends at {BATCH_END_MS} and its stream has events from {BATCH_END_MS + HOUR_MS} on" in (
        known.group.served.problem
    )
    # A request that asks only for the record is told the same.
    (rows,) = known.store.get_many([known.infos.confirm_get("route")])
    assert known.infos.learn(known.group, rows).landed is None
    stream.publish(BATCH_END_MS + 2 * HOUR_MS, started_ms=BATCH_END_MS)
    known.infos.refresh()
    assert known.group.served.landed is before
    assert known.group.served.problem is None


def test_a_later_batch_closes_the_gap():
    known = Known()
    Stream(known.store, ROUTE_PLAN).publish(BATCH_END_MS + HOUR_MS, started_ms=BATCH_END_MS + HOUR_MS)
    known.infos.refresh()
    upload(known.store, ROUTE_PLAN, {}, BATCH_END_MS + HOUR_MS, landing_ms=2)
    known.infos.refresh()
    assert (known.landing_ms, known.group.served.problem) == (2, None)


def test_a_fetch_over_a_gap_gets_no_value_and_the_reason():
    store = WatchedStore()
    upload(store, ROUTE_PLAN, {})
    Stream(store, ROUTE_PLAN).publish(BATCH_END_MS + HOUR_MS, started_ms=BATCH_END_MS + HOUR_MS)
    answer = Fetcher(store, [ROUTE_PLAN.group_by], clock=lambda: NOON_MS).fetch("route", EWR, at=NOON_MS)
    assert answer.features == {}
    assert "those between the two are in neither" in str(answer.errors)


def test_a_batch_that_is_missing_is_told_with_the_store_that_lacks_it(tmp_path):
    with open_store(f"lmdb://{tmp_path / 'typo'}") as store, Fetcher(store, [ROUTE_PLAN]) as fetcher:
        errors = fetcher.fetch("route", EWR, NOON_MS).errors
        expected = f"no batch has been uploaded to LmdbStore({str(tmp_path / 'typo')!r}). Run its upload first."
        assert errors == {"route": f"GroupBy 'route': {expected}"}
    assert "uploaded to the store. Run" in Fetcher(WatchedStore(), [ROUTE_PLAN]).fetch("route", EWR).errors["route"]

"""What this process knows of each GroupBy: which batch is served, and up to when its stream is closed.

Place on the data path: asked first by every fetch, because the batch end splits a window into its batch
and its streaming part. A fetch whose batch rows are all cached asks the store for no batch row, and so would
never learn of a new batch. Hence a refresh by age, as in Chronon [1].

One call reads the records of all GroupBys:

- Younger than `refresh_ms` (8 s), they are used as they are.
- Older, one refresh begins in the background, and callers get the old records meanwhile.
- Older than `wait_ms` (16 s), callers wait, all for the same refresh.

A refresh that fails is tried again with growing pauses. If it still fails, those who wait get
`UnavailableError`, and the failure is not remembered.

Where some servers of a store do not answer, this holds for each GroupBy by itself: one whose record was
not read for `wait_ms` is unavailable, and the others are served.

Invariant: what is known was true at some moment of the last `wait_ms`. Trade-off: for that long an older
batch may answer, from its own rows and all tiles after its own end. That answer is as right as one from the new
batch. If the rows of the old batch were dropped meanwhile, the fetch notices, because it reads the serving info
again before it believes that a row is absent (`learn`).

[1] CHIP-1, "Keeping GroupByServingInfo up-to-date"
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count

import msgspec

from millpond.cache import monotonic_ms
from millpond.errors import CorruptionError, MillpondError, OptionError, UnavailableError
from millpond.features import (
    CLOSING_KEY,
    SERVING_INFO_DATASET,
    GroupByPlan,
    ServingInfo,
    closing_time,
    serving_info_key,
)
from millpond.features.stored.rows import NEVER_CLOSED_MS, stream_start
from millpond.kv import Get, KVStore, PartlyReadError, TimedValue
from millpond.serving.group_status import Served
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import LandedBatch

REFRESH_MS = 8_000
WAIT_MS = 16_000
_PAUSES_SECONDS = (0.05, 0.2, 0.8)
"""How long a refresh pauses after each failed read."""

Background = Callable[[Callable[[], None]], None]
"""Runs a function beside the caller."""

OnLanding = Callable[[ServedGroup, LandedBatch, bool], Callable[[], None]]
"""Called with the GroupBy, a batch about to be served, and whether a request waits; returns what to do afterwards."""


def on_a_thread(work: Callable[[], None]) -> None:
    """Run a function on a thread of its own, which does not delay the end of the process."""
    threading.Thread(target=work, name="millpond-fetcher", daemon=True).start()


class ServingInfos:
    """Keeps `group.served` of all GroupBys up to date.

    Args:
        store: where uploads and streams write.
        groups: the GroupBys, by name.
        refresh_ms: the age at which a refresh begins in the background.
        wait_ms: the age at which callers wait for it.
        clock: monotonic milliseconds.
        background: runs a refresh beside the callers.
        pause: waits for a number of seconds between failed reads.
        on_landing: called for each new batch before it is served.
    """

    def __init__(
        self,
        store: KVStore,
        groups: Mapping[str, ServedGroup],
        *,
        refresh_ms: int = REFRESH_MS,
        wait_ms: int | None = None,
        clock: Callable[[], int] = monotonic_ms,
        background: Background = on_a_thread,
        pause: Callable[[float], object] | None = None,
        on_landing: OnLanding | None = None,
    ) -> None:
        if refresh_ms < 0:
            raise OptionError(f"refresh_ms is {refresh_ms}; an age in milliseconds, 0 or more, is needed.")
        self._store = store
        self._groups = dict(groups)
        self._refresh_ms = refresh_ms
        self._wait_ms = 2 * refresh_ms if wait_ms is None else wait_ms
        self._clock = clock
        self._background = background
        self._pause = threading.Event().wait if pause is None else pause
        self._on_landing = on_landing
        self._lock = threading.Lock()
        self._flight: Future[None] | None = None
        self._read_ms: int | None = None
        self._read_of_group_ms: dict[str, int] = {}
        self._out_of_reach: dict[str, LandedBatch] = {}
        self._not_before_ms = 0
        self._reads = count()
        self._infos_taken: dict[str, int] = {}
        self._closing_taken: dict[str, int] = {}
        """For each GroupBy the number of the latest read whose record, or whose closing time, was taken."""
        self.refreshes = 0
        self.failures = 0
        self.gets = 0
        self.reads = 0

    def ensure(self) -> None:
        """Make sure that what is known is young enough; return at once unless it is older than `wait_ms`.

        Raises:
            UnavailableError: it is too old, and the store does not answer.
        """
        flight = self.begin(may_block=True)
        if flight is not None:
            flight.result()

    async def ensure_async(self) -> None:
        """Like `ensure`, without blocking the event loop."""
        flight = self.begin()
        if flight is not None:
            # Other callers wait for the same refresh: it goes on if this caller is cancelled.
            await asyncio.shield(asyncio.wrap_future(flight))

    def must_wait(self) -> bool:
        """Return whether what is known is too old, or missing, so that a caller must wait for a refresh."""
        read_ms = self._read_ms
        return read_ms is None or self._clock() - read_ms >= self._wait_ms

    def begin(self, *, may_block: bool = False) -> "Future[None] | None":
        """Begin a refresh if one is due; return it if the caller must wait for it.

        Args:
            may_block: whether the caller's thread may read itself, where every fetch must wait for a refresh.
        """
        now_ms, read_ms = self._clock(), self._read_ms
        if read_ms is not None and now_ms - read_ms < self._refresh_ms:
            return None
        must_wait = read_ms is None or now_ms - read_ms >= self._wait_ms
        with self._lock:
            flight = self._flight
            if flight is not None:
                return flight if must_wait else None
            if not must_wait and now_ms < self._not_before_ms:
                return None
            flight = self._flight = Future()
        if must_wait and may_block and self._refresh_ms == 0:
            self._run(flight)
        else:
            self._begin_beside(flight)
        return flight if must_wait else None

    def refresh(self) -> None:
        """Read now, however young the known records are.

        Raises:
            UnavailableError: the store does not answer.
        """
        self._read()

    def confirm_get(self, name: str) -> Get:
        """Return the get that says whether the batch of a GroupBy is still served; `learn` takes its answer."""
        return Get(SERVING_INFO_DATASET, serving_info_key(name))

    def learn(self, group: ServedGroup, rows: Sequence[TimedValue]) -> Served:
        """Take the store's answer to `confirm_get`, and return what is served by it."""
        return self._take(group, rows, None, next(self._reads), in_request=True)

    def infos(self) -> dict[str, ServingInfo | None]:
        """Return the known records by name of GroupBy."""
        return {
            name: None if group.served.landed is None else group.served.landed.info
            for name, group in self._groups.items()
        }

    def after_fork(self) -> None:
        """Forget the locks and the refresh of the parent process, whose threads do not exist here."""
        self._lock = threading.Lock()
        self._flight = None

    def _is_begun(self, work: Callable[[], None]) -> bool:
        """Begin some work in the background; return False if that has no thread for it."""
        try:
            self._background(work)
        except RuntimeError:
            return False
        return True

    def _begin_beside(self, flight: "Future[None]") -> None:
        """Begin a refresh in the background; if that has no thread for it, the refresh has failed."""
        try:
            self._background(lambda: self._run(flight))
        except RuntimeError as error:
            self.failures += 1
            failure = UnavailableError(f"the serving infos could not be read: {error}. Try again.")
            failure.__cause__ = error
            self._fail(flight, failure)

    def _run(self, flight: "Future[None]") -> None:
        try:
            self._read_with_retries()
        except BaseException as error:  # noqa: BLE001 - it is raised in everyone who waits
            self._fail(flight, error)
        else:
            with self._lock:
                self._flight = None
            flight.set_result(None)

    def _fail(self, flight: "Future[None]", error: BaseException) -> None:
        with self._lock:
            self._flight = None
            self._not_before_ms = self._clock() + self._refresh_ms // 2
        flight.set_exception(error)

    def _read_with_retries(self) -> None:
        for pause in (*_PAUSES_SECONDS, None):
            try:
                self._read()
            except UnavailableError:
                self.failures += 1
                if pause is None:
                    raise
                self._pause(pause)
            else:
                return

    def _read(self) -> None:
        began_ms, number = self._clock(), next(self._reads)
        groups = list(self._groups.values())
        gets = [self.confirm_get(group.name) for group in groups]
        streamed = [group for group in groups if group.has_stream]
        gets += [Get(group.stream_dataset, CLOSING_KEY) for group in streamed]
        answers: Sequence[list[TimedValue] | UnavailableError] = ()
        try:
            answers = self._store.get_many(gets) if gets else ()
        except PartlyReadError as error:
            answers = error.answers
            self.failures += 1
        self.reads += bool(gets)
        self.gets += len(gets)
        closing = dict(zip((group.name for group in streamed), answers[len(groups) :], strict=True))
        for group, rows in zip(groups, answers, strict=False):
            if isinstance(rows, UnavailableError):
                self._take_failure(group, rows, began_ms)
                continue
            closing_rows = closing.get(group.name, ())
            # What is closed stays closed: without an answer the former closing time is kept.
            known = None if isinstance(closing_rows, UnavailableError) else closing_rows
            self._take(group, rows, known, number, in_request=False)
            self._read_of_group_ms[group.name] = began_ms
        self.refreshes += 1
        self._read_ms = began_ms

    def _take_failure(self, group: ServedGroup, failure: UnavailableError, now_ms: int) -> None:
        """Keep what is known of a GroupBy if that is young enough; else mark it unavailable, with the reason."""
        read_ms = self._read_of_group_ms.get(group.name)
        if read_ms is not None and now_ms - read_ms < self._wait_ms:
            return
        before = group.served
        if before.landed is not None:
            self._out_of_reach[group.name] = before.landed
        problem = f"GroupBy {group.name!r}: the store does not tell which batch is served. {failure}"
        group.served = msgspec.structs.replace(before, landed=None, problem=problem, raw=None, is_read=False)

    def _take(
        self,
        group: ServedGroup,
        rows: Sequence[TimedValue],
        closing_rows: Sequence[TimedValue] | None,
        number: int,
        *,
        in_request: bool,
    ) -> Served:
        """Take what read `number` found, except what a later read has already replaced; return what is served."""
        raw = rows[-1].value if rows else None
        before = group.served
        if before.is_read and before.raw == raw:
            landed, problem = before.landed, before.problem
        else:
            landed, problem = _landed(group.plan, raw, self._store)
            # After an outage the same batch must be the same object: cached rows are compared by identity.
            known = self._out_of_reach.pop(group.name, None)
            if known is not None and landed is not None and known.info == landed.info:
                landed = known
        closed_ms: int | None = None
        started_ms = before.started_ms
        if closing_rows is not None:
            values = [row.value for row in closing_rows]
            try:
                found, started_ms = closing_time(values), stream_start(values)
            except CorruptionError:
                # Without a closing time absent tiles are gaps: less is cached, and every answer stays right.
                found = None
                self.failures += 1
            closed_ms = found if found is not None and group.is_tiled else NEVER_CLOSED_MS
        # With a gap the record is not taken as read: it is looked at again until batch and stream meet.
        is_read = True
        if landed is not None and started_ms is not None and landed.batch_end_ms < started_ms:
            self._out_of_reach[group.name] = landed
            problem = _gap(group.name, landed.batch_end_ms, started_ms)
            landed, is_read = None, False
        follow_up: Callable[[], None] | None = None
        if landed is not None and landed is not before.landed and self._on_landing is not None:
            follow_up = self._on_landing(group, landed, in_request)
        with self._lock:
            current = group.served
            if number < self._infos_taken.get(group.name, number):
                landed, problem, raw, is_read = current.landed, current.problem, current.raw, current.is_read
                follow_up = None
            elif is_read and current.is_read and current.raw == raw:
                # Another read took the same record meanwhile: cached rows are compared by the identity of its batch.
                landed, follow_up = current.landed, None
            self._infos_taken[group.name] = max(number, self._infos_taken.get(group.name, number))
            if closed_ms is None or number < self._closing_taken.get(group.name, number):
                closed_ms, started_ms = current.closed_ms, current.started_ms
            else:
                self._closing_taken[group.name] = number
            restarts = current.restarts + (closed_ms < current.closed_ms)
            served = group.served = Served(landed, closed_ms, restarts, problem, raw, is_read, started_ms)
        if follow_up is not None and not (in_request and self._is_begun(follow_up)):
            follow_up()
        return served


def _gap(name: str, batch_end_ms: int, started_ms: int) -> str:
    return (
        f"GroupBy {name!r}: its batch ends at {batch_end_ms} and its stream has events from {started_ms} on; those "
        "between the two are in neither. Upload a later batch end, or start the stream at this one with an empty "
        "checkpoint folder."
    )


def _shown(store: KVStore) -> str:
    """Return a store as its own text names it, without secrets; one without such a text is just the store."""
    return "the store" if type(store).__repr__ is object.__repr__ else repr(store)


def _landed(plan: GroupByPlan, raw: bytes | None, store: KVStore) -> tuple[LandedBatch | None, str | None]:
    """Decode a record: return the batch that it points to, or why that batch cannot be served."""
    if raw is None:
        return None, f"GroupBy {plan.name!r}: no batch has been uploaded to {_shown(store)}. Run its upload first."
    try:
        info = ServingInfo.decode(raw)
    except CorruptionError as error:
        return None, f"GroupBy {plan.name!r}: {error}"
    if info.group_by != plan.name:
        return None, f"GroupBy {plan.name!r}: the store gave the serving info of {info.group_by!r}; upload again."
    for what, found, wanted in (
        ("batch", info.batch_form, plan.batch_form),
        ("stream", info.generation, plan.generation),
    ):
        if found and found != wanted:
            return None, (
                f"GroupBy {plan.name!r}: the {what} was written under definition {info.definition_hash} in form "
                f"{found}, this fetcher serves definition {plan.definition_hash} in form {wanted}. Upload again, or "
                "serve with the definition of the upload. `millpond compile DEFINITIONS --store URL` says what a "
                "change costs."
            )
    try:
        return LandedBatch(info, plan), None
    except MillpondError as error:
        return None, f"GroupBy {plan.name!r}: {error}"

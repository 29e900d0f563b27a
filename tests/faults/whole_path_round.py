"""Runs the job of `whole_path.py` through random kills, of the store too, and judges what came out.

Beside the job a fetcher asks for the count of some users after each kill. A count never goes back, is never higher than
the events there are, and is whole in the end.
"""

import random
import signal
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.redis_servers import RedisServer, redis_server
from millpond.errors import UnavailableError
from millpond.features import compile_group_by
from millpond.kv import RedisStore
from millpond.serving import Fetcher
from tests.faults.history_run import LOCAL_CLUSTER, ROWS, USERS, Job, write_events
from tests.faults.keyed_history import FILES_PER_BATCH
from tests.faults.state_round import check
from tests.faults.whole_path import EVENT_MS, START_MS, VISITS
from tests.serving.world import upload

SCRIPT = Path(__file__).with_name("whole_path.py")
VICTIMS = {"host": 4, "worker": 4, "executor": 3, "store": 3, "driver": 1}
FETCHED = 20
"""Users that are asked for after each kill."""

_KEEPING = ("--appendonly", "yes", "--appendfsync", "always")
"""What was acknowledged is there after a kill."""


@dataclass
class WholePathRound:
    """What happened in one.

    Attributes:
        settings: of the job.
        killed: how many processes of each kind.
        timers: how many event-time timers fired.
        reminded: how many events a processing-time timer gave again.
        fetches: how many were answered.
        unavailable: how many were refused, since the store was down.
    """

    settings: dict[str, str]
    killed: Counter[str] = field(default_factory=Counter)
    timers: int = 0
    reminded: int = 0
    fetches: int = 0
    unavailable: int = 0


def run_round(folder: Path, seed: int, kills: int) -> WholePathRound:
    """Run the job to its end through so many kills. An AssertionError says what came out wrong."""
    draw = random.Random(seed)
    files = FILES_PER_BATCH * (kills + 3)
    write_events(folder / "events", draw, files)
    with redis_server(*_KEEPING) as server:
        done = WholePathRound(
            {
                "backend": draw.choice(["heap", "rocksdb", "spillable"]),
                "cache": draw.choice(["none", "lru"]),
                "spark__sql__streaming__stateStore__checkpointFormatVersion": draw.choice(["1", "2"]),
                "events": str(files * ROWS),
                "store": server.url,
            }
        )
        with closing(_filled(server)) as store, Fetcher(store, [VISITS], now=lambda: _end_ms(files)) as fetcher:
            fetches = _Fetches(fetcher, folder, draw, done)
            victims = draw.choices(list(VICTIMS), weights=list(VICTIMS.values()), k=kills)
            _run(folder, victims, server, fetches, done)
            fetches.check_whole()
    done.timers = check(folder, lambda user: f"{user}@{team(user)}")
    done.reminded = _check_reminders(folder, files * ROWS)
    return done


def team(user: str) -> str:
    """What Redis has under a user's name."""
    return f"team-{len(user)}{user[-1]}"


def _end_ms(files: int) -> int:
    return START_MS + files * ROWS * EVENT_MS


def _filled(server: RedisServer) -> RedisStore:
    """The store with the teams, and with an upload of nothing: without one no GroupBy is served."""
    import redis

    with redis.Redis.from_url(server.url) as client:
        for number in range(USERS):
            client.hset(f"team:user-{number}", "team", team(f"user-{number}"))
    store = RedisStore(server.url, retry_ms=200)
    upload(store, compile_group_by(VISITS), {}, batch_end_ms=START_MS)
    return store


def _run(folder: Path, victims: list[str], server: RedisServer, fetches: "_Fetches", done: WholePathRound) -> None:
    ended = False
    while not ended:
        with Job(folder, LOCAL_CLUSTER, script=SCRIPT, **done.settings) as job:
            while not (ended := not job.wait_for_batches(1)):
                fetches.some()
                if not victims:
                    continue
                victim = victims.pop(0)
                if victim == "store":
                    server.stop(signal.SIGKILL)
                    # Refused once, after the retries of a fetcher: so long the job was without its store.
                    fetches.some()
                    server.start()
                    done.killed[victim] += 1
                    continue
                done.killed[victim] += len(job.kill(victim))
                if victim == "driver":
                    break
            code = job.finish()
    assert code == 0, f"the job ended with {code}"
    assert not victims, f"it ended before {victims} were killed"


class _Fetches:
    """What a fetcher answers while the job runs.

    Args:
        fetcher: of `VISITS`.
        folder: with the events.
        draw: whom to ask for.
        done: where answers are counted.
    """

    def __init__(self, fetcher: Fetcher, folder: Path, draw: random.Random, done: WholePathRound) -> None:
        self._fetcher = fetcher
        self._draw = draw
        self._done = done
        self._last: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        for path in (folder / "events").glob("*.parquet"):
            self._events.update(pq.read_table(path).column("user").to_pylist())

    def some(self) -> None:
        """Ask for some users; a store that is down is told as such."""
        for number in self._draw.choices(range(USERS), k=FETCHED):
            user = f"user-{number}"
            try:
                count = self._count(user)
            except UnavailableError:
                self._done.unavailable += 1
                return
            self._done.fetches += 1
            assert self._last[user] <= count <= self._events[user], f"{user}: {count} after {self._last[user]}"
            self._last[user] = count

    def check_whole(self) -> None:
        """Every event is counted once."""
        found = {user: self._count(user) for user in self._events}
        assert found == self._events, {user: (found[user], n) for user, n in self._events.items() if found[user] != n}

    def _count(self, user: str) -> int:
        response = self._fetcher.fetch("visits", {"user": user})
        assert not response.errors, response
        return response.features["count"] or 0


def _check_reminders(folder: Path, events: int) -> int:
    """Each event was given again once."""
    reminded: Counter[int] = Counter()
    for path in (folder / "output" / "reminders").glob("batch=*/*.parquet"):
        for ids in pq.read_table(path).column("ids").to_pylist():
            reminded.update(ids)
    assert max(reminded.values(), default=1) == 1, "an event was given twice by its timer"
    assert len(reminded) == events, f"{events - len(reminded)} events were not given again by their timers"
    return len(reminded)

"""Kills whatever belongs to a stream, at random, and judges what came out: `make kill ROUNDS=3`.

    python -m tests.faults.killer --rounds 3 --kills 20 --seed 1

A round is one stream on a cluster of two executors: a lookup join whose cache is in the executors' hosts, and behind it
value, list and map state and timers, on a backend, behind a cache and in a checkpoint format that its seed draws. State
hosts, Python workers with their daemons, executors and the driver are killed with SIGKILL, one after each batch or so.
The checker knows the events and the files of the sink alone.
"""

import argparse
import random
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.history_run import LOCAL_CLUSTER, Job, write_events
from tests.faults.keyed_history import FILES_PER_BATCH, PARTS, TIMER_S, time_ms, weight_of

VICTIMS = {"host": 4, "worker": 4, "executor": 3, "driver": 1}
DELAY_MS = 1000
"""How far the job's watermark stays behind."""


@dataclass(frozen=True)
class Round:
    """What happened in one.

    Attributes:
        settings: of the stream.
        killed: how many processes of each kind.
        timers: how many fired.
    """

    settings: dict[str, str]
    killed: Counter[str]
    timers: int


def run_round(folder: Path, seed: int, kills: int) -> Round:
    """Run a stream to its end through so many kills. An AssertionError says what came out wrong."""
    draw = random.Random(seed)
    victims = draw.choices(list(VICTIMS), weights=list(VICTIMS.values()), k=kills)
    settings = {
        "backend": draw.choice(["heap", "rocksdb", "spillable"]),
        "cache": draw.choice(["none", "lru"]),
        "everything": "yes",
        "spark__sql__streaming__stateStore__checkpointFormatVersion": draw.choice(["1", "2"]),
    }
    files = FILES_PER_BATCH * (kills + 3)
    write_events(folder / "events", draw, files)
    killed: Counter[str] = Counter()
    done = False
    while not done:
        with Job(folder, LOCAL_CLUSTER, **settings) as job:
            while not (done := not job.wait_for_batches(1)):
                if victims:
                    victim = victims.pop(0)
                    killed[victim] += len(job.kill(victim))
                    if victim == "driver":
                        break
            code = job.finish()
    assert code == 0, f"the job ended with {code}"
    assert not victims, f"it ended before {victims} were killed"
    return Round(settings, killed, check(folder))


def check(folder: Path) -> int:
    """Compare what came out with the events; how many timers fired."""
    users: dict[int, str] = {}
    for path in sorted((folder / "events").glob("*.parquet")):
        users |= dict(zip(*(column.to_pylist() for column in pq.read_table(path).columns), strict=True))
    last: dict[str, list[int]] = {}
    fired: Counter[tuple[str, int]] = Counter()
    for row in _rows(folder):
        user, history = row["user"], row["history"]
        assert history[: len(last.get(user, []))] == last.get(user, []), f"{user}: its list was rewritten"
        assert row["n"] == len(history) == sum(n for _, n in row["parities"]), f"{user}: states do not agree: {row}"
        weight = sum(weight_of(event % PARTS) for event in history)
        assert row["weight"] == weight, f"{user}: what was looked up weighs {row['weight']}, and not {weight}"
        last[user] = history
        if row["fired"] is not None:
            fired[user, row["fired"]] += 1
    expected: dict[str, set[int]] = defaultdict(set)
    for event, user in users.items():
        expected[user].add(event)
    for user, ids in expected.items():
        assert sorted(last[user]) == sorted(ids), f"{user}: ids lost or counted twice"
    registered = Counter((user, time_ms(event) + TIMER_S * 1000) for event, user in users.items())
    watermark_ms = time_ms(max(users)) - DELAY_MS
    due = {timer for timer in registered if timer[1] <= watermark_ms}
    assert max(fired.values(), default=1) == 1, "a timer fired twice"
    assert set(fired) == due, f"{len(due - set(fired))} timers did not fire, {len(set(fired) - due)} fired early"
    return len(fired)


def _rows(folder: Path) -> list[dict[str, object]]:
    """What came out, batch by batch; within a batch the rows of a user before its timers."""
    batches = sorted((folder / "output").glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    rows = []
    for batch in batches:
        table = pa.concat_tables(pq.read_table(part) for part in sorted(batch.glob("*.parquet")))
        rows += sorted(table.to_pylist(), key=lambda row: (row["fired"] is not None, row["fired"]))
    return rows


def main() -> None:
    """Run rounds until one fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            done = run_round(Path(folder), seed, given.kills)
        total.update(done.killed)
        print(f"seed {seed}: {done.settings}, killed {dict(done.killed)}, {done.timers} timers fired once", flush=True)
    print(f"{given.rounds} rounds, {sum(total.values())} processes killed: {dict(total)}")


if __name__ == "__main__":
    main()

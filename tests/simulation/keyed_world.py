"""A shard of keyed state on a simulated Spark: hosts with memory, a state store, attempts that die anywhere.

All that could differ between two runs comes from one seed: which batches there are, on which host an attempt runs, at
which step it dies, what dies with it, and whether it is a zombie that goes on later. There are no threads, files or
clocks. An attempt is a generator that yields before and after everything it writes.

Invariant of the world, which is Spark's: of a batch's attempts one is accepted, and what it put is there whole.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pyarrow as pa

from millpond.metrics import NO_METRICS
from millpond.state.checkpoint import Manifest, Shard, new_manifest
from millpond.state.checkpoint import shard as shard_module
from millpond.state.checkpoint.restoring import Version, newest_rows
from millpond.state.options.opening import open_backend
from millpond.state.options.operator import StateOptions
from millpond.state.spi import StateDescriptor, StateKind
from tests.simulation.lists import Element, History, Lists, Operation

KEYS = [f"key-{number}" for number in range(6)]
GROUPS = 3
KEY_SCHEMA = pa.schema([("key", pa.string())])
SEEN = StateDescriptor("seen", StateKind.LIST, pa.schema([("id", pa.int64()), ("attempt", pa.int64())]))
OPTIONS = [
    StateOptions.parse({}),
    StateOptions.parse({"state.backend.cache": "lru", "state.backend.cache.max-entries-num": "2"}),
]
GO_ON, FAIL, HOST_DIES, PAUSE = "go on", "fail", "host dies", "pause"

Attempt = Iterator[str]


class World:
    """One stream, from its first batch to its last.

    Args:
        seed: of everything.
        batches: how many.
    """

    def __init__(self, seed: int, batches: int = 5) -> None:
        self.draw = random.Random(seed)
        self.history = History()
        manifest = new_manifest(f"lineage-{seed}", 0, 1, GROUPS, KEY_SCHEMA)
        self.store: list[tuple[bytes, dict[int, bytes]]] = [(manifest.encode(), {})]
        self.options = self.draw.choice(OPTIONS)
        self.hosts: list[Shard | None] = [None, None]
        self.zombies: list[tuple[int, Attempt]] = []
        self.batches = [self._batch(number) for number in range(batches)]
        self.attempts = 0
        self.trace: list[str] = []

    def _batch(self, number: int) -> list[Operation]:
        keys = self.draw.choices(KEYS, k=self.draw.randrange(1, 5))
        return [Operation(key, None if self.draw.random() < 0.4 else number * 10 + at) for at, key in enumerate(keys)]

    def run(self) -> History:
        """Run every batch until an attempt of it is accepted, and read what is there in the end."""
        # Of few keys no base would ever be older than another, and most versions change most of them. So bases are owed
        # at random, and a version is full at random.
        with (
            mock.patch.object(shard_module, "owed_rows", self._owed),
            mock.patch.object(shard_module, "rather_full", self._full),
        ):
            self._run()
        return self.history

    def _owed(self, *_: object) -> int:
        return self.draw.choice([0, 1, 1, 8])

    def _full(self, *_: object) -> bool:
        return self.draw.random() < 0.2

    def _run(self) -> None:
        while len(self.store) <= len(self.batches):
            self._maintain()
            self._let_zombies_go_on()
            if len(self.store) > len(self.batches):
                break
            host = self.draw.randrange(len(self.hosts))
            # The lease of a shard: whoever has it in this process lets go of it first.
            for _, zombie in [each for each in self.zombies if each[0] == host]:
                zombie.close()
            self.zombies = [each for each in self.zombies if each[0] != host]
            self.attempts += 1
            self._drive(host, self._attempt(len(self.store) - 1, host, self.attempts))
        self._read()

    def _drive(self, host: int, attempt: Attempt) -> None:
        for step in attempt:
            happens = self.draw.choices([GO_ON, FAIL, HOST_DIES, PAUSE], weights=[40, 2, 2, 2])[0]
            self.trace.append(f"{host} {step}: {happens}")
            if happens == GO_ON:
                continue
            if happens == PAUSE:
                self.zombies.append((host, attempt))
                return
            if happens == HOST_DIES:
                self.hosts[host] = None
            attempt.close()
            return

    def _let_zombies_go_on(self) -> None:
        self.draw.shuffle(self.zombies)
        waiting, self.zombies = self.zombies, []
        for host, zombie in waiting:
            self._drive(host, zombie)

    def _maintain(self) -> None:
        """What a host does between batches, for as long as it has time."""
        busy = {host for host, _ in self.zombies}
        for number, shard in enumerate(self.hosts):
            for _ in range(self.draw.randrange(3)):
                if shard is not None and number not in busy:
                    shard.prepare_bases()

    def _attempt(self, number: int, host: int, me: int) -> Attempt:
        """One attempt at a batch, as a worker and a host do it."""
        encoded, segments = self.store[number]
        manifest = Manifest.decode(encoded, "the manifest")
        yield "before the shard"
        shard = self._standing_at(host, manifest, segments)
        yield "at the manifest"
        finished = False
        try:
            seen = []
            for operation in self.batches[number]:
                seen.append(apply(shard, operation, me))
                yield "in the batch"
            commit = shard.commit(f"attempt-{me}", watermark_ms=number)
            finished = True
        finally:
            if not finished:
                shard.rollback()
        yield "committed in the host"
        put = dict(segments)
        for segment_id, data in commit.segments.items():
            put[segment_id] = data
            yield "a segment is written"
        for segment_id in commit.dropped:
            del put[segment_id]
        stored = commit.manifest.encode()
        yield "all is written"
        if len(self.store) - 1 == number:
            self.store.append((stored, put))
            self.history.accept(self.batches[number], me, seen)
        yield "Spark has decided"

    def _standing_at(self, host: int, manifest: Manifest, segments: dict[int, bytes]) -> Shard:
        held = self.hosts[host]
        if held is None or not held.begin_at(manifest):
            backend = open_backend(self.options, manifest.key_groups, Path("unused"), NO_METRICS)
            held = self.hosts[host] = Shard(manifest, backend)
            held.declare(SEEN)
            held.restore(segments, [SEEN])
            assert held.begin_at(manifest)
        return held

    def _read(self) -> None:
        """What is stored, as readers read it, and as a host restores it."""
        encoded, segments = self.store[-1]
        manifest = Manifest.decode(encoded, "the manifest")
        if any(state["name"] == SEEN.name for state in manifest.states):
            rows = newest_rows(Version(manifest, segments), SEEN).to_pylist()
            self.history.check({row["key.key"]: elements(map(tuple_of, row["value"])) for row in rows})
        self.hosts[0] = None
        shard = self._standing_at(0, manifest, segments)
        self.history.check(lists_of(shard))


def group_of(key: str) -> int:
    return KEYS.index(key) % GROUPS


def apply(shard: Shard, operation: Operation, attempt: int) -> list[Element]:
    """Do what a row says, and see the key's list."""
    backend = shard.backend
    backend.enter(group_of(operation.key))
    backend.context.key = (operation.key,)
    seen = backend.list_state(SEEN)
    if operation.id is None:
        seen.clear()
    else:
        seen.append((operation.id, attempt))
    return elements(seen.get())


def lists_of(shard: Shard) -> Lists:
    found: Lists = {}
    for key in KEYS:
        shard.backend.enter(group_of(key))
        shard.backend.context.key = (key,)
        found[key] = elements(shard.backend.list_state(SEEN).get())
    return {key: each for key, each in found.items() if each}


def elements(rows: Iterator[Sequence[int]]) -> list[Element]:
    return [Element(*row) for row in rows]


def tuple_of(row: dict[str, int]) -> tuple[int, int]:
    return row["id"], row["attempt"]

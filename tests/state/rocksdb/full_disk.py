"""One run of a state and its timers on a disk that is full, in a process of its own: `python full_disk.py FOLDER SEED`.

FOLDER is a file system of a few MB, of which a file `ballast` takes a part. State is written until the disk is full;
then the last commit must be there, and once the ballast is gone, work must go on. By some seeds the state is closed,
or left open, while the disk is full.
"""

import faulthandler
import random
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.types.timer_states import TIMERS

TEXT = pa.schema([("text", pa.string())])
NUMBER = pa.schema([("number", pa.int64())])
SECONDS = 10
GROUPS = range(4)


class State:
    """A value, a map and timers for each key, beside dictionaries of what they hold."""

    def __init__(self, folder, rng):
        self.rng = rng
        self.backend = RocksDbBackend(GROUPS, folder, write_buffer_bytes=1 << 16)
        self.text = self.backend.value_state(StateDescriptor("text", StateKind.VALUE, TEXT))
        self.pages = self.backend.map_state(StateDescriptor("pages", StateKind.MAP, TEXT, NUMBER))
        self.timers = self.backend.map_state(TIMERS)
        self.texts, self.entries, self.set = {}, {}, {}

    def held(self):
        """A copy of what is held."""
        return dict(self.texts), dict(self.entries), dict(self.set)

    def went_back(self, held):
        """Hold what was held then."""
        self.texts, self.entries, self.set = map(dict, held)

    def change(self):
        """One change of either state; the dictionaries follow only where it is made."""
        key, data = self.rng.randrange(2_000), self.rng.randbytes(self.rng.randrange(200, 2_000)).hex()
        self.backend.enter(key % len(GROUPS))
        self.backend.context.key = (key,)
        if self.rng.random() < 0.7:
            self.text.update((data,))
            self.texts[key] = (data,)
        elif self.rng.random() < 0.6:
            self.pages.put((key % 5,), (data,))
            self.entries[key, key % 5] = (data,)
        elif self.rng.random() < 0.8:
            at_ms = self.rng.randrange(-5, 5)
            self.timers.put((at_ms,), (True,))
            self.set[at_ms, key] = True
        elif self.rng.random() < 0.5:
            for at_ms in range(-5, 5):
                self.timers.remove((at_ms,))
                self.set.pop((at_ms, key), None)
        else:
            self.pages.remove((key % 5,))
            self.entries.pop((key, key % 5), None)

    def check(self):
        """What is read is what the dictionaries say, cell by cell and key by key."""
        texts, entries = {}, {}
        for group in GROUPS:
            cells = self.backend.cells("text", group)
            texts |= {key: value for (key,), value in zip(cells.keys, cells.values, strict=True)}
            cells = self.backend.cells("pages", group)
            places = zip(cells.keys, cells.map_keys, strict=True)
            entries |= {(key, at): value for ((key,), (at,)), value in zip(places, cells.values, strict=True)}
        assert texts == self.texts
        assert entries == self.entries
        due = [(timer.expiry_ms, *timer.key) for timer in self.backend.timers_by_time(TIMERS.name, GROUPS).up_to(9)]
        assert [at_ms for at_ms, _ in due] == sorted(at_ms for at_ms, _ in due)
        assert sorted(due) == sorted(self.set)
        for key in self.rng.sample(range(2_000), 200):
            self.backend.enter(key % len(GROUPS))
            self.backend.context.key = (key,)
            assert self.text.get() == self.texts.get(key)
            assert self.pages.get((key % 5,)) == self.entries.get((key, key % 5))
            assert dict(self.pages.items()) == {(at,): value for (of, at), value in self.entries.items() if of == key}


def timed(call):
    began = time.monotonic()
    try:
        return call()
    finally:
        took = time.monotonic() - began
        assert took < SECONDS, f"{call} took {took:.1f} s"


def fill(state):
    for _ in range(100_000):
        timed(state.change)


def run(folder, seed):
    rng = random.Random(seed)
    state = State(folder / "state", rng)
    for _ in range(rng.randrange(50, 200)):
        state.change()
    state.backend.commit().release()
    committed = state.held()
    with pytest.raises(UnavailableError, match="no space for keyed state"):
        fill(state)
    timed(state.backend.rollback)
    state.went_back(committed)
    state.check()
    # Still full: a write may fail, and changes nothing that is read after the next rollback.
    try:
        for _ in range(3):
            timed(state.change)
    except UnavailableError:
        pass
    timed(state.backend.rollback)
    state.went_back(committed)
    state.check()
    if seed % 3 == 0:
        timed(state.backend.close)
        assert not (folder / "state").exists()
        print("closed")
        return
    if seed % 5 == 0:
        print("left open")
        sys.exit(0)
    (folder / "ballast").unlink()
    for _ in range(200):
        timed(state.change)
    state.check()
    state.backend.commit().release()
    state.change()
    state.backend.undo_commit()
    state.went_back(committed)
    state.check()
    timed(state.backend.close)
    assert not (folder / "state").exists()
    print("whole")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(60, exit=True)
    run(Path(sys.argv[1]), int(sys.argv[2]))

"""Checkpoints in files, written by processes that die, run out of disk or go on as zombies, all of it by one seed.

The file system is one in memory: it fails at an operation or a byte, keeps what was cut off, or has a file appear
though closing it failed. A process restores the newest version, appends to lists, and stores versions. Then
another process takes over, at any time, while the first may go on.

Invariant that is checked: a restore brings back a version exactly as it was, and none before the last acknowledged one.
"""

import random
from typing import Any
from unittest import mock

from millpond.errors import MillpondError
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint import Checkpointer, FileStorage, new_manifest, restore
from millpond.state.checkpoint.storage import files as files_module
from millpond.state.spi import HeapBackend
from tests.simulation.keyed_world import GROUPS, KEY_SCHEMA, KEYS, SEEN, elements, group_of
from tests.simulation.lists import Element, History, Lists
from tests.state.checkpoint.faulty_files import Disk, FaultyFiles


class Process:
    """One process that has taken the shard over."""

    def __init__(self, world: "StoredWorld", number: int) -> None:
        self.files = FaultyFiles(world.disk, atomic=world.atomic)
        storage = FileStorage(
            "folder", 0, filesystem=self.files.filesystem(), retain=world.draw.randrange(1, 4), writer=f"w{number}"
        )
        self.backend: KeyedStateBackend = HeapBackend(range(GROUPS))
        restored = restore(storage, self.backend, [SEEN])
        manifest = new_manifest("lineage", 0, 1, GROUPS, KEY_SCHEMA) if restored is None else restored.manifest
        self.token = manifest.token
        self.checkpointer = Checkpointer(storage, self.backend, manifest, [SEEN])
        self.checkpointer._writer = f"w{number}"
        self.lists: Lists = world.stored[self.token]

    def append(self, key: str, element: Element) -> None:
        self.backend.enter(group_of(key))
        self.backend.context.key = (key,)
        self.backend.list_state(SEEN).append(tuple(element))
        self.lists = self.lists | {key: [*self.lists.get(key, []), element]}

    def found(self) -> Lists:
        found: Lists = {}
        for key in KEYS:
            self.backend.enter(group_of(key))
            self.backend.context.key = (key,)
            found[key] = elements(self.backend.list_state(SEEN).get())
        return {key: each for key, each in found.items() if each}


class StoredWorld:
    """One shard's folder, and everybody who writes to it.

    Args:
        seed: of everything.
        steps: how many things happen.
    """

    def __init__(self, seed: int, steps: int = 25) -> None:
        self.draw = random.Random(seed)
        self.disk = Disk()
        self.atomic = self.draw.random() < 0.5
        self.steps = steps
        self.stored: dict[str, Lists] = {"": {}}
        """What each version held that was ever given to a storage, by its token."""
        self.good = [""]
        """The last acknowledged version, and those that were tried since and may have come to be."""
        self.processes = 0
        self.zombies: list[Process] = []
        self.faults = History().faults
        self.failures = 0

    def run(self) -> "StoredWorld":
        """Let everything happen, and restore at the end."""
        with mock.patch.object(files_module, "_WRITTEN_AT_ONCE", 1):
            process = self._taken_over()
            for step in range(self.steps):
                happens = self.draw.choices(["append", "store", "crash", "zombie"], weights=[6, 5, 1, 1])[0]
                if happens == "append":
                    process.append(self.draw.choice(KEYS), Element(step, self.processes))
                elif happens == "store":
                    self._store(process)
                elif happens == "crash":
                    self.zombies.append(process)
                    process = self._taken_over()
                elif self.zombies:
                    self._store(self.draw.choice(self.zombies), passed_by=True)
            self._taken_over()
        return self

    def _taken_over(self) -> Process:
        self.processes += 1
        process = Process(self, self.processes)
        assert process.token in self.good, f"{process.token} is none of {self.good}: an acknowledged version was lost"
        history = History(lists={key: list(each) for key, each in process.lists.items()})
        history.past = {element for lists in self.stored.values() for each in lists.values() for element in each}
        history.check(process.found())
        self.faults.update(history.faults)
        # What an earlier writer tried may still land, until a later one has stored a version.
        self.good = [process.token, *(token for token in self.good[1:] if token != process.token)]
        return process

    def _store(self, process: Process, *, passed_by: bool = False) -> None:
        fails = self.draw.choice(["no", "no", "operations", "space", "late"])
        if fails != "no":
            limits: dict[str, Any] = {"operations": 12, "space": 3000, "late": True}
            limit = limits[fails]
            setattr(process.files, fails, limit if limit is True else self.draw.randrange(limit))
        begun = process.checkpointer.begin(full=self.draw.random() < 0.2)
        token = f"{process.checkpointer._writer}-{begun.version}"
        self.stored[token] = process.lists
        try:
            process.checkpointer.write(begun)
        except (MillpondError, OSError):
            self.failures += 1
            if not passed_by:
                self.good.append(token)
        else:
            assert not passed_by, f"{token} was acknowledged though its writer had been passed by"
            self.good = [token]
        process.files.heal()
        if self.draw.random() < 0.5:
            self.disk.land()

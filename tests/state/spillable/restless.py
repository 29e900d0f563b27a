"""A heap that spills whose key groups move all the time: before any operation, of the backend or of a handle."""

import random
from pathlib import Path
from typing import Any

from millpond.state.spillable import SpillableBackend, SpillableSettings
from millpond.state.spillable.gc_pauses import GcPauses
from millpond.state.spillable.monitor import Monitor

LIMIT_BYTES = 1 << 30
SEED = 325


def calm_monitor(settings: SpillableSettings) -> Monitor:
    """A monitor of a process that uses little and whose clock stands: it only has loaded what was restored."""
    return Monitor(settings, LIMIT_BYTES, read_bytes=lambda: 1 << 20, clock_ms=lambda: 0, pauses=GcPauses(lambda: 0))


def open_spillable(key_groups: range, folder: Path, **settings: Any) -> SpillableBackend:
    """A backend whose clock stands, with small files."""
    chosen = SpillableSettings(**{"chunk_bytes": 1 << 20, **settings})
    return SpillableBackend(key_groups, folder, chosen, monitor=calm_monitor(chosen), clock_ns=lambda: 0)


class Restless:
    """Passes everything on to a backend, after it has moved a key group, or written what changed, or done nothing.

    Which it is comes from a generator with a seed of its own, so that a run can be repeated.
    """

    def __init__(self, key_groups: range, folder: Path) -> None:
        self._backend = open_spillable(key_groups, folder)
        self._random = random.Random(SEED)
        self._handles: dict[str, Any] = {}

    def _stir(self) -> None:
        chosen = self._random.randrange(5)
        groups = [self._random.choice(self._backend.key_groups)]
        if chosen in (0, 1):
            self._backend.spill_now(groups)
        elif chosen == 2:
            self._backend.load_now(groups)
        elif chosen == 3:
            self._backend.flush_now()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if not callable(found) or name == "close":
            return found

        def stirred(*args: Any, **named: Any) -> Any:
            self._stir()
            made = found(*args, **named)
            if name == "raw":
                return RestlessHandle(self, made)
            if name.endswith("_state"):
                return self._handles.setdefault(args[0].name, RestlessHandle(self, made))
            return made

        return stirred


class RestlessHandle:
    """Passes everything on to a handle, after the backend's key groups have moved."""

    def __init__(self, owner: Restless, handle: Any) -> None:
        self._owner = owner
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._handle, name)
        if not callable(found):
            return found

        def stirred(*args: Any) -> Any:
            self._owner._stir()
            return found(*args)

        return stirred

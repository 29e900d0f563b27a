"""Open a shard's backend on Spark, by the operator's options, in a folder that is removed with its process.

A process that holds shards is a state host, or a worker with `host="inline"`. It owns one folder per disk,
with a folder in it for each backend. A backend removes its folder when its shard is dropped. The process
removes the rest when it ends. The next process removes what a killed one left.
"""

import os
import threading
from itertools import count
from pathlib import Path

from millpond.errors import UnavailableError
from millpond.metrics import NO_METRICS, Recorder
from millpond.spark.environment.folders import OwnedFolder, user_folder
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.options.opening import open_backend
from millpond.state.options.operator import StateOptions

_KIND = "state"
_OPENED = count()
_LOCK = threading.Lock()
_FOLDERS: dict[tuple[int, Path | None], OwnedFolder] = {}
"""Owned folders by process id and disk. The process id is there because a forked child owns none of its parent's."""


def open_shard_backend(options: StateOptions, key_groups: range, recorder: Recorder = NO_METRICS) -> KeyedStateBackend:
    """Open a backend for these key groups, with its files in `state.backend.rocksdb.local-dir` or a temporary folder.

    `recorder` gets the metrics of the backend, and of the cache in front of it if the options ask for one.

    Raises:
        UnavailableError: the folder cannot be made.
    """
    folder = _owned_folder(options.local_dir).path / f"backend-{next(_OPENED)}"
    return open_backend(options, key_groups, folder, recorder)


def remove_backend_folders() -> None:
    """Remove the files of this process's backends. Call it when the process ends: no backend works afterwards."""
    with _LOCK:
        for owner in [owner for owner in _FOLDERS if owner[0] == os.getpid()]:
            _FOLDERS.pop(owner).close()


def _owned_folder(disk: Path | None) -> OwnedFolder:
    owner = (os.getpid(), disk)
    with _LOCK:
        if owner not in _FOLDERS:
            try:
                _FOLDERS[owner] = OwnedFolder(user_folder(disk), _KIND)
            except (OSError, UnavailableError) as error:
                raise UnavailableError(
                    f"no folder for keyed state can be made in {disk or 'the temporary folder'}: {error}. Mend that, "
                    "or set state.backend.rocksdb.local-dir to a folder that every executor can write to."
                ) from error
        return _FOLDERS[owner]

"""The backend under a shard on Spark: opened by the operator's options, in a folder that goes with its process.

Every process that holds shards (a state host, or a worker with `host="inline"`) has one owned folder per
disk, and in it one folder a backend. A backend removes its own when its shard is dropped; the process
removes the rest when it ends; and what a killed process left is removed by the next one.
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
"""By process, since a forked child owns none of its parent's, and disk."""


def open_shard_backend(options: StateOptions, key_groups: range, recorder: Recorder = NO_METRICS) -> KeyedStateBackend:
    """A backend for some key groups, its files beneath `state.backend.rocksdb.local-dir` or the temporary folder.

    `recorder` hears of the cache in front of it, if the options ask for one.

    Raises:
        UnavailableError: there can be no such folder.
    """
    folder = _owned_folder(options.local_dir).path / f"backend-{next(_OPENED)}"
    return open_backend(options, key_groups, folder, recorder)


def remove_backend_folders() -> None:
    """Remove what this process's backends have on disk. For its end: none of them can be used afterwards."""
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

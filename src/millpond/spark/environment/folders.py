"""Temporary folders on a host: private to their user, and not left behind by a killed owner.

An `OwnedFolder` is removed by its owner at exit. An owner that was killed could not do that, so
whoever makes the next folder of the kind looks for abandoned ones first. Whether an owner lives is
told by a file lock it holds, which ends with the process; process ids would not do, since they are
given again and containers that share a disk do not share them.

The invariant: nothing is removed unless its lock could be taken, and it is removed under that lock.
"""

import atexit
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import IO

from millpond.errors import UnavailableError


def user_folder(parent: Path | None = None) -> Path:
    """The folder under which this user's Millpond processes keep what is temporary; only the user can enter it.

    It lies in `parent`, which is made if need be, or where temporary files lie.

    Raises:
        UnavailableError: somebody else has a folder of that name.
    """
    if parent is None:
        parent = Path(tempfile.gettempdir())
    else:
        parent.mkdir(parents=True, exist_ok=True)
    return private_folder(parent / f"millpond-{os.getuid()}")


def private_folder(folder: Path) -> Path:
    """Make a folder, if need be, that only this user can enter.

    Raises:
        UnavailableError: it is there and belongs to another user, or others can enter it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnavailableError(
            f"{folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; expected one that only user "
            f"{os.getuid()} can enter. Remove it, chmod 700 it, or point TMPDIR elsewhere."
        )
    return folder


class OwnedFolder:
    """A new folder in `parent`, named `kind` and something random, for as long as this process lives."""

    def __init__(self, parent: Path, kind: str) -> None:
        remove_abandoned(parent, kind)
        while True:
            self.path = parent / f"{kind}-{secrets.token_hex(8)}"
            lock_path = _lock_path(self.path)
            self._lock = lock_path.open("x")
            if _taken(self._lock) and lock_path.exists():
                break
            # Somebody looking for abandoned folders was between us and the lock; it is gone with them.
            self._lock.close()
        self.path.mkdir(mode=0o700)
        atexit.register(self.close)

    def close(self) -> None:
        """Remove the folder and all in it. Idempotent."""
        if not self._lock.closed:
            atexit.unregister(self.close)
            _remove(self.path)
            self._lock.close()


def remove_abandoned(parent: Path, kind: str) -> list[Path]:
    """Remove the folders of a kind whose owners are dead; which they were."""
    removed = []
    for lock_path in sorted(parent.glob(f"{kind}-*.lock")):
        try:
            lock = lock_path.open("r+")
        except FileNotFoundError:
            continue
        with lock:
            if _taken(lock):
                _remove(lock_path.with_suffix(""))
                removed.append(lock_path.with_suffix(""))
    return removed


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(folder: Path) -> Path:
    return folder.with_suffix(".lock")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # The lock file stays with what could not be removed, so that the next one finds it.
    if not folder.exists():
        _lock_path(folder).unlink(missing_ok=True)

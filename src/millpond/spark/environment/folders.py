"""Temporary folders on one machine: private to their user, and removed even if their owner was killed.

An `OwnedFolder` is removed by its owner at exit. A killed owner cannot do that, so the process that makes
the next folder of the kind first removes abandoned ones. An owner holds a file lock, which ends with its
process: that tells whether it lives. Process ids would not do, since they are reused, and containers that
share a disk have separate ids.

Invariant: a folder is removed only by the process that has taken its lock, and while it holds the lock.

All users of the machine share the folder for temporary files. Any of them may make a link or a folder under
a free name, and may rename entries of a folder without the sticky bit. So each part of a path is checked,
without following links, before anything below it is trusted.
"""

import atexit
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

from millpond.errors import UnavailableError

_MOST_LINKS = 40


def user_folder(parent: Path | None = None) -> Path:
    """Return the folder for temporary files of this user's Millpond processes. Only the user can enter it.

    It is in `parent`, which is made if need be, or in the system's folder for temporary files.

    Raises:
        UnavailableError: another user has a folder of that name, or could replace it.
    """
    if parent is None:
        parent = Path(tempfile.gettempdir())
    else:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UnavailableError(f"{parent} is no folder ({error}); name a folder, or remove the file.") from error
    return private_folder(parent / f"millpond-{os.getuid()}")


def private_folder(folder: Path) -> Path:
    """Make a folder, if need be, that only this user can enter, at a path that no other user can change.

    Raises:
        UnavailableError: it is not a folder, is a link, belongs to another user, or others can enter it; or
            another user can change where its path leads.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow the links that are looked for
    check_path(folder.parent)
    return owned_folder(folder)


def owned_folder(folder: Path) -> Path:
    """Make a folder, if need be, that only this user can enter. The path to it must be trusted.

    Raises:
        UnavailableError: it is not a folder, is a link, belongs to another user, or others can enter it.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
            raise
        found = folder.lstat()
    else:
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnavailableError(
            f"{folder} is a {_kind(found)} of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; expected "
            f"a folder that only user {os.getuid()} can enter. Remove it, chmod 700 it, or point TMPDIR elsewhere."
        )
    return folder


def check_path(folder: Path) -> None:
    """Check each part of an absolute path: only the owners of its parts can make it lead elsewhere.

    A part that others may write to must have the sticky bit, and the next part must then belong to this user, to
    root or to the part's own owner. A part that only its owner can write to is trusted.

    Raises:
        UnavailableError: another user can change, or has made, a part of the path.
    """
    _check_parts(folder, _MOST_LINKS)


def _check_parts(folder: Path, links: int) -> None:
    at = Path(folder.anchor)
    above = at.lstat()
    _check_entries(at, above)
    for place, part in enumerate(folder.parts[1:], 2):
        at /= part
        found = at.lstat()
        if _others_write(above) and found.st_uid not in (0, os.getuid(), above.st_uid):
            raise UnavailableError(
                f"{at} belongs to user {found.st_uid} and lies in {at.parent}, where others can write; expected a "
                f"{_kind(found)} of user {os.getuid()} or root. Remove it, or point TMPDIR elsewhere."
            )
        if stat.S_ISLNK(found.st_mode):
            if not links:
                raise UnavailableError(f"{folder} leads through more than {_MOST_LINKS} links; point TMPDIR elsewhere.")
            # abspath() and not resolve(): the links behind this one are checked too.
            target = os.path.abspath(at.parent / at.readlink())  # noqa: PTH100
            _check_parts(Path(target, *folder.parts[place:]), links - 1)
            return
        _check_entries(at, found)
        above = found


def _check_entries(folder: Path, found: os.stat_result) -> None:
    """Raise an error for a folder whose entries other users can rename."""
    if _others_write(found) and not found.st_mode & stat.S_ISVTX:
        raise UnavailableError(
            f"{folder} has mode {stat.S_IMODE(found.st_mode):o}: other users can replace what lies in it. Take their "
            "right to write away (chmod go-w), set the sticky bit (chmod +t), or point TMPDIR elsewhere."
        )


def _others_write(found: os.stat_result) -> bool:
    """Whether users other than the owner and root's group can write to a folder."""
    return bool(found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if found.st_gid else 0)))


def _kind(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "link"
    return "folder" if stat.S_ISDIR(found.st_mode) else "file"


class OwnedFolder:
    """A new folder in `parent` that lives as long as this process. Its name is `kind` and random digits."""

    def __init__(self, parent: Path, kind: str) -> None:
        remove_abandoned(parent, kind)
        while True:
            self.path = parent / f"{kind}-{secrets.token_hex(8)}"
            lock_path = _lock_path(self.path)
            self._lock = lock_path.open("x")
            if _taken(self._lock) and lock_path.exists():
                break
            # A process that removes abandoned folders took the lock before us, and removes the lock file.
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
    """Remove the folders of a kind whose owners have ended. Return their paths."""
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
    # The lock file stays with a folder that could not be removed, so that the next process tries again.
    if not folder.exists():
        _lock_path(folder).unlink(missing_ok=True)

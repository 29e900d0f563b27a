"""The folder of one run: what was asked, how far it has come, and who may write there.

Every stage of the demo leaves its outputs here, so that a run which was killed goes on where it was.
The invariant: `millpond-demo.json` names a stage as finished only after all of that stage's outputs
are on disk, and a folder without that file is not ours to write into. A file with a name is whole:
`publish` writes under a hidden name, flushes, and links; `replace_bytes` is the one that replaces,
and only the manifest and the summary are replaced.

Two runs at once would each undo the other, so a run holds a lock on the folder, which the operating
system drops with the process however it ends.
"""

import contextlib
import errno
import fcntl
import io
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import CorruptionError, OptionError, UnavailableError

MANIFEST = "millpond-demo.json"
FORMAT = 2
_LOCK = ".lock"


class Asked(msgspec.Struct, frozen=True):
    """What the user asked of a run. Another question is another run and wants another folder.

    `store` is the URL without its password; None is LMDB in the folder.
    """

    events: int | None = None
    until: str | None = None
    backend: str = "heap"
    state_cache: int = 0
    store: str | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What was asked, as words of the command line.

        >>> Asked(events=4000, backend="rocksdb").options
        ('--events', '4000', '--backend', 'rocksdb')
        """
        events = () if self.events is None else ("--events", str(self.events))
        until = () if self.until is None else ("--until", self.until)
        backend = () if self.backend == "heap" else ("--backend", self.backend)
        state_cache = () if self.state_cache == 0 else ("--state-cache", str(self.state_cache))
        store = () if self.store is None else ("--store", self.store)
        return events + until + backend + state_cache + store

    def __str__(self) -> str:
        return " ".join(self.options) or "the whole year"


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What stands in the manifest: the format, the question, the run's name, finished stages, seconds spent."""

    format: int
    asked: Asked
    run: str = ""
    stages: dict[str, dict[str, Any]] = {}
    spent_seconds: float = 0.0


@dataclass
class Workdir:
    """An opened folder of a run. Made by `open_workdir`, which also holds its lock."""

    path: Path
    manifest: Manifest
    resumed: bool

    def done(self, stage: str) -> bool:
        """Whether `stage` was finished, by this process or an earlier one."""
        return stage in self.manifest.stages

    def facts(self, stage: str) -> dict[str, Any]:
        """What was noted when `stage` was finished."""
        return self.manifest.stages[stage]

    def finish(self, stage: str, facts: dict[str, Any]) -> None:
        """Note that `stage` and all its outputs are on disk."""
        self.manifest.stages[stage] = facts
        self._save()

    def spend(self, seconds: float) -> None:
        """Add to the seconds that this run has taken, over all the processes that worked on it."""
        self.manifest.spent_seconds += seconds
        self._save()

    def _save(self) -> None:
        replace_json(self.path / MANIFEST, self.manifest)


@contextlib.contextmanager
def open_workdir(path: Path, asked: Asked) -> Iterator[Workdir]:
    """Open the folder of a run, new or begun, for this process alone.

    Raises:
        OptionError: the folder belongs to another run, or to something else.
        CorruptionError: its manifest cannot be read.
        UnavailableError: another process is at work in it, or the disk refuses.
    """
    if path.exists() and not path.is_dir():
        raise OptionError(f"--workdir {path}: expected a folder, found a file. Name another one.")
    manifest_path = path / MANIFEST
    with contextlib.ExitStack() as held:
        try:
            _refuse_strangers(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((path / _LOCK).open("a+", encoding="utf-8"))
            _take(lock, path)
            begun = manifest_path.exists()
            manifest = _read_manifest(manifest_path, asked) if begun else Manifest(FORMAT, asked, uuid.uuid4().hex[:12])
            workdir = Workdir(path, manifest, resumed=begun)
            if not begun:
                workdir.spend(0.0)
        except OSError as error:
            raise refused(error, path) from error
        yield workdir


def _refuse_strangers(path: Path) -> None:
    """Refuse a folder that holds something, and not a run. A run may have been killed over its first manifest."""
    if not path.exists() or (path / MANIFEST).exists():
        return
    strangers = [
        each.name for each in path.iterdir() if each.name != _LOCK and not each.name.startswith(f".{MANIFEST}.")
    ]
    if strangers:
        raise OptionError(
            f"--workdir {path}: expected an empty folder or one of a millpond demo (with {MANIFEST}), "
            f"found {min(strangers)!r}. Name another folder."
        )


def publish(path: Path, write: Callable[[Path], object], *, mtime_s: int | None = None) -> None:
    """Let `write` fill a hidden file, flush it to disk, and give it its name in one step.

    If the name is taken already, what is there stays: it was whole when it appeared.

    Raises:
        UnavailableError: the disk is full, or does not let the file be written.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            write(hidden)
            _flush(hidden)
            if mtime_s is not None:
                os.utime(hidden, (mtime_s, mtime_s))
            with contextlib.suppress(FileExistsError):
                os.link(hidden, path)
            _flush(path.parent)
        finally:
            hidden.unlink(missing_ok=True)
    except OSError as error:
        raise refused(error, path) from error


def replace_json(path: Path, value: object) -> None:
    """Put `value` as JSON where `path` is; see `replace_bytes`."""
    replace_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def replace_parquet(path: Path, table: pa.Table) -> None:
    """Put a table as Parquet where `path` is; see `replace_bytes`."""
    content = io.BytesIO()
    pq.write_table(table, content)
    replace_bytes(path, content.getvalue())


def replace_bytes(path: Path, content: bytes) -> None:
    """Put `content` where `path` is, so that a reader finds the old or the new, never a part.

    Raises:
        UnavailableError: the disk is full, or does not let the file be written.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            hidden.write_bytes(content)
            _flush(hidden)
            hidden.replace(path)
            _flush(path.parent)
        finally:
            hidden.unlink(missing_ok=True)
    except OSError as error:
        raise refused(error, path) from error


def refused(error: OSError, path: Path) -> UnavailableError:
    """The operating system's refusal in words that say what to do."""
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnavailableError(
            f"{where}: the disk is full. Free some space and give the same command again: it goes on."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UnavailableError(f"{where}: no permission to write there. Name another folder with --workdir.")
    return UnavailableError(
        f"{where}: {error.strerror or error}. Mend that and give the same command again: it goes on."
    )


def _read_manifest(path: Path, asked: Asked) -> Manifest:
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"{path}: expected the manifest of a millpond demo, and it does not read: {error}. "
            f"Remove {path.parent} and start again."
        ) from error
    if manifest.format != FORMAT:
        raise OptionError(
            f"{path}: written in format {manifest.format}, this version reads {FORMAT}. "
            f"Remove {path.parent} or name another folder with --workdir."
        )
    if manifest.asked != asked:
        raise OptionError(
            f"--workdir {path.parent}: holds the run of {manifest.asked}, asked is {asked}. "
            "Name another folder, remove this one, or ask for what it holds."
        )
    return manifest


def _take(lock: IO[str], path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        raise UnavailableError(
            f"--workdir {path}: process {lock.read().strip() or '?'} is at work there. "
            "Wait for it, or name another folder."
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The worker's side of a batch: find or start the shard's state host, and exchange messages with it.

The sockets of an application's hosts on one executor are in one private folder, named after the
executor's process and the application. A file lock makes sure that each host is started once. Spark may
give any shards to an executor, so hosts are assigned round-robin, in the order in which tasks and shards
first come. A file in the folder records each shard with the task attempt that first had it.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, cast

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import private_folder, user_folder
from millpond.spark.environment.peer import check_peer
from millpond.spark.host.memory import memory_limit_hint
from millpond.spark.host.process import executor_pid, hosts_folder_name, kill, remove_folders_of_ended_executors
from millpond.spark.host.wire import (
    LISTENING,
    Blob,
    Connection,
    End,
    Failed,
    Found,
    Message,
    Ready,
    Restore,
    Segment,
)
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.operator import HOST_TIMEOUT
from millpond.state.checkpoint import Commit, Manifest

_MAX_SOCKET_PATH = 103
_START_SECONDS = 60.0
_END_SECONDS = 10.0


@dataclass(frozen=True)
class HostAddress:
    """Where one state host of this executor listens."""

    socket_path: Path
    executor: int

    @staticmethod
    def first(application: str) -> "HostAddress":
        """Return the address of this executor's first host, which has the caches of its lookup tables."""
        return HostAddress._numbered(0, application)

    @staticmethod
    def of_shard(shard: int, hosts: int, application: str, task: int) -> "HostAddress":
        """Return the address of the host that owns a shard, on the executor of this worker.

        Args:
            shard: the shard's number.
            hosts: how many hosts the executor has for the application. 0: one for each processor of the machine.
            application: the id of the application.
            task: the task attempt that has the shard now.
        """
        place = _place(user_folder() / hosts_folder_name(executor_pid(), application), shard, task)
        return HostAddress._numbered(place % (hosts or os.cpu_count() or 1), application)

    @staticmethod
    def _numbered(number: int, application: str) -> "HostAddress":
        executor = executor_pid()
        path = user_folder() / hosts_folder_name(executor, application) / f"{number}.sock"
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise UnavailableError(
                f"the socket path {path} of a state host has more than {_MAX_SOCKET_PATH} bytes, the system's limit. "
                "Point TMPDIR at a folder with a shorter name."
            )
        return HostAddress(path, executor)

    def connect(self, timeout: timedelta | None = HOST_TIMEOUT) -> Connection:
        """Connect to the host, start it if it does not run, and send it this worker's log.

        A host that sends and receives nothing for `timeout` is taken to hang. It is killed, and the call that waits
        for it raises an UnavailableError.
        """
        connection = self._connected(timeout) or self._started(timeout)
        connection.send_log()
        return connection

    def _connected(self, timeout: timedelta | None) -> Connection | None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(self.socket_path))
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        try:
            host = check_peer(sock, "a state host")
        except UnavailableError:
            sock.close()
            raise
        if timeout is None:
            return Connection(sock)
        return Connection(sock, partial(_replaced, host, timeout), timeout)

    def _started(self, timeout: timedelta | None) -> Connection:
        with _locked(self.socket_path.with_suffix(".lock")):
            return self._connected(timeout) or self._spawned(timeout)

    def _spawned(self, timeout: timedelta | None) -> Connection:
        remove_folders_of_ended_executors(user_folder())
        self.socket_path.unlink(missing_ok=True)
        # The host needs its own session: the signal that ends the workers' daemon must not end it.
        host = subprocess.Popen(
            [sys.executable, "-m", "millpond.spark.runtime.server", str(self.socket_path), str(self.executor)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        # The host prints one line when it listens. Its later output goes to its stderr.
        with cast("IO[bytes]", host.stdout) as lines:
            said = lines.readline().decode().strip() if select.select([lines], [], [], _START_SECONDS)[0] else ""
        connection = self._connected(timeout) if said == LISTENING else None
        if connection is None:
            host.kill()
            raise UnavailableError(
                said
                or f"a state host did not start within {_START_SECONDS:.0f} s (exit code {host.wait()}); its error is "
                f"in the executor's log.{memory_limit_hint()} If this platform forbids subprocesses, use "
                'StateConfig(host="inline").'
            )
        return connection


def _replaced(host: int | None, timeout: timedelta) -> UnavailableError:
    """Kill a host that hangs, so that the next task starts another. Return the error for the task that waited."""
    became = "could not be killed, as this system does not tell which process it is"
    if host is not None:
        kill(host, _END_SECONDS)
        became = f"was killed (process {host}), and the next task starts another"
    return UnavailableError(
        f"a state host gave no sign for {timeout}, StateConfig(host_timeout=...): it hangs, or a batch of one shard "
        f"takes longer. It {became}. If batches take that long, give a longer host_timeout."
    )


def _place(folder: Path, shard: int, task: int) -> int:
    """Return the number that, modulo the hosts, is a shard's host. It is decided when the shard first comes.

    A task usually has one shard, and shards that run at the same time are neighbours in the order of tasks. After
    `coalesce` a task has several. Spark gives neighbours to one task in the first batch of a query, but to different
    tasks in all later ones, when it knows their executor. So the shards of a task go to different hosts, too.
    """
    with _locked(folder / "shards.lock"):
        written = folder / "shards"
        known = [line.split() for line in written.read_text().splitlines()] if written.exists() else []
        task_of = dict(known)
        if str(shard) not in task_of:
            task_of[str(shard)] = str(task)
            # A worker that is killed here, or finds the disk full, leaves the former file.
            fresh = folder / "shards.new"
            fresh.write_text("".join(f"{number} {by}\n" for number, by in task_of.items()))
            fresh.replace(written)
    tasks = list(dict.fromkeys(task_of.values()))
    of_task = task_of[str(shard)]
    siblings = [number for number, by in task_of.items() if by == of_task]
    return tasks.index(of_task) + siblings.index(str(shard))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. A host that ends may remove the folder; it is then made again."""
    while True:
        private_folder(path.parent)
        try:
            lock = path.open("w")
        except FileNotFoundError:
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(lock, path):
                yield
                return


def _is(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def restore_wanted(connection: Connection) -> bool:
    """Wait for the host's answer: whether it needs the segments first."""
    return isinstance(_expect(connection, Ready, Restore)[0], Restore)


def committed(connection: Connection, parent: Manifest) -> tuple[BatchDone, Commit]:
    """Wait for the commit. Return the batch's record and the version that follows `parent`.

    The version's segments come over the connection. Read each of them once, in order.
    """
    message, encoded = _expect(connection, BatchDone)
    assert isinstance(message, BatchDone)  # noqa: S101 - for the type checker; _expect refused the rest
    manifest = Manifest.decode(encoded, "the manifest sent by the state host")
    ids = [ref.id for ref in manifest.segments if ref.id >= parent.next_segment]
    return message, Commit(manifest, _ArrivingSegments(connection, ids), message.dropped, parent)


class _ArrivingSegments(Mapping[int, bytes]):
    """The new segments as the host sends them. One is in memory at a time."""

    def __init__(self, connection: Connection, ids: list[int]) -> None:
        self._connection = connection
        self._ids = ids

    def __getitem__(self, segment_id: int) -> bytes:
        message, data = _expect(self._connection, Segment)
        if message != Segment(segment_id):
            raise UnavailableError(
                f"the state host sent {message} where segment {segment_id} was expected. Both must run one Millpond."
            )
        return data

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def output_blobs(connection: Connection) -> Iterator[bytes]:
    """Yield the output, which follows the segments. Read it to its end."""
    _expect(connection, End)
    while True:
        message, data = _expect(connection, Blob, End)
        if not isinstance(message, Blob):
            return
        yield data


def found_rows(connection: Connection) -> tuple[Found, bytes]:
    """Wait for the rows of the keys that were sent."""
    message, payload = _expect(connection, Found)
    assert isinstance(message, Found)  # noqa: S101 - for the type checker; _expect refused the rest
    return message, payload


def _expect(connection: Connection, *kinds: type[Message]) -> tuple[Message, bytes]:
    message, payload = connection.receive()
    if isinstance(message, Failed):
        raise message.raised.error()
    if not isinstance(message, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UnavailableError(f"the state host sent {type(message).__name__} where {names} was expected.")
    return message, payload

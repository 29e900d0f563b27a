"""The processes that own a state host: the executor's JVM and the daemons of its workers. Find, watch, kill, clean up.

Invariant: process ids are reused, so a process is identified by more than its id wherever the system allows it.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

from millpond.errors import UnavailableError


def executor_pid() -> int:
    """Return the process id of this worker's JVM: the nearest ancestor that is a Java process."""
    pid = os.getppid()
    while pid > 1:
        parent, name = _parent_and_name(pid)
        if name.startswith("java"):
            return pid
        pid = parent
    raise UnavailableError(
        "no JVM among this process's ancestors: state hosts live beside Spark's Python workers. "
        'Run the operator in Spark, or use StateConfig(host="inline").'
    )


def executor_name(pid: int) -> str:
    """Return a name for an executor's process that no other process on this machine ever has.

    Process ids are reused, and each container that shares the disk has its own ids. So the name also holds
    the start time and the id's namespace, where the system tells them.
    """
    started = _started(pid)
    return str(pid) if started is None else f"{pid}-{started}-{_namespace()}"


def _started(pid: int) -> str | None:
    """Return a process's start time in system ticks; None if there is no such process, or the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


_FOLDER = "executor-"
_ARTIFACTS = "SPARK_JOB_ARTIFACT_UUID"


def hosts_folder_name(executor: int, application: str) -> str:
    """Return the folder name of an application's hosts on one executor. It is short, as socket paths must be.

    Each session of Spark Connect has its own Python files, and so its own hosts.
    """
    owner = f"{application} {os.environ.get(_ARTIFACTS, '')}"
    return f"{_FOLDER}{executor_name(executor)}-{zlib.crc32(owner.encode()):08x}"


def remove_folders_of_ended_executors(parent: Path) -> None:
    """Remove the folders of hosts that were killed with their executors and could not remove them."""
    here = str(_namespace())
    for folder in parent.glob(f"{_FOLDER}*-*-*-*"):
        pid, started, namespace, _ = folder.name.removeprefix(_FOLDER).split("-")
        if namespace == here and _started(int(pid)) != started:
            shutil.rmtree(folder, ignore_errors=True)


def _parent_and_name(pid: int) -> tuple[int, str]:
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        return int(rest.split()[1]), name
    listed = subprocess.run(
        ["/bin/ps", "-o", "ppid=,ucomm=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    parent, _, name = listed.stdout.strip().partition(" ")
    return int(parent), name.strip()


class ProcessWatch:
    """Tells whether a process has ended, even if its id was reused since."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = _descriptor(pid)
        self._ended = False

    def ended(self) -> bool:
        """Whether the process is gone."""
        if not self._ended:
            self._ended = self._has_ended()
            if self._ended and self._descriptor is not None:
                os.close(self._descriptor)
        return self._ended

    def _has_ended(self) -> bool:
        if self._descriptor is not None:
            return bool(select.select([self._descriptor], [], [], 0)[0])
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False


def kill(pid: int, wait_seconds: float) -> None:
    """Kill a process, even a stopped one. Wait up to `wait_seconds` until it is gone, where the system tells."""
    descriptor = _descriptor(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if descriptor is not None:
        select.select([descriptor], [], [], wait_seconds)
        os.close(descriptor)


WITHOUT_DAEMON_SECONDS = 5.0
FIRST_WORKER_SECONDS = 60.0


class Owners:
    """The owners of a host: its executor, and the daemons whose workers have connected.

    Spark replaces a daemon that ends while there are tasks. So a host waits `WITHOUT_DAEMON_SECONDS` for a
    worker of the next daemon. For its first worker, which started it, it waits `FIRST_WORKER_SECONDS`, since the
    machine may be busy. Without a daemon (`spark.python.use.daemon`) a worker's parent is the executor.
    """

    def __init__(
        self, executor: int, now: Callable[[], float], watch: "Callable[[int], ProcessWatch]" = ProcessWatch
    ) -> None:
        self._executor = watch(executor)
        self._daemons: dict[int, ProcessWatch] = {}
        self._now = now
        self._watch = watch
        self._last_alive = now()
        self._patience_s = FIRST_WORKER_SECONDS
        self._lock = threading.Lock()

    def add(self, daemon: int) -> None:
        """Record that a worker of this daemon has connected."""
        with self._lock:
            self._patience_s = WITHOUT_DAEMON_SECONDS
            known = self._daemons.get(daemon)
            # The id may have been reused since.
            if known is None or known.ended():
                self._daemons[daemon] = self._watch(daemon)

    def ended(self) -> bool:
        """Whether no process is left that could start a worker."""
        if self._executor.ended():
            return True
        with self._lock:
            self._daemons = {pid: watch for pid, watch in self._daemons.items() if not watch.ended()}
            if self._daemons:
                self._last_alive = self._now()
        return self._now() - self._last_alive > self._patience_s


def _descriptor(pid: int) -> int | None:
    """Open a descriptor of the process itself; None where the system has none, or if the process is gone."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return None

"""Who an executor's state hosts belong to: the executor's JVM, found and watched from its workers."""

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
    """The process id of the JVM that this Python worker works for: its nearest ancestor that is Java."""
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
    """A name for an executor's process that no other one on this host ever has.

    Process numbers are given again, and containers that share a disk have numbers of their own: so
    the start time and the number's namespace are part of it, where the system tells them.
    """
    started = _started(pid)
    return str(pid) if started is None else f"{pid}-{started}-{_namespace()}"


def _started(pid: int) -> str | None:
    """When a process was started, in the system's ticks; None for one that is not there, or where nobody tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


_FOLDER = "executor-"
_ARTIFACTS = "SPARK_JOB_ARTIFACT_UUID"


def hosts_folder_name(executor: int, application: str) -> str:
    """The folder of an application's hosts on one executor; short, since a socket's path must be.

    Connect's sessions have Python files of their own, and so hosts of their own.
    """
    owner = f"{application} {os.environ.get(_ARTIFACTS, '')}"
    return f"{_FOLDER}{executor_name(executor)}-{zlib.crc32(owner.encode()):08x}"


def remove_folders_of_ended_executors(parent: Path) -> None:
    """Remove what is left of hosts that were killed with their executors, which nobody else would remove."""
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
    """Tells whether a process has ended, even if its number was given to another one since."""

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
    """Kill a process, and wait until it is gone, where the system tells; one that is stopped ends too."""
    descriptor = _descriptor(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if descriptor is not None:
        select.select([descriptor], [], [], wait_seconds)
        os.close(descriptor)


WITHOUT_DAEMON_SECONDS = 5.0
FIRST_WORKER_SECONDS = 60.0


class Owners:
    """Those that a host works for: its executor, and the daemons whose workers have come.

    Spark replaces a daemon that has ended while there are tasks, so a host waits a moment for a worker of
    the next one. For its first worker, which started it, it waits as long as a busy machine may need. Without
    a daemon (`spark.python.use.daemon`) a worker's parent is the executor.
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
        """A worker of this daemon has come."""
        with self._lock:
            self._patience_s = WITHOUT_DAEMON_SECONDS
            known = self._daemons.get(daemon)
            # Its number may have been given again since.
            if known is None or known.ended():
                self._daemons[daemon] = self._watch(daemon)

    def ended(self) -> bool:
        """Whether nobody is left who could send a worker."""
        if self._executor.ended():
            return True
        with self._lock:
            self._daemons = {pid: watch for pid, watch in self._daemons.items() if not watch.ended()}
            if self._daemons:
                self._last_alive = self._now()
        return self._now() - self._last_alive > self._patience_s


def _descriptor(pid: int) -> int | None:
    """What stands for the process itself, where the system has such; None, too, when it is gone already."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return None

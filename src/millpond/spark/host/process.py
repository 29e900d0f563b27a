"""Who an executor's state hosts belong to: the executor's JVM, found and watched from its workers."""

import os
import select
import subprocess
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
    stat, namespace = Path(f"/proc/{pid}/stat"), Path("/proc/self/ns/pid")
    if not stat.exists():
        return f"executor-{pid}"
    started = stat.read_text().rpartition(")")[2].split()[19]
    return f"executor-{pid}-{started}-{namespace.stat().st_ino}"


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

    def ended(self) -> bool:
        """Whether the process is gone."""
        if self._descriptor is not None:
            return bool(select.select([self._descriptor], [], [], 0)[0])
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False


def _descriptor(pid: int) -> int | None:
    """What stands for the process itself, where the system has such; None, too, when it is gone already."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return None

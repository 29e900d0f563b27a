"""A job on Spark in a process of its own, whose processes are killed: the driver, executors, state hosts.

The job runs on a cluster of two executors on this machine, so that an executor can die without the driver.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
import pyspark

from millpond.spark.runtime import server

CLUSTER = "local-cluster[2,1,1024]"
"""Two executors of one core each."""

_EXECUTOR = "CoarseGrainedExecutorBackend"
_HOST = server.__name__
_SHORT_LIVED = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For JVMs that end before it pays to compile their code well."""


class KilledJob:
    """One run of a job; a context manager that ends what is left of it.

    Args:
        command: what runs it.
        folder: gets its log, and those of its executors.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log = (folder / "job.log").open("a")
        environment = os.environ | _SHORT_LIVED | {"SPARK_HOME": str(_spark_home(folder))}
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, start_new_session=True, env=environment
        )
        self._me = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self._log.close()

    @property
    def code(self) -> int | None:
        """How it ended."""
        return self._process.returncode

    def ends_within(self, seconds: float) -> bool:
        """Wait, and tell whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def running(self, victim: str) -> list[psutil.Process]:
        """Give the executors, or the state hosts of one of them, that run now."""
        try:
            family = self._me.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        executors = [each for each in family if any(_EXECUTOR in word for word in _command(each)) and _is_java(each)]
        if victim == "executor":
            return executors
        owners = {str(each.pid) for each in executors}
        hosts = [each for each in psutil.process_iter() if _HOST in _command(each) and _command(each)[-1] in owners]
        return [each for each in hosts if _command(each)[-1:] == _command(hosts[0])[-1:]]

    def kill(self, victim: str) -> int:
        """Kill one executor, or the state hosts of one; 1 if there was any, else 0."""
        found = self.running(victim)
        for each in found[:1] if victim == "executor" else found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        return int(bool(found))

    def kill_all(self) -> int:
        """Kill the whole process group of the job, with all executors; 1 if it ran yet, else 0."""
        was_running = self._process.poll() is None
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = self._me.children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        return int(was_running)


def _command(process: psutil.Process) -> list[str]:
    """A process's command line; nothing for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_java(process: psutil.Process) -> bool:
    return "java" in Path((_command(process) or [""])[0]).name


def _spark_home(folder: Path) -> Path:
    """A Spark whose executors keep their logs in this folder instead of in the installed package."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir(parents=True)
        for part in ("bin", "jars", "sbin"):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home

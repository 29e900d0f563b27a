"""A standalone cluster of Spark's own daemons on the loopback, whose workers have addresses of their own.

A speculative copy never runs on the host of the attempt that it copies, and `local-cluster` knows one
host only. Here each worker is another host to Spark, though all of them are this machine.
"""

import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Self

import psutil
import pyspark

from millpond.spark.environment.java import find_java
from tests.faults.history_run import SHORT_LIVED

SPARK_HOME = Path(pyspark.__file__).parent
_PATIENCE_SECONDS = 60


class Cluster:
    """A master, and at each of these addresses a worker with one core. A context manager: leaving it ends the daemons.

    Attributes:
        url: of the master, for `spark.master`.
    """

    def __init__(self, folder: Path, addresses: tuple[str, ...] = ("127.0.0.1", "127.0.0.2")) -> None:
        self.folder = folder
        self._daemons: list[psutil.Popen] = []
        try:
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
            self.url = self._said("master", r"Starting Spark master at (\S+)")
            for address in addresses:
                what = ["worker.Worker", "--host", address, "--port", "0", "--cores", "1", "--memory", "1g"]
                self._start(f"worker-{address}", *what, "--work-dir", str(folder / "spark" / "work"), self.url)
            for address in addresses:
                self._said(f"worker-{address}", r"Successfully registered with master")
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def workers(self) -> list[psutil.Process]:
        """The daemons that start executors."""
        return self._daemons[1:]

    def _start(self, name: str, daemon: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            **SHORT_LIVED,
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(find_java().home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        program = [SPARK_HOME / "bin/spark-class", f"org.apache.spark.deploy.{daemon}", "--webui-port", "0"]
        with (self.folder / f"{name}.log").open("w") as log:
            self._daemons.append(
                psutil.Popen([*program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            )

    def _said(self, name: str, wanted: str) -> str:
        """What a daemon logs by this pattern, once it does: its group, or all of it."""
        log = self.folder / f"{name}.log"
        for _ in range(_PATIENCE_SECONDS * 10):
            if found := re.search(wanted, log.read_text()):
                return found[found.lastindex or 0]
            threading.Event().wait(0.1)
        raise AssertionError(f"the {name} did not log {wanted!r}:\n{log.read_text()[-3000:]}")

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        _, alive = psutil.wait_procs(self._daemons, timeout=20)
        assert not alive

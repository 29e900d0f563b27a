"""The state host process: listens, serves each connection in a thread, and ends with its executor.

Started by the first task that needs it (`millpond.spark.host.client`) with the path of its socket
and the process id of its executor. It writes one line when it listens. It ends when the executor's
JVM ends, or when it has held no shard for a while; then it removes its socket.

Python's cycle collector is off while batches run: state is tuples and dictionaries without cycles,
and searching them would cost more than building them. Between batches the collector runs over what
is new, and what survives is frozen, so that the next search does not see it again.
"""

import contextlib
import gc
import os
import selectors
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from millpond.errors import UnavailableError
from millpond.spark.host.conversation import converse
from millpond.spark.host.process import ProcessWatch
from millpond.spark.host.slots import Slots
from millpond.spark.host.wire import Connection
from millpond.spark.shard_backend import remove_backend_folders

IDLE_SECONDS = 1800.0
_TICK_SECONDS = 1.0
_COLLECT_SECONDS = 10.0


class HostServer:
    """One state host. `run` returns when it is no longer needed."""

    def __init__(self, path: Path, watch: ProcessWatch) -> None:
        self._path = path
        self._watch = watch
        self._slots = Slots(time.monotonic, IDLE_SECONDS)
        self._busy = 0
        self._busy_lock = threading.Lock()
        self._collected = time.monotonic()

    def run(self) -> None:
        """Listen until the executor has ended or nothing was used for long."""
        gc.disable()
        with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
            listener.bind(str(self._path))
            listener.listen(64)
            selector.register(listener, selectors.EVENT_READ)
            print("listening", flush=True)  # noqa: T201 - the line that whoever started the host waits for
            # Nobody reads that pipe any more: what user code prints goes to the executor's log.
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            last_used = time.monotonic()
            try:
                while not self._watch.ended() and time.monotonic() - last_used < IDLE_SECONDS:
                    if selector.select(_TICK_SECONDS):
                        self._accept(listener)
                    if self._slots.drop_idle() or self._busy:
                        last_used = time.monotonic()
                    self._collect_garbage()
            finally:
                self._leave(listener, selector)
                self._slots.close()

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with self._busy_lock:
            self._busy += 1
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _leave(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        """Take the socket away, then serve whoever came before that.

        The lock file and the folder stay while the executor lives: a worker may be starting the next host.
        """
        self._path.unlink(missing_ok=True)
        if self._watch.ended():
            self._path.with_suffix(".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._path.parent.rmdir()
            return
        while self._busy or selector.select(0):
            if selector.select(_TICK_SECONDS):
                self._accept(listener)

    def _serve(self, accepted: socket.socket) -> None:
        try:
            with Connection(accepted) as connection:
                _check_peer(accepted)
                converse(connection, self._slots)
        except (UnavailableError, OSError) as error:
            print(f"millpond state host: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the executor's log
        finally:
            with self._busy_lock:
                self._busy -= 1

    def _collect_garbage(self) -> None:
        now = time.monotonic()
        if not self._busy and now - self._collected > _COLLECT_SECONDS:
            gc.collect()
            gc.freeze()
            self._collected = now


def _check_peer(accepted: socket.socket) -> None:
    """Refuse a peer of another user, where the system can tell."""
    if hasattr(socket, "SO_PEERCRED"):
        _, uid, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            raise UnavailableError(f"a process of user {uid} tried to use the state host of user {os.getuid()}.")


def main() -> None:
    """Run a state host: `python -m millpond.spark.host.server SOCKET EXECUTOR_PID`."""
    HostServer(Path(sys.argv[1]), ProcessWatch(int(sys.argv[2]))).run()
    remove_backend_folders()
    sys.stderr.flush()
    os._exit(0)  # A thread that user code left behind must not keep the host alive.


if __name__ == "__main__":
    main()

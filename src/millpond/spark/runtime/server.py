"""The state host process: it listens, serves each connection in a thread, and ends with its executor.

The first task that needs it starts it (`millpond.spark.host.client`), with the path of its socket and
the process id of its executor. It prints one line when it listens, or the reason why it cannot. It
belongs to one application on one executor. It ends when

- the executor's JVM has ended,
- every daemon whose workers connected has ended: Spark ends them with the application, which a JVM may outlive,
- its socket file is gone, so that no worker can connect,
- it has held no shard for `IDLE_SECONDS`, or
- no batch runs and hardly any memory is left under its limit.

The next task then starts another host, which restores the shards that it needs.

Python's cycle collector is off while batches run. State is tuples and dictionaries without cycles, and
searching them would cost more than building them. Between batches the collector searches new objects
and freezes those that survive, so that it does not search them again. The end of the last running batch wakes the
listening thread for that, since the next batch of a busy stream may connect within milliseconds.
"""

import contextlib
import gc
import os
import selectors
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

from millpond.errors import UnavailableError
from millpond.spark.environment.peer import check_peer
from millpond.spark.host.memory import check_memory_limit, is_nearly_full, mapped_bytes, memory_limit_bytes
from millpond.spark.host.process import Owners
from millpond.spark.host.wire import LISTENING, Connection, PeerGoneError
from millpond.spark.runtime.conversation import converse
from millpond.spark.runtime.held_shard import HeldShard
from millpond.spark.runtime.shard_backend import remove_backend_folders
from millpond.spark.runtime.slots import Slots

IDLE_SECONDS = 1800.0
_TICK_SECONDS = 1.0
_COLLECT_SECONDS = 10.0
_COLLECT_SHARE = 0.02
"""The largest share of time that collecting garbage may take."""
_WAKE_BYTES = 4096


class HostServer:
    """One state host. `run` returns when it is no longer needed."""

    def __init__(self, path: Path, owners: Owners) -> None:
        self._path = path
        self._owners = owners
        self._slots: Slots[HeldShard] = Slots(time.monotonic, IDLE_SECONDS)
        self._busy = 0
        self._busy_lock = threading.Lock()
        self._collect_at = time.monotonic() + _COLLECT_SECONDS
        self._waking: socket.socket | None = None
        limit, mapped = memory_limit_bytes(), mapped_bytes()
        self._room_at_start = None if limit is None or mapped is None else limit - mapped

    def run(self) -> None:
        """Listen and serve until the host must end, for one of the reasons in the module's docstring."""
        gc.disable()
        woken, self._waking = socket.socketpair()
        with (
            woken,
            self._waking,
            socket.socket(socket.AF_UNIX) as listener,
            selectors.DefaultSelector() as selector,
        ):
            listener.bind(str(self._path))
            listener.listen(64)
            selector.register(listener, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            mine = self._path.stat()
            _say(LISTENING)
            last_used = time.monotonic()
            try:
                check_owners_at = last_used
                while True:
                    if time.monotonic() >= check_owners_at:
                        # Not at the end of each batch: workers of an executor that is just ending could make the
                        # folder again.
                        if self._owners.ended() or not _is_at(self._path, mine):
                            break
                        check_owners_at = time.monotonic() + _TICK_SECONDS
                    for ready, _ in selector.select(_TICK_SECONDS):
                        if ready.fileobj is listener:
                            self._accept(listener)
                        else:
                            woken.recv(_WAKE_BYTES)
                    if self._slots.drop_idle() or self._busy:
                        last_used = time.monotonic()
                    elif time.monotonic() - last_used > IDLE_SECONDS:
                        break
                    if not self._busy and self._is_nearly_full():
                        break
                    self._collect_garbage()
            finally:
                selector.unregister(woken)
                self._leave(listener, selector, mine)
                self._slots.close()

    def _is_nearly_full(self) -> bool:
        limit, mapped = memory_limit_bytes(), mapped_bytes()
        if not is_nearly_full(self._room_at_start, limit, mapped):
            return False
        print(  # noqa: T201 - the executor's log
            f"millpond state host: it maps {(mapped or 0) >> 20} of {(limit or 0) >> 20} MiB, its limit "
            "(spark.executor.pyspark.memory, divided by the executor's cores), and is replaced. If that happens often, "
            "something leaks, or the state is too large: keep it on disk with StateConfig(backend='rocksdb').",
            file=sys.stderr,
            flush=True,
        )
        return True

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with self._busy_lock:
            self._busy += 1
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _leave(self, listener: socket.socket, selector: selectors.BaseSelector, mine: os.stat_result) -> None:
        """Remove the socket, then serve the workers that have already connected.

        The lock file and folder stay while workers may still come: one may be starting the next host.
        """
        if _is_at(self._path, mine):
            self._path.unlink(missing_ok=True)
        if self._owners.ended():
            # The folder's other hosts end for the same reason, or were killed.
            shutil.rmtree(self._path.parent, ignore_errors=True)
            return
        while self._busy or selector.select(0):
            if selector.select(_TICK_SECONDS):
                self._accept(listener)

    def _serve(self, accepted: socket.socket) -> None:
        try:
            with Connection(accepted) as connection:
                check_peer(accepted, "a worker")
                _log_to(connection.receive_log())
                converse(connection, self._slots, self._owners)
        except PeerGoneError:
            # Spark ends its workers when a query stops, and reports a worker that dies.
            return
        except (UnavailableError, OSError) as error:
            print(f"millpond state host: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the executor's log
        finally:
            with self._busy_lock:
                self._busy -= 1
                if not self._busy and self._waking is not None:
                    # The host may have ended its loop, and then nobody is left to wake.
                    with contextlib.suppress(OSError):
                        self._waking.send(b"\0", socket.MSG_DONTWAIT)

    def _collect_garbage(self) -> None:
        began = time.monotonic()
        if not self._busy and began > self._collect_at:
            gc.collect()
            gc.freeze()
            ended = time.monotonic()
            self._collect_at = ended + max(_COLLECT_SECONDS, (ended - began) / _COLLECT_SHARE)


def _log_to(descriptor: int) -> None:
    """Redirect this process's output to the log of the worker that connected last.

    The log that the host was started with closes with the daemon of that time, and a print would then fail.
    """
    for printed in (sys.stdout, sys.stderr):
        os.dup2(descriptor, printed.fileno())
    os.close(descriptor)


def _say(line: str) -> None:
    """Print one line for the worker that started this host. It reads one line only; the rest goes to stderr."""
    print(line, flush=True)  # noqa: T201 - it is read
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), found)
    except FileNotFoundError:
        return False


def main() -> None:
    """Run a state host: `python -m millpond.spark.runtime.server SOCKET EXECUTOR_PID`."""
    # Flush after each line, since several processes write to one log.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        check_memory_limit(memory_limit_bytes(), mapped_bytes())
    except UnavailableError as error:
        _say(str(error))
        sys.exit(1)
    HostServer(Path(sys.argv[1]), Owners(int(sys.argv[2]), time.monotonic)).run()
    remove_backend_folders()
    sys.stderr.flush()
    os._exit(0)  # A thread that user code left behind must not keep the host alive.


if __name__ == "__main__":
    main()

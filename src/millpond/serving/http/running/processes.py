"""Several processes that answer on one port, and the parent that keeps them running.

Place on the data path: above `server`. The parent binds the port and starts workers. Each is a new program
that inherits the listening socket, so workers share no store, threads or locks. Any worker takes a connection
from the socket's queue, also when another has just died.

Invariant: workers do not outlive their parent, nor the parent its workers. A socket joins the parent to each
worker. The worker sends one byte over it when it serves, and its end tells each side that the other is gone.

Trade-off: a worker that dies is replaced at once. One that dies early is replaced later each time, up to
`MAX_DELAY_MS`, so that a worker that cannot start does not use up the machine.
"""

import asyncio
import logging
import os
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from millpond.cache import monotonic_ms
from millpond.errors import UnavailableError
from millpond.serving.http.app import HttpApp
from millpond.serving.http.running.ending import end_within
from millpond.serving.http.running.peers import Peers
from millpond.serving.http.running.server import Tls, run_server

if TYPE_CHECKING:
    from uvicorn import Server

MAX_DELAY_MS = 10_000
"""The longest wait before a worker that died is replaced."""

_FIRST_DELAY_MS = 100
_LIVED_MS = 10_000
_KILL_AFTER_MS = 3_000
_PLACE = "MILLPOND_WORKER"

log = logging.getLogger("millpond.serving")


class Place(msgspec.Struct, frozen=True):
    """What a worker inherits: its number, its sockets (as descriptors), and the folder of its peers."""

    number: int
    listener: int
    parent: int
    folder: str


class _Worker(msgspec.Struct):
    process: "subprocess.Popen[bytes]"
    joint: socket.socket
    started_ms: int
    serves: bool = False


def worker_place() -> Place | None:
    """Return the place of this process if it was started as a worker; None otherwise."""
    text = os.environ.get(_PLACE)
    return None if text is None else msgspec.json.decode(text, type=Place)


def serve_as_worker(app: HttpApp, place: Place, *, tls: Tls | None = None) -> None:
    """Serve on the inherited socket until the parent says stop or is gone."""
    listener = socket.socket(fileno=place.listener)
    parent = socket.socket(fileno=place.parent)
    app.process = str(place.number)
    peers = Peers(Path(place.folder), app.process, app.families)
    app.other_processes = peers.others

    async def on_start(server: "Server") -> None:
        await peers.listen()

        def parent_gone() -> None:
            server.should_exit = True
            asyncio.get_running_loop().remove_reader(parent)

        asyncio.get_running_loop().add_reader(parent, parent_gone)
        parent.send(b"1")

    run_server(app, [listener], tls=tls, on_start=on_start, on_stop=lambda: end_within(app.limits.drain_ms))


class Processes:
    """The parent of some workers; runs in the main thread of a process that does nothing else.

    Args:
        command: starts a worker, which calls `serve_as_worker` with its `worker_place`.
        listener: the socket from which all workers take connections.
        count: the number of workers.
        drain_ms: how long the workers may take to end.
        clock: monotonic milliseconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        listener: socket.socket,
        count: int,
        drain_ms: int,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._command = list(command)
        self._listener = listener
        self._count = count
        self._drain_ms = drain_ms
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._due_ms: dict[int, int] = dict.fromkeys(range(count), 0)
        self._delays_ms: dict[int, int] = dict.fromkeys(range(count), 0)
        self._has_served = False
        self._stopping = False

    def run(self, on_serving: Callable[[], None]) -> None:
        """Keep the workers running until SIGTERM or SIGINT; call `on_serving` once all of them serve.

        Raises:
            UnavailableError: a worker ended before any had served.
        """
        with (
            tempfile.TemporaryDirectory(prefix="millpond-") as folder,
            selectors.DefaultSelector() as selector,
            _signals_waking(selector, self._on_signal),
        ):
            try:
                while not self._stopping:
                    self._start_due(folder, selector)
                    self._wait(selector, self._next_due_ms())
                    if not self._has_served and all(worker.serves for worker in self._workers.values()):
                        self._has_served = len(self._workers) == self._count
                        if self._has_served:
                            on_serving()
            finally:
                self._stop(selector)

    def _on_signal(self) -> None:
        self._stopping = True

    def _start_due(self, folder: str, selector: selectors.BaseSelector) -> None:
        now_ms = self._clock()
        for number in [number for number, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            del self._due_ms[number]
            ours, theirs = socket.socketpair()
            place = Place(number, self._listener.fileno(), theirs.fileno(), folder)
            try:
                process = subprocess.Popen(
                    self._command,
                    env={**os.environ, _PLACE: msgspec.json.encode(place).decode()},
                    pass_fds=(self._listener.fileno(), theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                self._not_started(number, error)
                continue
            finally:
                theirs.close()
            self._workers[number] = _Worker(process, ours, now_ms)
            selector.register(ours, selectors.EVENT_READ, number)

    def _wait(self, selector: selectors.BaseSelector, wait_ms: int | None) -> None:
        """Wait for news of a worker, or a signal."""
        for key, _ in selector.select(None if wait_ms is None else wait_ms / 1_000):
            if key.data is None:
                os.read(key.fd, 4_096)
                continue
            worker = self._workers[key.data]
            if _received(worker.joint):
                worker.serves = True
            else:
                self._ended(key.data, worker, selector)

    def _ended(self, number: int, worker: _Worker, selector: selectors.BaseSelector) -> None:
        selector.unregister(worker.joint)
        worker.joint.close()
        try:
            code = worker.process.wait(_KILL_AFTER_MS / 1_000)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        del self._workers[number]
        if self._stopping:
            return
        if not self._has_served and not worker.serves:
            raise UnavailableError(
                f"a worker ended with exit code {code} before it could serve. What it printed says why."
            )
        lived_ms = self._clock() - worker.started_ms
        delay_ms = self._start_later(number, lived_ms)
        log.warning(
            "a worker ended and is replaced",
            extra={"fields": {"process": number, "exit_code": code, "lived_ms": lived_ms, "delay_ms": delay_ms}},
        )

    def _not_started(self, number: int, error: OSError) -> None:
        """Try again later to start a worker that the system has no room for; the others go on."""
        if not self._has_served:
            raise UnavailableError(f"a worker could not be started: {error}.") from error
        fields = {"process": number, "reason": str(error), "delay_ms": self._start_later(number, lived_ms=0)}
        log.warning("a worker could not be started and is started later", extra={"fields": fields})

    def _start_later(self, number: int, lived_ms: int) -> int:
        """Set when a worker is started again, the later the more often it ended early; return in how many ms."""
        delay_ms = self._delays_ms[number]
        delay_ms = 0 if lived_ms >= _LIVED_MS else min(max(2 * delay_ms, _FIRST_DELAY_MS), MAX_DELAY_MS)
        self._delays_ms[number] = delay_ms
        self._due_ms[number] = self._clock() + delay_ms
        return delay_ms

    def _next_due_ms(self) -> int | None:
        return max(0, min(self._due_ms.values()) - self._clock()) if self._due_ms else None

    def _stop(self, selector: selectors.BaseSelector) -> None:
        """Tell all workers to stop, wait for them, and kill those that do not stop in time."""
        self._stopping = True
        for worker in self._workers.values():
            worker.process.send_signal(signal.SIGTERM)
        until_ms = self._clock() + self._drain_ms + _KILL_AFTER_MS
        while self._workers and (left_ms := until_ms - self._clock()) > 0:
            self._wait(selector, left_ms)
        for worker in self._workers.values():
            worker.process.kill()
            worker.process.wait()
            worker.joint.close()
        self._workers.clear()


@contextmanager
def _signals_waking(selector: selectors.BaseSelector, on_signal: Callable[[], None]) -> Iterator[None]:
    """Make SIGTERM and SIGINT call `on_signal` and end the selector's wait."""
    awake, wakes = socket.socketpair()
    awake.setblocking(False)
    wakes.setblocking(False)

    def handle(_signal: int, _frame: FrameType | None) -> None:
        on_signal()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    before_fd = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    selector.register(awake, selectors.EVENT_READ, None)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        awake.close()
        wakes.close()


def _received(joint: socket.socket) -> bool:
    """Return whether a worker sent its byte; False if it is gone."""
    try:
        return bool(joint.recv(16))
    except OSError:
        return False

"""The executors that share a table's cache, as one of them knows them.

A thread tells the directory every `BEAT_MS` that this executor lives, and learns who else does. The invariant: **this
executor is always a member in its own eyes**. If the directory does not answer, the members last known stay, and an
executor that knows no others loads every key itself.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.lookup.shared.directory import Member, decoded_members, encoded_member
from millpond.spark.lookup.shared.owner import Owner, Peer
from millpond.spark.lookup.shared.ownership import seed
from millpond.spark.lookup.tls_server import ServerAddress

BEAT_MS = 5_000
"""The time between two beats."""

_ANSWER_S = 5.0
"""How long the directory may give no sign."""

_QUIET_MS = 60_000
"""How long the directory may be gone while no partition begins, until the thread ends."""


@dataclass(frozen=True)
class Known:
    """The members, in the order of their names: their seeds, and for each its peer, or None for this executor."""

    seeds: tuple[int, ...]
    peers: tuple[Peer | None, ...]


class Members:
    """The members as this executor knows them; thread-safe.

    Args:
        directory: the address of the directory.
        executor: names this executor on its machine.
        answer: turns the encoded request of another executor into an encoded answer.
        clock: monotonic milliseconds.
    """

    def __init__(
        self, directory: ServerAddress, executor: str, answer: Callable[[bytes], bytes], clock: Clock = monotonic_ms
    ) -> None:
        self._directory, self._answer, self._clock = directory, answer, clock
        self._executor = self._name = executor
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner: Owner | None = None
        self._peers: dict[Member, Peer] = {}
        self._attended_ms = 0
        self._is_lost = False

    def attend(self) -> None:
        """Join the directory, unless this executor has joined. Call it when a partition begins."""
        self._attended_ms = self._clock()
        if self._has_joined():
            # A beat may be waiting for the driver. No partition waits with it.
            return
        with self._lock:
            if self._has_joined():
                return
            self.beat()
            self._thread = threading.Thread(target=self._beats, name="millpond-lookup-beats", daemon=True)
            self._thread.start()

    def known(self) -> Known:
        """Return the members that answer. A member that did not answer lately is left out."""
        there = {member.name: peer for member, peer in self._peers.items() if peer.is_there()}
        names = sorted({*there, self._name})
        seeds = tuple(there[name].seed if name in there else seed(name) for name in names)
        return Known(seeds, tuple(there.get(name) for name in names))

    def close(self) -> None:
        """Leave: stop the thread and the server. The directory forgets this executor after a while."""
        self._closed.set()
        with self._lock:
            self._leave()

    def _has_joined(self) -> bool:
        return self._closed.is_set() or (self._thread is not None and self._thread.is_alive())

    def _beats(self) -> None:
        while not self._closed.wait(BEAT_MS / 1_000):
            with self._lock:
                if self._closed.is_set():
                    return
                self.beat()
                if self._is_lost and self._clock() - self._attended_ms > _QUIET_MS:
                    self._leave()
                    return

    def _leave(self) -> None:
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        self._take([])

    def beat(self) -> None:
        """Tell the directory that this executor lives, and take its members. Nothing is raised if it is not there."""
        if self._closed.is_set():
            return
        try:
            self._take(self._joined())
        except (OSError, HTTPException, CorruptionError, UnavailableError) as error:
            if not self._is_lost:
                self._report(error)
            self._is_lost = True
        else:
            self._is_lost = False

    def _joined(self) -> list[Member]:
        with closing(self._directory.connection(_ANSWER_S)) as connection:
            connection.connect()
            if self._owner is None:
                # The address by which the driver's machine is reached is one at which others reach this machine.
                host = connection.sock.getsockname()[0]
                self._owner = Owner(host, self._directory.token, self._answer)
                self._name = f"{self._executor} at {host}"
            me = encoded_member(self._owner.member(self._name))
            connection.request("POST", "/", me, self._directory.authorization())
            response = connection.getresponse()
            data = response.read()
            if response.status != HTTPStatus.OK:
                raise UnavailableError(f"it answered {response.status} {response.reason}")
            return decoded_members(data)

    def _take(self, members: list[Member]) -> None:
        """Replace the members. Those that are still there keep their connections."""
        before = self._peers
        self._peers = {
            member: before.get(member) or Peer(member, self._directory.token, self._clock)
            for member in members
            if member.name != self._name
        }
        for member, peer in before.items():
            if member not in self._peers:
                peer.close()

    def _report(self, error: Exception) -> None:
        print(  # noqa: T201 - the executor's log
            f"millpond state host: the driver's directory of a shared lookup cache, at {self._directory.host}:"
            f"{self._directory.port}, does not answer ({error}); the members last known stay.",
            file=sys.stderr,
            flush=True,
        )

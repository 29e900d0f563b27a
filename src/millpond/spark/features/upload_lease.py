"""One upload of a GroupBy at a time: a lease in the KV store.

Place on the data path: around the batch upload, on the driver.

The lease is one row: its holder, and the time until which it holds. An upload takes the lease if it is free or has run
out, and reads it back. It renews the lease while it works, and checks it once more right before it publishes. A store's
writes are atomic for each key, and it promises no more. So two uploads may both believe that they took a free lease,
but only the one whose row was written last finds itself in it at the end. So of two uploads at once at most one is
published, and usually the other is refused at its start.

Trade-off: an upload that dies keeps the next one waiting until the lease runs out.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from millpond.errors import UnavailableError
from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, unreadable, with_header
from millpond.kv import Get, KVStore, Put

LEASE_DATASET = "upload_lease"
LEASE_MS = 120_000
"""How long a lease holds without renewal."""

_FORMAT_VERSION = 1


class _Lease(msgspec.Struct, frozen=True, array_like=True):
    holder: str
    until_ms: int


class UploadLease:
    """The lease of one upload."""

    def __init__(self, store: KVStore, group_by: str, clock: Callable[[], int]) -> None:
        self._store = store
        self._group_by = group_by
        self._key = group_by.encode()
        self._clock = clock
        self._holder = secrets.token_hex(8)
        self._ended = threading.Event()

    def take(self) -> None:
        """Take the lease.

        Raises:
            UnavailableError: another upload holds it.
        """
        found = self._read()
        if found is not None and found.holder != self._holder and found.until_ms > self._clock():
            raise self._refused(found)
        self._write(self._clock() + LEASE_MS)
        self.check()

    def check(self) -> None:
        """Check that this upload still holds the lease.

        Raises:
            UnavailableError: another upload has taken it.
        """
        found = self._read()
        if found is None or found.holder != self._holder:
            raise self._refused(found)

    def keep(self) -> None:
        """Renew the lease until `give_back`, as long as this upload holds it."""
        while not self._ended.wait(LEASE_MS / 4_000):
            try:
                self.check()
                self._write(self._clock() + LEASE_MS)
            except UnavailableError:
                # The check before publishing raises the error.
                continue

    def give_back(self) -> None:
        """Release the lease, so that the next upload can begin at once."""
        self._ended.set()
        found = self._read()
        if found is not None and found.holder == self._holder:
            self._write(0)

    def _read(self) -> _Lease | None:
        (rows,) = self._store.get_many([Get(LEASE_DATASET, self._key)])
        if not rows:
            return None
        what = f"upload lease of GroupBy {self._group_by!r}"
        try:
            return msgspec.msgpack.decode(checked_body(_FORMAT_VERSION, rows[-1].value, what, self._key), type=_Lease)
        except DECODE_ERRORS as cause:
            raise unreadable(what, str(cause)) from cause

    def _write(self, until_ms: int) -> None:
        lease = with_header(_FORMAT_VERSION, msgspec.msgpack.encode(_Lease(self._holder, until_ms)), self._key)
        self._store.put_many(LEASE_DATASET, [Put(self._key, lease)])

    def _refused(self, found: _Lease | None) -> UnavailableError:
        until = "" if found is None else f" Its lease holds until {found.until_ms} unless it is renewed."
        return UnavailableError(
            f"GroupBy {self._group_by!r}: another upload is running.{until} Wait for it, and upload again; nothing of "
            "this upload is served."
        )


def forget_lease(store: KVStore, group_by: str) -> None:
    """Remove the lease of an upload that died, so that the next one can begin. Call it only if no upload is running."""
    store.delete_keys(LEASE_DATASET, [group_by.encode()])


@contextmanager
def leased(store: KVStore, group_by: str, clock: Callable[[], int]) -> Iterator[UploadLease]:
    """Hold the lease of a GroupBy's upload during a ``with`` block.

    Raises:
        UnavailableError: another upload holds it.
    """
    lease = UploadLease(store, group_by, clock)
    lease.take()
    keeper = threading.Thread(target=lease.keep, name="millpond-upload-lease", daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        lease.give_back()
        keeper.join()

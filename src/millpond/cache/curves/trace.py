"""Traces: the keys that a cache was asked for, written to a file, to try policies and sizes on them later.

Place on the data path: beside a cache. Keys are hashed with a secret that is stored nowhere. So a trace shows which
requests were for the same key, but not the key. A trace ends after a number of requests, so the file is bounded.

File format: the eight bytes `MPTRACE1`, then one signed integer of 8 bytes, little-endian, for each request. Traces of
the cache2k project (`*.trc.xz`, `*.trace.xz`), with which Caffeine's simulator works too, are read as well: big-endian
integers of 4 bytes, compressed with xz.
"""

import logging
import lzma
import secrets
import sys
from array import array
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Final

from millpond.cache.api import Cache, K, V
from millpond.cache.curves.watched import WatchedCache
from millpond.cache.miniature import EVERY_HASH, LEAST_HASH
from millpond.cache.shared import SharedCache
from millpond.errors import DataError, OptionError

MAGIC: Final = b"MPTRACE1"
MOST_REQUESTS: Final = 10_000_000
"""Default for the largest number of requests in a trace: 80 MB."""

_WRITTEN_TOGETHER = 4_096
_NEVER = sys.maxsize
_log = logging.getLogger("millpond.cache")


class TraceWriter:
    """Writes the trace of one cache, as a watcher of it.

    If writing fails, as on a full disk, the trace ends with its last whole request and a warning is logged. The cache
    is not affected.

    Args:
        path: the file, which must not exist yet.
        most: the largest number of requests to write.

    Raises:
        OptionError: the file exists, or cannot be created.

    Attributes:
        limit: the hash below which keys are wanted: every hash until the trace ends, then none.
        requests: the number of requests so far. Those beyond `most` are not in the trace.
    """

    __slots__ = ("_file", "_left", "_secret", "_waiting", "_written", "limit", "path", "requests")

    def __init__(self, path: Path, most: int = MOST_REQUESTS) -> None:
        try:
            self._file = path.open("xb", buffering=0)
            self._file.write(MAGIC)
        except OSError as error:
            raise OptionError(f"trace {path}: expected a new file in a folder that exists: {error}") from error
        self.path = path
        self._left = most
        self._secret = secrets.randbits(60)
        self._waiting = array("q")
        self._written = len(MAGIC)
        self.limit = EVERY_HASH if most else LEAST_HASH
        self.requests = 0.0

    def asked(self, key: Hashable) -> None:
        """Record the request of a key."""
        self.requests += 1
        spread = hash((key,))
        if spread < self.limit:
            self.use(spread)

    def use(self, spread: int) -> None:
        """Record the request of a key, given by its hash."""
        self._waiting.append(hash((spread, self._secret)))
        self._left -= 1
        if not self._left:
            self.limit = LEAST_HASH
        if len(self._waiting) >= _WRITTEN_TOGETHER:
            self.flush()

    def asked_many(self, keys: Sequence[Hashable]) -> None:
        """Record the requests of several keys, one after the other."""
        for key in keys:
            self.asked(key)

    def wrote(self, key: Hashable, value: Any, weigh: Callable[[Any, Any], int]) -> int:  # noqa: ARG002 - see below
        """Do nothing: a trace holds only requests."""
        return _NEVER

    def flush(self) -> None:
        """Write the buffered requests to the file."""
        waiting, self._waiting = self._waiting, array("q")
        if sys.byteorder == "big":
            waiting.byteswap()
        if self._file.closed:
            return
        left = memoryview(waiting.tobytes())
        try:
            while left:
                written = self._file.write(left) or 0
                self._written += written
                left = left[written:]
        except OSError as error:
            _log.warning("trace %s: ends after %s requests: %s", self.path, self._end_whole(), error)

    def _end_whole(self) -> int:
        """Cut the file after its last whole request and stop recording. Return its number of requests."""
        self.limit = LEAST_HASH
        requests = (self._written - len(MAGIC)) // self._waiting.itemsize
        with self._file:
            self._file.truncate(len(MAGIC) + requests * self._waiting.itemsize)
        return requests

    def close(self) -> None:
        """Write the buffered requests and stop recording. May be called twice."""
        self.limit = LEAST_HASH
        self.flush()
        self._file.close()


def write_trace(cache: Cache[K, V], path: Path, most: int = MOST_REQUESTS) -> tuple[Cache[K, V], TraceWriter]:
    """Start a trace of a cache. Return the cache to use from here on, and the writer, whose `close` ends the trace.

    For a cache of several threads (`shared=True`) the returned cache is the same one. Otherwise it is a wrapper, and
    only requests through the wrapper are recorded.
    """
    writer = TraceWriter(path, most)
    if isinstance(cache, SharedCache):
        cache.lay_around(lambda inner: WatchedCache(inner, writer))
        return cache, writer
    return WatchedCache(cache, writer), writer


def read_trace(path: Path) -> "array[int]":
    """Return the keys of a trace as numbers. Equal keys have equal numbers.

    Raises:
        DataError: the file cannot be read, is not a trace, or ends within a request.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".xz":
            return _numbers("I", lzma.decompress(content), path, order="big")
    except (OSError, lzma.LZMAError) as error:
        raise DataError(f"trace {path}: expected a file that can be read: {error}") from error
    if not content.startswith(MAGIC):
        raise DataError(
            f"trace {path}: expected the bytes {MAGIC!r} at the beginning, found {content[: len(MAGIC)]!r}; give a "
            "file that Millpond wrote, or one of cache2k that ends in .xz"
        )
    return _numbers("q", content[len(MAGIC) :], path, order="little")


def _numbers(kind: str, content: bytes, path: Path, *, order: str) -> "array[int]":
    numbers = array(kind)
    if len(content) % numbers.itemsize:
        raise DataError(
            f"trace {path}: expected whole numbers of {numbers.itemsize} bytes, found {len(content)} bytes; it was cut"
        )
    numbers.frombytes(content)
    if sys.byteorder != order:
        numbers.byteswap()
    return numbers

"""An owner of keys as other executors see it: they send it distinct keys, and get the rows, over HTTPS.

The server (`Owner`) is in the owner's state host, and a `Peer` is in each host that asks it. One request has all keys
of a batch that this owner has. A host sends the requests of a batch to all owners before it waits for the first answer.
The invariant: **an owner answers from its own cache and source, and asks no other executor**. So two executors that
know different members never wait for each other.

Nothing is unpickled. A failure of the source travels as text. After any other error the owner gives no answer, and the
one who asked loads the keys itself, so that the user's own exception is raised where the task runs.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection

import msgspec
import numpy as np
import pyarrow as pa

from millpond.cache.api import Clock
from millpond.errors import CorruptionError, UnavailableError
from millpond.lookup import LookupStats
from millpond.spark.lookup.counts import Counted
from millpond.spark.lookup.rows import Matches, PartialRows, one_batch
from millpond.spark.lookup.shared.directory import Member
from millpond.spark.lookup.shared.ownership import seed
from millpond.spark.lookup.tls_server import BoundedServer, ServerAddress, TokenHandler

MOST_ASKING = 256
"""The largest number of connections of an owner, each with a thread."""

CONNECT_S = 5.0
"""How long a connection to an owner may take."""

ANSWER_S = 30.0
"""How long an owner that is connected may give no sign before it counts as gone."""

GONE_MS = 30_000
"""How long an owner that did not answer is not asked again. Its keys then belong to the others."""

_IDLE_MS = 20_000
"""How long a connection may idle and be used again: less than the server's time-out."""

_MOST_BYTES = 256 << 20
"""The largest size of a request."""


class Ask(msgspec.Struct, frozen=True):
    """Distinct keys as an Arrow IPC stream, and the newest invalidated keys if this owner may not know them."""

    keys: bytes
    invalidated: bytes = b""


class Answer(msgspec.Struct, tag=True, frozen=True):
    """The rows of the keys.

    Attributes:
        starts, counts: where the rows of each key begin, and how many there are.
        ages_ms: how long ago the rows of each key were loaded, -1 if they were not in the owner's cache; empty if the
            owner does not know.
        rows: the columns of the rows, as an Arrow IPC stream.
        stats: the counters of this lookup.
        failures: by key number, the error of each failed key in one line, and with its traceback.
    """

    starts: bytes
    counts: bytes
    ages_ms: bytes
    rows: bytes
    stats: LookupStats
    failures: dict[int, tuple[str, str]]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The source is not available to the owner, which retried."""

    text: str
    stats: LookupStats


_ENCODER = msgspec.msgpack.Encoder()
_ASK = msgspec.msgpack.Decoder(Ask)
_ANSWER = msgspec.msgpack.Decoder(Answer | Refused)
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowException, OSError, ValueError)


def encoded_ask(keys: Sequence[pa.Array], invalidated: bytes) -> bytes:
    """Encode a request for the rows of distinct keys."""
    names = [str(place) for place in range(len(keys))]
    batch = pa.RecordBatch.from_arrays(list(keys), names=names)
    return _ENCODER.encode(Ask(one_batch(batch).to_pybytes(), invalidated))


def answered(body: bytes, opened: Callable[[bytes], PartialRows]) -> bytes:
    """Return the encoded answer to an encoded request. `opened` opens the table after it was told invalidated keys."""
    ask = _ASK.decode(body)
    keys = pa.ipc.open_stream(ask.keys).read_next_batch().columns
    rows = opened(ask.invalidated)
    try:
        matches = rows.match(keys, with_ages=True)
    except UnavailableError as error:
        return _ENCODER.encode(Refused(str(error), rows.failed))
    starts, counts = (array.astype(np.int64).tobytes() for array in (matches.starts, matches.counts))
    ages_ms = b"" if matches.ages_ms is None else matches.ages_ms.tobytes()
    batch = one_batch(pa.RecordBatch.from_arrays(matches.rows, schema=rows.schema)).to_pybytes()
    return _ENCODER.encode(Answer(starts, counts, ages_ms, batch, matches.counted.stats, dict(matches.failures)))


def decoded_answer(data: bytes, schema: pa.Schema, keys: int) -> Matches | Refused:
    """Decode the answer for a number of keys: their rows, or why there are none.

    Raises:
        CorruptionError: the bytes are not rows of this schema for so many keys.
    """
    try:
        answer = _ANSWER.decode(data)
        if isinstance(answer, Refused):
            return answer
        rows = pa.ipc.open_stream(answer.rows).read_next_batch()
        rows.validate(full=True)
        starts, counts, ages_ms = (
            np.frombuffer(array, np.int64) for array in (answer.starts, answer.counts, answer.ages_ms)
        )
    except StopIteration as error:
        raise _undecodable("it has a schema and no rows") from error
    except _UNDECODABLE as error:
        raise _undecodable(str(error)) from error
    known = bool(len(ages_ms))
    if not rows.schema.equals(schema) or {len(starts), len(counts), len(ages_ms) if known else keys} != {keys}:
        raise _undecodable(f"it has {rows.schema} for {len(counts)} keys, expected {schema} for {keys}")
    # Each is bounded before they are added, so that the sum cannot overflow.
    bounded = all(each.min(initial=0) >= 0 and each.max(initial=0) <= rows.num_rows for each in (starts, counts))
    if len(schema) and not (bounded and (starts + counts).max(initial=0) <= rows.num_rows):
        raise _undecodable("it names rows that it does not have")
    if not all(0 <= number < keys for number in answer.failures):
        raise _undecodable("it names keys that were not asked for")
    return Matches(
        starts,
        counts,
        rows.columns,
        Counted(answer.stats),
        failures=answer.failures,
        ages_ms=ages_ms if known else None,
    )


def _undecodable(what: str) -> CorruptionError:
    return CorruptionError(
        f"the answer of an owner of lookup keys cannot be read: {what}; all executors must run one Millpond"
    )


class Owner:
    """Answers other executors, in threads of its own, until it is closed.

    Args:
        host: the address of this machine at which it listens.
        token: the token that requests must have.
        answer: turns an encoded request into an encoded answer.
    """

    def __init__(self, host: str, token: str, answer: Callable[[bytes], bytes]) -> None:
        class Handler(_Handler):
            answer_to = staticmethod(answer)

        self.host = host
        self._server = BoundedServer(host, token, Handler, MOST_ASKING)

    def member(self, name: str) -> Member:
        """Return what others need to ask it."""
        return Member(name, self.host, self._server.port, self._server.certificate)

    def close(self) -> None:
        """Stop listening and answering."""
        self._server.close()
        self._server.drop_connections()


class _Handler(TokenHandler):
    protocol_version = "HTTP/1.1"

    answer_to: Callable[[bytes], bytes]

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        """Answer a batch of keys."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES or not self.is_allowed():
            # The body stays unread, so the connection is of no more use.
            self.close_connection = True
            return
        body = self.rfile.read(int(length))
        try:
            told = self.answer_to(body)
        except Exception as error:  # noqa: BLE001 - whatever a source raises, the one who asks meets it too
            self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}".encode())
        else:
            self.answer(HTTPStatus.OK, told)


class Peer:
    """Another executor that shares the cache, as seen from this one. Thread-safe.

    Attributes:
        seed: its number in `ownership`.
        told_version: the version of the last invalidation that it was told by this executor.
    """

    def __init__(self, member: Member, token: str, clock: Clock) -> None:
        self.seed, self.told_version = seed(member.name), 0
        self._name = member.name
        self._address = ServerAddress(member.host, member.port, token, member.certificate)
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[tuple[HTTPSConnection, int]] = []
        self._gone_ms: int | None = None

    def is_there(self) -> bool:
        """Return False if it did not answer lately."""
        return self._gone_ms is None or self._clock() - self._gone_ms >= GONE_MS

    def ask(self, body: bytes) -> "Asked":
        """Send an encoded request. Nothing is raised: if it fails, there is no answer."""
        idle = self._idle_connection()
        connection = self._address.connection(CONNECT_S) if idle is None else idle
        try:
            if idle is None:
                connection.connect()
                connection.sock.settimeout(ANSWER_S)
            connection.request("POST", "/", body, self._address.authorization())
        except (OSError, HTTPException) as error:
            self._gone(connection, error)
            return Asked(self, None)
        return Asked(self, connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _idle_connection(self) -> HTTPSConnection | None:
        now_ms = self._clock()
        with self._lock:
            while self._idle:
                connection, since_ms = self._idle.pop()
                if now_ms - since_ms < _IDLE_MS:
                    return connection
                connection.close()
        return None

    def _received(self, connection: HTTPSConnection) -> bytes | None:
        """Return the answer's bytes; None if there is none."""
        try:
            response = connection.getresponse()
            data = response.read()
        except (OSError, HTTPException) as error:
            self._gone(connection, error)
            return None
        with self._lock:
            self._gone_ms = None
            if not response.will_close:
                self._idle.append((connection, self._clock()))
        if response.status == HTTPStatus.OK:
            return data
        self.report(f"{response.status} {data.decode(errors='replace')}")
        return None

    def _gone(self, connection: HTTPSConnection, error: Exception) -> None:
        connection.close()
        self._gone_ms = self._clock()
        self.report(str(error))

    def report(self, what: str) -> None:
        """Tell the executor's log that an answer is missing."""
        print(  # noqa: T201 - the executor's log
            f"millpond state host: {self._name}, port {self._address.port}, did not answer "
            f"for the lookup keys that it owns ({what}); this executor loads them itself.",
            file=sys.stderr,
            flush=True,
        )


class Asked:
    """A request that was sent. Read the answer, or close it: its connection can then be used again, or not."""

    def __init__(self, peer: Peer, connection: HTTPSConnection | None) -> None:
        self._peer, self._connection = peer, connection

    def answer(self) -> bytes | None:
        """Wait for the encoded answer; None if there is none."""
        connection, self._connection = self._connection, None
        return None if connection is None else self._peer._received(connection)  # noqa: SLF001 - one thing in two parts

    def close(self) -> None:
        """Give up the answer, unless it was read."""
        if self._connection is not None:
            self._connection.close()

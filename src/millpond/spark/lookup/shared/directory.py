"""The directory of the executors that share a table's cache: on the driver, asked over HTTPS.

A state host that opens the table sends itself as a `Member`, again every few seconds, and gets all members. The
invariant: **a member that has not been heard of for `MEMBER_MS` is no longer told to others**. Executors may come and
go at any time; until a change is known everywhere, two of them may load the same key.

The trade-off: a beat is a request of each executor for each shared table. It keeps Spark's JVM out of the matter, which
does not know about state hosts.
"""

import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from pyspark.sql import SparkSession

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import CorruptionError
from millpond.spark.lookup.tls_server import BoundedServer, ServerAddress, TokenHandler

MEMBER_MS = 30_000
"""How long a member is told to others after its last beat."""

_MOST_BYTES = 1 << 16
"""The largest size of a member: a name, an address and a certificate."""


class Member(msgspec.Struct, frozen=True):
    """A state host that shares a table's cache.

    Attributes:
        name: names the executor, also after its state host was replaced.
        host, port: where it answers.
        certificate: its certificate as PEM.
    """

    name: str
    host: str
    port: int
    certificate: str


_ENCODER = msgspec.msgpack.Encoder()
_MEMBER = msgspec.msgpack.Decoder(Member)
_MEMBERS = msgspec.msgpack.Decoder(list[Member])


def encoded_member(member: Member) -> bytes:
    """Encode a member for the directory."""
    return _ENCODER.encode(member)


def decoded_members(data: bytes) -> list[Member]:
    """Decode the directory's answer.

    Raises:
        CorruptionError: the bytes are not a list of members.
    """
    try:
        return _MEMBERS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            f"the directory of a shared lookup cache did not answer with members: {error}; driver and executors must "
            "run one Millpond"
        ) from error


class Directory:
    """The members of one table, served until it is closed.

    Args:
        host: the name by which executors know this machine.
        bound: the address to listen at.
        clock: monotonic milliseconds.
    """

    def __init__(self, host: str, bound: str, clock: Clock = monotonic_ms) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._members: dict[str, tuple[Member, int]] = {}
        token = secrets.token_urlsafe(32)

        class Handler(_Handler):
            joined = staticmethod(self.joined)

        self._server = BoundedServer(bound, token, Handler)
        self.address = ServerAddress(host, self._server.port, token, self._server.certificate)

    def joined(self, member: Member) -> list[Member]:
        """Add a member, or note that it lives. Return all members that live, by name."""
        now_ms = self._clock()
        with self._lock:
            self._members[member.name] = member, now_ms
            self._members = {
                name: (each, at_ms) for name, (each, at_ms) in self._members.items() if now_ms - at_ms < MEMBER_MS
            }
            return [self._members[name][0] for name in sorted(self._members)]

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


class _Handler(TokenHandler):
    joined: Callable[[Member], list[Member]]

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        """Add the sender, and answer with all members."""
        if not self.is_allowed():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.answer(HTTPStatus.BAD_REQUEST)
            return
        try:
            member = _MEMBER.decode(self.rfile.read(int(length)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.answer(HTTPStatus.BAD_REQUEST, str(error).encode())
            return
        self.answer(HTTPStatus.OK, _ENCODER.encode(self.joined(member)))


def directory_for(session: SparkSession) -> Directory | None:
    """Start a directory for the executors of a session; None if Spark runs locally, in one executor."""
    if session.sparkContext.master.partition("[")[0] == "local":
        return None
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return Directory(host, conf.get("spark.driver.bindAddress") or host)

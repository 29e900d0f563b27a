"""The protocol between a worker and its state host: frames over a Unix socket.

A frame is a message and an optional payload of bytes:

    message length, 4 bytes | payload length, 8 bytes | message, msgpack | payload

Before the first frame the worker sends one byte, and with it a descriptor of its stderr. That is the
executor's log while the worker's daemon lives. The host needs it, since it may outlive the daemon that it
was started under.

Lengths, message and payload are sent in one write. A peer may close after its last answer, and a second,
empty write would then raise a broken pipe.
"""

import contextlib
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

import msgspec

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.host.raised import Raised
from millpond.spark.spec.batch_done import BatchDone

LISTENING = "listening"
"""The first line that a host prints when it accepts connections. Any other line says why it cannot."""

MOST_MESSAGE_BYTES = 256 << 20
MOST_PAYLOAD_BYTES = 4 << 30
"""The largest lengths that a frame may declare. No batch needs as much: a value of Spark ends at 2 GiB."""

_LENGTHS = struct.Struct("<IQ")
_PIECE_BYTES = 16 << 20
_TIMEVAL = struct.Struct("ll")
_STDERR = 2
_LOG = b"L"
_GONE = (
    "the other end of the state host's socket closed in the middle of a batch; Spark runs the batch again. If it comes "
    "back, look for the state host's last lines in the executor's log."
)


class PeerGoneError(UnavailableError):
    """The other end closed the socket, or ended."""

    def __init__(self) -> None:
        super().__init__(_GONE)

    def __reduce__(self) -> tuple[type["PeerGoneError"], tuple[()]]:
        return type(self), ()


class Open(msgspec.Struct, tag=True, frozen=True):
    """Worker: begin a version of a shard. The payload is the pickled operator spec.

    Attributes:
        manifest: the shard's newest manifest in Spark's state store, encoded.
        application: the id of the Spark application.
        task_attempt: Spark's task attempt id. The latest attempt gets the shard.
        parent: the id of the worker's parent process.
        token: names the version that this batch will commit.
        processing_ms, watermark_ms: the times of the batch; -1 where the time mode has none.
        task_environment: the worker's `TaskEnvironment`, encoded.
        comes_again: False for a batch job, whose shard the host drops after the batch.
    """

    manifest: bytes
    application: str
    task_attempt: int
    parent: int
    token: str
    processing_ms: int
    watermark_ms: int
    task_environment: bytes
    comes_again: bool = True


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Host: memory is at the manifest; send rows."""


class Restore(msgspec.Struct, tag=True, frozen=True):
    """Host: send the segments of the manifest first."""


class Segment(msgspec.Struct, tag=True, frozen=True):
    """A segment, in either direction; the payload is its bytes."""

    id: int


class Blob(msgspec.Struct, tag=True, frozen=True):
    """Packed rows, in either direction; the payload is the Arrow IPC stream."""


class End(msgspec.Struct, tag=True, frozen=True):
    """No more of what was being sent."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Host: the version was rolled back, because of this error."""

    raised: Raised


class OpenLookups(msgspec.Struct, tag=True, frozen=True):
    """Worker: begin lookups in a table. The payload is pickled: the rows that are wanted, the table, how it is shared.

    Attributes:
        parent: the id of the worker's parent process.
        task_environment: the worker's `TaskEnvironment`, encoded.
        invalidated: the keys that the driver has invalidated, as an Arrow IPC stream; empty if there are none.
        executor: names the executor of worker and host.
    """

    parent: int
    task_environment: bytes
    invalidated: bytes = b""
    executor: str = ""


class Keys(msgspec.Struct, tag=True, frozen=True):
    """Worker: distinct keys; the payload is one Arrow IPC stream. The last one is followed by `End`."""


class Found(msgspec.Struct, tag=True, frozen=True):
    """Host: the rows of the keys; the payload is one Arrow IPC stream.

    Attributes:
        starts: for each key, the position of its first row.
        counts: for each key, its number of rows.
        counted: metrics and failures, pickled.
    """

    starts: bytes
    counts: bytes
    counted: bytes


Message = OpenLookups | Keys | Found | Open | Ready | Restore | Segment | Blob | End | BatchDone | Failed

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


class Connection:
    """One end of a conversation. A context manager: leaving it closes the socket.

    Args:
        sock: the socket, which blocks.
        hung: makes the error to raise when the time-out has passed without a byte from the peer.
        timeout: how long to wait for the peer. None: for ever.
    """

    def __init__(
        self,
        sock: socket.socket,
        hung: Callable[[], UnavailableError] = PeerGoneError,
        timeout: timedelta | None = None,
    ) -> None:
        self._socket = sock
        self._hung = hung
        if timeout is not None:
            # Use the system's time-outs. With Python's the socket would not block, and data would come in small pieces.
            wait = _TIMEVAL.pack(timeout.days * 86_400 + timeout.seconds, timeout.microseconds)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        """Send one frame.

        Raises:
            PeerGoneError: the peer has closed the socket.
        """
        text = _ENCODER.encode(message)
        parts = [memoryview(_LENGTHS.pack(len(text), len(payload)) + text), memoryview(payload)]
        while parts:
            try:
                sent = self._socket.sendmsg(parts)
            except ConnectionError as error:
                raise PeerGoneError from error
            except BlockingIOError as error:
                raise self._hung() from error
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]

    def receive(self) -> tuple[Message, bytes]:
        """Wait for one frame.

        Raises:
            PeerGoneError: the peer has closed the socket.
            CorruptionError: the frame is too long, or cannot be decoded.
        """
        text_length, payload_length = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        if text_length > MOST_MESSAGE_BYTES or payload_length > MOST_PAYLOAD_BYTES:
            raise CorruptionError(
                f"a frame of a state host's socket says that it has {text_length} and {payload_length} bytes, expected "
                f"{MOST_MESSAGE_BYTES} and {MOST_PAYLOAD_BYTES} at most. Both ends must run one Millpond; take smaller "
                "batches if a batch is that large."
            )
        text = self._exactly(text_length)
        try:
            message = _DECODER.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptionError(
                f"a frame of a state host's socket does not decode: {error}. Both ends must run one Millpond."
            ) from error
        return message, self._exactly(payload_length)

    def send_log(self) -> None:
        """Send the peer this process's stderr. Call it before any frame."""
        try:
            socket.send_fds(self._socket, [_LOG], [_STDERR])
        except ConnectionError as error:
            raise PeerGoneError from error

    def receive_log(self) -> int:
        """Receive a descriptor of the peer's stderr, which the caller must close. Call it before any frame."""
        try:
            said, descriptors, _, _ = socket.recv_fds(self._socket, len(_LOG), 1)
        except ConnectionError as error:
            raise PeerGoneError from error
        if said != _LOG or not descriptors:
            raise PeerGoneError
        return descriptors[0]

    def stop_receiving(self) -> None:
        """End another thread's wait for the peer. Sending still works."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def _exactly(self, length: int) -> bytes:
        # The system waits for a whole piece, so a payload of one piece is received in place and not copied again. A
        # frame that only declares a large length takes the memory of one piece.
        parts: list[bytes] = []
        while length:
            try:
                part = self._socket.recv(min(length, _PIECE_BYTES), socket.MSG_WAITALL)
            except ConnectionError as error:
                raise PeerGoneError from error
            except BlockingIOError as error:
                raise self._hung() from error
            if not part:
                raise PeerGoneError
            parts.append(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

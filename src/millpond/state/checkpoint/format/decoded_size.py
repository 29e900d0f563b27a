"""Checks how large the columns of an Arrow stream become, before any memory is allocated for them.

Each compressed buffer of a record batch states its decoded length in its first eight bytes, and Arrow allocates that
much before it reads further. LZ4 expands a byte to at most 255 bytes. So a buffer that states more was never written,
and is rejected.

Source: the Arrow columnar format, "Encapsulated message format" and `Message.fbs`.
"""

import struct

import pyarrow as pa

_MOST_OF_A_BYTE = 255
_LONG, _INT, _SHORT = struct.Struct("<q"), struct.Struct("<i"), struct.Struct("<H")
_BUFFER = struct.Struct("<qq")
_NOT_COMPRESSED = -1
_MESSAGE_HEADER, _BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 2, 3
"""The positions of these fields in the flatbuffer tables of a message and of a record batch."""


def check_decoded_bytes(stream: pa.Buffer) -> None:
    """Reject a stream that would need more memory than its bytes can decode to.

    Raises:
        ValueError: a buffer states a length that LZ4 cannot reach.
        pyarrow.ArrowException, struct.error, IndexError: it is no Arrow stream.
    """
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type in ("record batch", "dictionary"):
            _check_batch(memoryview(message.metadata), memoryview(message.body))


def _check_batch(metadata: memoryview, body: memoryview) -> None:
    message = _INT.unpack_from(metadata)[0]
    at = _field(metadata, message, _MESSAGE_HEADER)
    batch = at + _INT.unpack_from(metadata, at)[0]
    if not _field(metadata, batch, _BATCH_COMPRESSION):
        return
    vector = _field(metadata, batch, _BATCH_BUFFERS)
    vector += _INT.unpack_from(metadata, vector)[0]
    for number in range(_INT.unpack_from(metadata, vector)[0]):
        offset, length = _BUFFER.unpack_from(metadata, vector + _INT.size + number * _BUFFER.size)
        if length > _LONG.size:
            decoded = _LONG.unpack_from(body, offset)[0]
            if decoded != _NOT_COMPRESSED and not 0 <= decoded <= _MOST_OF_A_BYTE * length:
                raise ValueError(f"a buffer of {length} bytes says that it has {decoded} bytes when decoded")


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the position of a field in a flatbuffer's table; 0 if the table does not have it."""
    names = table - _INT.unpack_from(metadata, table)[0]
    place = _SHORT.size * (2 + number)
    if place >= _SHORT.unpack_from(metadata, names)[0]:
        return 0
    offset = _SHORT.unpack_from(metadata, names + place)[0]
    return table + offset if offset else 0

"""The manifest of a savepoint: its files, and the schemas and times under which they were written."""

from typing import Any

import msgspec

from millpond.errors import CorruptionError
from millpond.state.checkpoint.format.segment import DECODE_ERRORS


class SavepointFile(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file: which cells it holds, and how to verify it.

    `mac` is the MAC of its name and bytes, in hex, in a sealed savepoint; else empty.
    """

    name: str
    state: str
    first_group: int
    last_group: int
    rows: int
    bytes: int
    checksum: int
    mac: str = ""


class SavepointManifest(msgspec.Struct, frozen=True):
    """What a savepoint consists of."""

    max_parallelism: int
    key_schema: bytes
    watermark_ms: int
    states: tuple[dict[str, Any], ...]
    files: tuple[SavepointFile, ...]
    processing_ms: int = -1

    @staticmethod
    def decode(body: bytes | memoryview, name: str) -> "SavepointManifest":
        """Decode a body whose header was checked. If it does not decode, the CorruptionError names the manifest."""
        try:
            return msgspec.msgpack.decode(body, type=SavepointManifest)
        except DECODE_ERRORS as error:
            raise CorruptionError(f"{name} does not decode: {error}. Use another savepoint.") from error

"""The manifest of a savepoint: its files, and under which schemas and times they were written."""

from typing import Any

import msgspec


class SavepointFile(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file: which cells it holds, and how to know that it is whole."""

    name: str
    state: str
    first_group: int
    last_group: int
    rows: int
    bytes: int
    checksum: int


class SavepointManifest(msgspec.Struct, frozen=True):
    """What a savepoint consists of."""

    max_parallelism: int
    key_schema: bytes
    watermark_ms: int
    states: tuple[dict[str, Any], ...]
    files: tuple[SavepointFile, ...]
    processing_ms: int = -1

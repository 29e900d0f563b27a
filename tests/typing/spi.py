"""What type checkers make of `millpond.state.spi`."""

from pathlib import Path
from typing import assert_type

from millpond.state import StateOptions
from millpond.state.spi import (
    ForwardingBackend,
    HeapBackend,
    KeyedStateBackend,
    RocksDbBackend,
    Snapshot,
    open_backend,
)


def every_backend_is_one(folder: Path) -> list[KeyedStateBackend]:
    return [HeapBackend(range(4)), RocksDbBackend(range(4), folder), ForwardingBackend(HeapBackend(range(4)))]


def a_version_is_a_snapshot(backend: KeyedStateBackend) -> None:
    assert_type(backend.commit(), Snapshot)
    assert_type(backend.rollback(), bool)


def options_open_a_backend(options: StateOptions, folder: Path) -> None:
    assert_type(open_backend(options, range(4), folder), KeyedStateBackend)
    open_backend("heap", range(4), folder)  # type: ignore[arg-type]

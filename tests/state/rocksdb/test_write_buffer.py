"""The size of the write buffers follows the entries, and a size that was chosen stays."""

import re

import pyarrow as pa
import pytest

from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.rocksdb.write_buffer import WriteBuffer
from millpond.state.spi import StateDescriptor, StateKind

TEXT = StateDescriptor("text", StateKind.VALUE, pa.schema([("text", pa.string())]))
SMALL, LARGE = 8 << 20, 64 << 20


@pytest.fixture
def opened(tmp_path):
    """Opens a backend with these options."""
    backends = []

    def open_backend(**options):
        backends.append(RocksDbBackend(range(2), tmp_path / f"state-{len(backends)}", **options))
        return backends[-1]

    yield open_backend
    for backend in backends:
        backend.close()


def size_of(backend):
    """The size that RocksDB wrote down last."""
    newest = max((backend._database.folder / "db").glob("OPTIONS-*"))
    return int(re.search(r"^\s*write_buffer_size=(\d+)$", newest.read_text(), re.MULTILINE)[1])


def fill(backend, text, keys=6_000):
    """One version, in which each key gets this text."""
    state = backend.value_state(TEXT)
    backend.enter(1)
    for key in range(keys):
        backend.context.key = (key,)
        state.update((text,))
    backend.commit().release()
    backend.acknowledge()


def texts_of(backend):
    return set(backend.cells("text", 1).values)


def test_small_entries_get_small_buffers_and_large_ones_large_buffers(opened):
    backend = opened()
    fill(backend, "x", keys=60_000)
    assert size_of(backend) == SMALL
    for _ in range(3):
        fill(backend, "x" * 1_000)
    assert size_of(backend) == LARGE
    assert texts_of(backend) == {("x",), ("x" * 1_000,)}
    for text in "abc":
        fill(backend, text, keys=60_000)
    assert size_of(backend) == SMALL
    assert texts_of(backend) == {("c",)}


def test_a_few_entries_change_nothing(opened):
    backend = opened()
    fill(backend, "x" * 1_000, keys=500)
    assert size_of(backend) == SMALL


def test_a_restore_fits_the_buffers(opened):
    backend, other = opened(), opened()
    fill(backend, "x" * 1_000)
    other.load(TEXT, backend.cells("text", 1))
    assert size_of(other) == LARGE


def test_a_size_that_was_chosen_stays(opened):
    backend = opened(write_buffer_bytes=16 << 20)
    fill(backend, "x" * 1_000)
    assert size_of(backend) == 16 << 20


def test_a_size_that_cannot_be_written_to_the_options_file_counts(opened):
    backend = opened(write_buffer_bytes=SMALL)
    fill(backend, "x" * 1_000)
    fitted = WriteBuffer(None)
    fitted.fit(_FullDisk(backend._database.handle))
    assert fitted.size_bytes == size_of(backend) == LARGE
    fill(backend, "y")
    assert texts_of(backend) == {("y",)}


class _FullDisk:
    """A database that sets options, and then cannot write its options file."""

    def __init__(self, handle):
        self.property_int_value = handle.property_int_value
        self._set_options = handle.set_options

    def set_options(self, options):
        self._set_options(options)
        raise Exception("IO error: Unable to persist options.: IO error: No space left on device")  # noqa: TRY002

"""Blobs wait in memory or in a file without a name, and come back in order."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import CorruptionError, UnavailableError
from millpond.spark.shuffle import spool as spool_module
from millpond.spark.shuffle.spool import Spool


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_blobs_come_back_in_order_whatever_fits_into_memory(tmp_path_factory, blobs, memory_bytes):
    folder = tmp_path_factory.mktemp("spool")
    with Spool(lambda: folder, memory_bytes) as spool:
        for blob in blobs:
            spool.add(blob)
        assert [bytes(blob) for blob in spool] == blobs
        assert [bytes(blob) for blob in spool] == blobs
        assert list(folder.iterdir()) == []


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    with Spool(lambda: tmp_path / "gone", memory_bytes=2) as spool:
        spool.add(b"ab")
        with pytest.raises(UnavailableError, match=r"beyond the 2 bytes.*gone.*TMPDIR"):
            spool.add(b"c")


def test_views_of_the_file_outlive_the_spool(tmp_path: Path) -> None:
    with Spool(lambda: tmp_path, memory_bytes=0) as spool:
        spool.add(b"rows")
        (view,) = spool
    assert bytes(view) == b"rows"


@pytest.fixture
def spooled(tmp_path, monkeypatch):
    """A spool with one blob in memory and two in its file, and that file."""
    made = []

    def temporary_file(**options):
        made.append(tempfile.NamedTemporaryFile(**options))  # noqa: SIM115 - closed with the spool
        return made[0]

    monkeypatch.setattr(spool_module.tempfile, "TemporaryFile", temporary_file)
    with Spool(lambda: tmp_path, memory_bytes=4) as spool:
        for blob in (b"held", b"first in the file", b"second"):
            spool.add(blob)
        assert len(list(spool)) == 3
        yield spool, Path(made[0].name)


@pytest.mark.parametrize("place", range(len(b"first in the filesecond")))
def test_a_flipped_bit_in_the_file_is_found_before_the_blob_is_given(spooled, place):
    spool, file = spooled
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    given = iter(spool)
    whole = [bytes(next(given)) for _ in range(1 if place < 17 else 2)]
    assert whole == [b"held", b"first in the file"][: len(whole)]
    with pytest.raises(CorruptionError, match=rf"{file.parent}.* bytes from byte {0 if place < 17 else 17} on .*retry"):
        next(given)


@pytest.mark.parametrize("length", [0, 17, 22, 24])
def test_a_file_of_another_length_is_refused_before_it_is_mapped(spooled, length):
    spool, file = spooled
    os.truncate(file, length)
    with pytest.raises(CorruptionError, match="it should have 23 bytes"):
        list(spool)

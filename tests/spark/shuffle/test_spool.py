"""Blobs wait in memory or in a file without a name, and come back in order."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import UnavailableError
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

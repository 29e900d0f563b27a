"""A trace has every request in order, tells keys apart, and tells nobody which they were."""

import lzma
import subprocess
from array import array

import pytest

from millpond.cache import new_cache
from millpond.cache.curves.trace import TraceWriter, read_trace, write_trace
from millpond.cache.miniature import LEAST_HASH
from millpond.errors import OptionError


def pattern(numbers):
    """Which requests are for the same key."""
    first = {}
    return [first.setdefault(number, place) for place, number in enumerate(numbers)]


@pytest.mark.parametrize("shared", [False, True])
def test_a_trace_has_the_requests_of_a_cache_in_their_order(tmp_path, shared):
    cache, writer = write_trace(new_cache("traced", max_entries=10, shared=shared), tmp_path / "keys.trace")
    keys = [f"key {number * number % 7}" for number in range(10_000)]
    for key in keys[:5_000]:
        cache.get_or_load(key, len)
    cache.get_present(keys[5_000:])
    writer.close()
    written = read_trace(tmp_path / "keys.trace")
    assert pattern(written) == pattern(keys)
    cache.get("after the end")
    writer.close()
    assert len(read_trace(tmp_path / "keys.trace")) == 10_000


def test_two_traces_of_the_same_keys_have_no_number_in_common(tmp_path):
    for name in ("one", "other"):
        writer = TraceWriter(tmp_path / name)
        for key in range(1_000):
            writer.asked(key)
        writer.close()
    one, other = (set(read_trace(tmp_path / name)) for name in ("one", "other"))
    assert len(one) == len(other) == 1_000
    assert not one & (other | set(range(1_000)))


def test_a_trace_ends_when_it_is_full(tmp_path):
    writer = TraceWriter(tmp_path / "full.trace", most=100)
    for key in range(5_000):
        writer.asked(key)
    writer.close()
    assert len(read_trace(tmp_path / "full.trace")) == 100
    assert writer.limit == LEAST_HASH, "no key is wanted any more"


def test_a_trace_on_a_full_disk_ends_with_a_whole_request_and_the_cache_goes_on(tmp_path, caplog):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        cache, writer = write_trace(new_cache("traced", max_entries=10), disk / "keys.trace")
        assert [cache.get_or_load(key, str) for key in range(20_000)] == [str(key) for key in range(20_000)]
        writer.close()
        assert 1_000 < len(read_trace(disk / "keys.trace")) < 20_000
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "keys.trace: ends after" in caplog.text
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_trace_never_overwrites_a_file(tmp_path):
    (tmp_path / "kept.trace").write_bytes(b"kept")
    with pytest.raises(OptionError, match=r"kept\.trace"):
        TraceWriter(tmp_path / "kept.trace")
    assert (tmp_path / "kept.trace").read_bytes() == b"kept"


def test_traces_of_cache2k_are_read(tmp_path):
    numbers = array("I", [1, 70_000, 1])
    numbers.byteswap()
    (tmp_path / "other.trc.xz").write_bytes(lzma.compress(numbers.tobytes()))
    assert list(read_trace(tmp_path / "other.trc.xz")) == [1, 70_000, 1]

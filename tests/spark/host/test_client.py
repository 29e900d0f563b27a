"""Which host a shard is given, and who starts it. Hosts are real processes here; what calls them is no Spark worker."""

import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import psutil
import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.spark.host import client
from millpond.spark.host.client import HostAddress, committed
from millpond.spark.host.wire import Blob, Connection, End, PeerGoneError, Segment
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.metrics import BatchMetrics
from millpond.state.checkpoint import SegmentRef, new_manifest


@pytest.fixture
def here(monkeypatch):
    """This process stands for the executor, and a folder with a short name for the temporary one."""
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(client, "executor_pid", os.getpid)
        monkeypatch.setattr(client, "user_folder", lambda: Path(short))
        yield Path(short)


def _place(shard, hosts=2, application="app", task=None):
    return HostAddress.of_shard(shard, hosts, application, shard if task is None else task).socket_path


def test_shards_take_the_hosts_in_turn_whichever_spark_gives_to_an_executor(here):
    first = [_place(shard).name for shard in (4, 8, 2, 6)]
    assert first == ["0.sock", "1.sock", "0.sock", "1.sock"]
    assert [_place(shard).name for shard in (6, 2, 8, 4)] == first[::-1], "and keep them"


def test_shards_of_one_task_take_different_hosts_so_that_later_tasks_do_not_meet(here):
    """After `coalesce`, Spark gives neighbours to one task in the first batch, and then to different ones."""
    began = {shard: _place(shard, task=shard // 4).name for shard in (4, 0, 1, 5, 2, 6, 3, 7)}
    assert sorted(began.values()) == ["0.sock"] * 4 + ["1.sock"] * 4
    evens, odds = ([_place(shard, task=2 + first).name for shard in range(first, 8, 2)] for first in (0, 1))
    assert all(one != other for one, other in zip(evens, odds, strict=True)), "these run at the same time"
    assert {shard: _place(shard, task=9).name for shard in began} == began, "and they keep their hosts"


def test_a_full_disk_leaves_the_places_of_the_shards_as_they_were(here, monkeypatch):
    places = [_place(shard) for shard in range(3)]
    write = Path.write_text

    def half(path, text):
        write(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space left"):
            _place(3)
    assert [_place(shard) for shard in range(3)] == places
    assert _place(3).name == "1.sock"


def test_no_number_of_hosts_means_one_for_each_processor(here, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert len({_place(shard, hosts=0) for shard in range(9)}) == 3


def test_applications_do_not_share_hosts(here):
    assert _place(0, application="a").parent != _place(0, application="b").parent


def test_a_path_too_long_for_a_socket_is_refused_with_a_way_out(here, monkeypatch):
    long = here / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(client, "user_folder", lambda: long)
    with pytest.raises(UnavailableError, match="TMPDIR"):
        _place(0)


def _hosts_of(path):
    found = []
    for process in psutil.process_iter():
        try:
            if str(path) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_host_is_started_once_found_again_and_ends_when_its_socket_is_gone(here):
    address = HostAddress.first("app")
    connections, threads = [], []
    for _ in range(3):
        threads.append(threading.Thread(target=lambda: connections.append(address.connect())))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    assert len(connections) == 3
    (host,) = _hosts_of(address.socket_path)
    assert address.socket_path.parent.stat().st_mode & 0o777 == 0o700
    for connection in connections:
        connection.__exit__(None, None, None)
    address.socket_path.unlink()
    assert host.wait(20) == 0
    with address.connect() as connection:
        connection.send(End())
        (again,) = _hosts_of(address.socket_path)
        assert again.pid != host.pid
    again.kill()
    again.wait(10)


def test_a_host_under_a_memory_limit_that_is_too_small_says_so(here, monkeypatch):
    """As `spark.executor.pyspark.memory` would set it: the host inherits the limit of who starts it."""
    program = (
        "import os, sys, pathlib, resource;"
        "from millpond.spark.host import client, memory;"
        "limit = memory.mapped_bytes() + (40 << 20);"
        "client.executor_pid = lambda: os.getppid();"
        f"client.user_folder = lambda: pathlib.Path({str(here)!r});"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "client.HostAddress.first('app').connect()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "UnavailableError" in ended.stderr
    assert "spark.executor.pyspark.memory" in ended.stderr


@pytest.mark.parametrize("sent", [Segment(6), Blob(), End()])
def test_segments_of_a_new_version_come_in_the_order_of_its_manifest_or_are_refused(sent):
    parent = msgspec.structs.replace(new_manifest("a", 0, 1, 4, pa.schema([("user", pa.string())])), next_segment=4)
    refs = tuple(SegmentRef(number, False, 1, "count", 0, 3, 1, 1, 1) for number in (3, 4, 5))
    manifest = msgspec.structs.replace(parent, version=1, segments=refs)
    left, right = socket.socketpair()
    with Connection(left) as host, Connection(right) as worker:
        host.send(BatchDone(BatchMetrics(shard=0), -1, dropped=(1,)), manifest.encode())
        host.send(Segment(4), b"four")
        host.send(sent, b"other")
        done, commit = committed(worker, parent)
        assert (commit.manifest, commit.dropped, commit.parent) == (manifest, done.dropped, parent)
        assert list(commit.segments) == [4, 5]
        arriving = iter(commit.segments.items())
        assert next(arriving) == (4, b"four")
        with pytest.raises(UnavailableError, match=r"the state host sent .* was expected"):
            next(arriving)


def test_a_host_that_hangs_is_killed_and_replaced_and_the_error_says_so(here):
    address = HostAddress.first("app")
    with address.connect(timedelta(seconds=1)) as connection:
        (host,) = _hosts_of(address.socket_path)
        host.suspend()
        with pytest.raises(
            UnavailableError, match=rf"no sign for 0:00:01, StateConfig\(host_timeout.*process {host.pid}"
        ):
            connection.receive()
    host.wait(10)
    with address.connect(timedelta(seconds=30)) as connection:
        connection.send(End())
        (again,) = _hosts_of(address.socket_path)
        assert again.pid != host.pid
        with pytest.raises(PeerGoneError):
            connection.receive()
    again.kill()
    again.wait(10)

"""Whether a host is still the one that callers reach, and what it does between batches."""

import gc
import os
import socket
import threading
from types import SimpleNamespace

from millpond.spark.host.wire import Connection, End
from millpond.spark.runtime import server
from millpond.spark.runtime.server import _is_at


def test_a_socket_that_was_replaced_is_another_hosts(tmp_path):
    path = tmp_path / "0.sock"
    path.touch()
    found = path.stat()
    assert _is_at(path, found)
    path.rename(tmp_path / "kept")
    assert not _is_at(path, found)
    path.touch()
    assert not _is_at(path, found)


def test_a_worker_that_spark_ended_leaves_no_line_in_the_log(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(server, "_log_to", os.close)
    host = server.HostServer(tmp_path / "0.sock", owners=None)
    accepted, peer = socket.socketpair()
    with Connection(peer) as worker:
        worker.send_log()
    host._busy = 1
    host._serve(accepted)
    assert host._busy == 0
    assert capfd.readouterr().err == ""


def test_between_batches_that_follow_one_another_at_once_a_host_collects_garbage_and_ends_if_it_is_full(
    tmp_path, monkeypatch
):
    collected, listens, full = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(server, "_COLLECT_SECONDS", 0.0)
    monkeypatch.setattr(server, "_TICK_SECONDS", 60.0)  # so that nothing but the end of a batch wakes the host
    monkeypatch.setattr(server, "_log_to", os.close)
    monkeypatch.setattr(server, "_say", lambda _line: listens.set())
    monkeypatch.setattr(server, "converse", lambda connection, *_: connection.receive())
    monkeypatch.setattr(server.gc, "collect", collected.set)
    monkeypatch.setattr(server.gc, "freeze", lambda: None)
    path = tmp_path / "0.sock"
    host = server.HostServer(path, SimpleNamespace(ended=lambda: False))
    monkeypatch.setattr(host, "_is_nearly_full", full.is_set)
    listening = threading.Thread(target=host.run)
    listening.start()
    assert listens.wait(20)
    try:
        with worker_at(path) as worker:
            worker.send(End())
            assert collected.wait(20)
    finally:
        gc.enable()
        full.set()
        with worker_at(path) as last:
            last.send(End())
        listening.join(20)
    assert not listening.is_alive()


def worker_at(path):
    """A worker's connection to the host."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    connection = Connection(sock)
    connection.send_log()
    return connection

"""Whether a host is still the one that callers reach."""

import os
import socket

from millpond.spark.host.wire import Connection
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

"""Whom a host lets in, and whether it is still the one that callers reach."""

import os
import socket

import pytest

from millpond.errors import UnavailableError
from millpond.spark.host.wire import Connection
from millpond.spark.runtime import server
from millpond.spark.runtime.server import _check_peer, _is_at

needs_peer = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell who the peer is")


@needs_peer
def test_a_peer_of_the_same_user_is_let_in():
    left, right = socket.socketpair()
    with left, right:
        assert _check_peer(left) is None


@needs_peer
def test_a_peer_of_another_user_is_refused_with_both_named(monkeypatch):
    left, right = socket.socketpair()
    mine = os.getuid()
    monkeypatch.setattr(server.os, "getuid", lambda: mine + 1)
    with left, right, pytest.raises(UnavailableError, match=f"user {mine} tried .* of user {mine + 1}"):
        _check_peer(left)


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

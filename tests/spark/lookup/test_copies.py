"""A host that does not see the driver's folder gets each version of a full table once, whole, or an error."""

import fcntl
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.errors import MissingDependencyError, UnavailableError
from millpond.lookup import MappedTable
from millpond.spark.lookup import copies as copies_module
from millpond.spark.lookup.copies import FileServer, fetched
from millpond.spark.lookup.files import Published, newest_path
from millpond.spark.lookup.tls import client_context

HIDDEN = Path("/hidden/from/here")


def write(folder, version):
    made = MappedTable.of(pa.table({"n": [1], "version": [version]}), ["n"], folder / f"{version:03d}.made")
    path = made.path.rename(folder / f"{version:03d}.table")
    for outdated in set(folder.glob("*.table")) - {path}:
        outdated.unlink()


def version_of(table):
    return table.find([(1,)], ["version"])[1,][0][0]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "driver"
    folder.mkdir()
    write(folder, 1)
    return folder


@pytest.fixture
def server(folder):
    server = FileServer(lambda: newest_path("gates", folder), "127.0.0.1", "127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def published(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'executor'},{tmp_path / 'other'}")
    return Published("gates", HIDDEN, server.address)


@pytest.fixture
def copies(tmp_path):
    return tmp_path / "executor" / f"millpond-{HIDDEN.name}"


def test_a_version_is_fetched_once_and_the_one_before_it_removed(published, folder, copies):
    first = published.newest()
    assert version_of(first) == 1
    written = (copies / "001.table").stat().st_mtime_ns
    assert version_of(published.newest()) == 1
    assert (copies / "001.table").stat().st_mtime_ns == written
    write(folder, 2)
    assert version_of(published.newest()) == 2
    assert version_of(first) == 1, "who maps the version before keeps it"
    assert sorted(path.name for path in copies.iterdir()) == ["002.table", "lock"]


def test_who_sees_the_folder_of_the_driver_fetches_nothing(published, folder, copies):
    assert version_of(replace(published, folder=folder).newest()) == 1
    assert not copies.exists()


def test_many_workers_that_begin_together_make_one_copy(published, folder, copies):
    begin, seen = threading.Barrier(8), []

    def work():
        begin.wait()
        seen.append(version_of(published.newest()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [1] * 8
    assert sorted(path.name for path in copies.iterdir()) == ["001.table", "lock"]


def test_while_one_worker_fetches_the_others_go_on_with_the_version_they_have(published, folder, copies):
    published.newest()
    write(folder, 2)
    with (copies / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert version_of(published.newest()) == 1
    assert version_of(published.newest()) == 2


def test_an_error_that_readers_are_to_have_reaches_other_hosts(published, folder):
    published.newest()
    (folder / "failed").write_text("gates: a reload failed: Größe unbekannt")
    (folder / "001.table").unlink()
    with pytest.raises(UnavailableError, match="Größe unbekannt"):
        published.newest()


def test_who_does_not_know_the_token_gets_nothing(published, server):
    stranger = replace(published, server=replace(server.address, token=server.address.token[::-1]))
    with pytest.raises(UnavailableError, match=r"'gates'.*403 Forbidden"):
        stranger.newest()
    context = client_context(server.address.certificate)
    connection = HTTPSConnection(server.address.host, server.address.port, timeout=10, context=context)
    connection.request("GET", "/001.table")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (403, b"")
    connection.close()


def _stranger(server):
    return socket.create_connection((server.address.host, server.address.port), timeout=10)


def test_strangers_keep_nobody_waiting_and_threads_are_bounded(published, server, monkeypatch):
    monkeypatch.setattr(server._server, "most", 4)
    before = threading.active_count()
    strangers = []
    for _ in range(20):
        strangers.append(_stranger(server))
        strangers[-1].sendall(b"\x16\x03\x01")  # as a handshake begins
    assert version_of(published.newest()) == 1
    for evicted in strangers[:10]:
        assert evicted.recv(1) == b"", "the oldest are closed"
    assert threading.active_count() - before <= 4 + 1
    for stranger in strangers:
        stranger.close()


@contextmanager
def _between(server, change=lambda data: data):
    """The address of somebody between worker and driver, who hears all, and changes what the driver sends."""
    heard = []

    def pass_on(source, target, change):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                heard.append(data)
                target.sendall(change(data))
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def relay(worker):
        with worker, _stranger(server) as driver:
            back = threading.Thread(target=pass_on, args=(driver, worker, change))
            back.start()
            pass_on(worker, driver, lambda data: data)
            back.join(20)

    def listen():
        while True:
            worker, _ = listener.accept()
            if done.is_set():
                worker.close()
                return
            relay(worker)

    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield replace(server.address, port=listener.getsockname()[1]), heard
        finally:
            done.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join(20)


def test_who_listens_on_the_way_reads_neither_the_token_nor_the_table(server, folder, tmp_path):
    with _between(server) as (address, heard):
        fetched("gates", address, tmp_path / "copies", ".table")
    sent = b"".join(heard)
    table = (folder / "001.table").read_bytes()
    assert len(sent) > len(table)
    assert table[:16] not in sent
    assert b"001.table" not in sent
    assert address.token.encode() not in sent


def test_an_impostor_is_not_told_the_token_and_nothing_of_his_is_taken(server, folder, tmp_path):
    asked = []

    def newest():
        asked.append(1)
        return folder / "001.table"

    impostor = FileServer(newest, "127.0.0.1", "127.0.0.1")
    try:
        # He even knows the token.
        address = replace(server.address, port=impostor.address.port, token=impostor.address.token)
        with pytest.raises(UnavailableError, match=r"'gates'.*certificate verify failed"):
            fetched("gates", address, tmp_path / "copies", ".table")
    finally:
        impostor.close()
    assert asked == []
    assert not list((tmp_path / "copies").glob("*.table"))


@pytest.mark.parametrize("at", [0, 300, -1])
def test_a_table_that_was_altered_on_the_way_is_not_taken(server, tmp_path, monkeypatch, at):
    # A record whose length was altered has bytes to come that never come.
    monkeypatch.setattr(copies_module, "TIMEOUT_S", 3.0)
    passed = []

    def altered(data):
        passed.append(data)
        if sum(map(len, passed)) < 1000:
            return data
        changed = bytearray(data)
        changed[min(at, len(data) - 1)] ^= 1
        return bytes(changed)

    with _between(server, altered) as (address, _), pytest.raises(UnavailableError, match="'gates'"):
        fetched("gates", address, tmp_path / "copies", ".table")
    assert not list((tmp_path / "copies").glob("*.table"))


def test_a_server_without_cryptography_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "millpond\[spark\]"'):
        FileServer(lambda: newest_path("gates", folder), "127.0.0.1", "127.0.0.1")


def test_a_driver_that_does_not_answer_is_named_with_what_to_do(published, server):
    server.close()
    with pytest.raises(UnavailableError, match=rf"127.0.0.1:{server.address.port}.*TMPDIR"):
        published.newest()


def test_a_copy_that_breaks_off_is_not_taken_for_the_table(server, tmp_path):
    left = [2000]

    def cut(data):
        left[0] -= len(data)
        if left[0] < 0:
            raise ConnectionResetError
        return data

    with _between(server, cut) as (address, _), pytest.raises(UnavailableError, match="'gates'"):
        fetched("gates", address, tmp_path / "copies", ".table")
    assert not list((tmp_path / "copies").glob("*.table"))

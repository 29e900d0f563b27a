"""Another user of the machine neither chooses where Millpond writes, nor is taken for a host or a worker."""

import os
import shutil
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import OwnedFolder, private_folder, user_folder
from millpond.spark.environment.peer import check_peer
from millpond.spark.host import client
from millpond.spark.host.client import HostAddress
from millpond.spark.host.wire import PeerGoneError
from millpond.spark.runtime import server

OTHER = 65_534

two_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as a second user")
needs_peer = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell who the peer is")


@contextmanager
def another_user():
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared():
    """A folder in which everybody can write, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def victim(shared):
    """A private folder of this user, with something in it that looks abandoned."""
    folder = shared / "victim"
    folder.mkdir(mode=0o700)
    (folder / "state-1").mkdir()
    (folder / "state-1.lock").touch()
    return folder


def test_a_link_in_place_of_the_folder_is_refused_though_it_leads_to_a_folder_of_ours(shared, victim):
    (shared / f"millpond-{os.getuid()}").symlink_to(victim)
    with pytest.raises(UnavailableError, match="link"):
        user_folder(shared)
    assert sorted(path.name for path in victim.iterdir()) == ["state-1", "state-1.lock"]


@two_users
def test_nothing_is_written_or_removed_where_a_link_of_another_user_leads(shared, victim):
    with another_user():
        (shared / "millpond-0").symlink_to(victim)
    with pytest.raises(UnavailableError, match=f"link of user {OTHER}"):
        OwnedFolder(user_folder(shared), "state")
    assert sorted(path.name for path in victim.iterdir()) == ["state-1", "state-1.lock"]


@two_users
def test_a_link_of_another_user_above_the_folder_is_refused(shared, victim):
    with another_user():
        (shared / "scratch").symlink_to(victim)
    with pytest.raises(UnavailableError, match=f"scratch belongs to user {OTHER}"):
        user_folder(shared / "scratch")
    assert not (victim / "millpond-0").exists()


@two_users
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_folder_that_another_user_made_first_is_refused(shared, mode):
    with another_user():
        (shared / "millpond-0").mkdir()
        (shared / "millpond-0").chmod(mode)
        (shared / "scratch").mkdir()
        (shared / "scratch").chmod(mode)
    with pytest.raises(UnavailableError, match=f"folder of user {OTHER}"):
        user_folder(shared)
    with pytest.raises(UnavailableError, match=f"scratch belongs to user {OTHER}"):
        user_folder(shared / "scratch")


@two_users
def test_in_a_folder_without_the_sticky_bit_another_user_can_replace_ours_so_it_is_refused(shared):
    made = user_folder(shared)
    shared.chmod(0o777)
    with another_user():
        made.rename(shared / "gone")
        (shared / "millpond-0").mkdir()
    with pytest.raises(UnavailableError, match=r"mode 777: other users .* sticky bit"):
        user_folder(shared)
    shared.chmod(0o770)
    os.chown(shared, 0, OTHER)
    with pytest.raises(UnavailableError, match="mode 770"):
        user_folder(shared)


def test_a_link_that_only_its_owner_can_change_is_followed_and_what_it_leads_to_is_checked(shared):
    real, link = shared / "real", shared / "link"
    real.mkdir(mode=0o700)
    link.symlink_to("real")
    assert private_folder(link / "mine") == link / "mine"
    real.chmod(0o777)
    with pytest.raises(UnavailableError, match="real has mode 777"):
        private_folder(link / "mine")


def test_links_in_a_ring_are_refused(shared):
    (shared / "one").symlink_to("two")
    (shared / "two").symlink_to("one")
    with pytest.raises(UnavailableError, match="links"):
        private_folder(shared / "one" / "mine")


def test_a_file_in_place_of_the_folder_is_refused_by_name(shared):
    (shared / "mine").write_text("")
    with pytest.raises(UnavailableError, match="mine is a file"):
        private_folder(shared / "mine")


@needs_peer
def test_a_peer_of_the_same_user_is_let_in():
    left, right = socket.socketpair()
    with left, right:
        assert check_peer(left, "a worker") == os.getpid()


def _listening(path):
    """A listener of the current user at a path, who keeps what the first visitor says."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    heard = []

    def serve():
        visitor, _ = listener.accept()
        with visitor:
            heard.append(visitor.recv(100))

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread, heard


@two_users
@needs_peer
def test_a_worker_tells_and_believes_nothing_where_another_user_listens(shared, monkeypatch):
    read = []
    monkeypatch.setattr(client.Connection, "receive", read.append)
    with another_user():
        listener, thread, heard = _listening(shared / "0.sock")
    with listener, pytest.raises(UnavailableError, match=f"user {OTHER} is where a state host of user 0"):
        HostAddress(shared / "0.sock", os.getpid()).connect()
    thread.join(10)
    assert (heard, read) == ([b""], [])


@two_users
@needs_peer
def test_a_host_reads_nothing_from_a_worker_of_another_user(shared, monkeypatch, capfd):
    read = []
    monkeypatch.setattr(server, "converse", lambda *said: read.append(said))
    host = server.HostServer(shared / "0.sock", owners=None)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as visitor:
        listener.bind(str(shared / "0.sock"))
        (shared / "0.sock").chmod(0o777)
        listener.listen(1)
        with another_user():
            visitor.connect(str(shared / "0.sock"))
        accepted, _ = listener.accept()
        with client.Connection(visitor) as worker:
            worker.send_log()
            host._serve(accepted)
            with pytest.raises(PeerGoneError):
                worker.receive()
    assert read == []
    assert f"user {OTHER} is where a worker of user 0" in capfd.readouterr().err

"""Whose hosts these are, and when their owner has ended."""

import os
import subprocess
import sys

import pytest

from millpond.errors import UnavailableError
from millpond.spark.host import process as process_module
from millpond.spark.host.process import (
    Owners,
    ProcessWatch,
    executor_pid,
    hosts_folder_name,
    remove_folders_of_ended_executors,
)


def _tree(monkeypatch, processes, me):
    monkeypatch.setattr(process_module.os, "getppid", lambda: me)
    monkeypatch.setattr(process_module, "_parent_and_name", processes.__getitem__)


def test_the_executor_is_the_nearest_java_above_the_daemon(monkeypatch):
    _tree(monkeypatch, {30: (20, "python3"), 20: (10, "java"), 10: (1, "java")}, me=30)
    assert executor_pid() == 20


def test_without_java_above_the_error_names_the_way_out(monkeypatch):
    _tree(monkeypatch, {30: (20, "python3"), 20: (1, "bash")}, me=30)
    with pytest.raises(UnavailableError, match='host="inline"'):
        executor_pid()


def test_a_process_name_with_spaces_and_brackets_is_read_right(tmp_path):
    program = tmp_path / "a) b (c"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as child:
        parent, name = process_module._parent_and_name(child.pid)
        child.communicate(b"\n")
    assert name.startswith("a) b (c")
    assert parent == process_module.os.getpid()


def test_a_watch_sees_the_end_of_its_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch = ProcessWatch(child.pid)
        assert not watch.ended()
        child.communicate(b"\n")
        assert child.wait(20) == 0
        assert watch.ended()


def test_where_there_are_no_process_descriptors_signals_tell(monkeypatch):
    monkeypatch.delattr(process_module.os, "pidfd_open", raising=False)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch = ProcessWatch(child.pid)
        assert not watch.ended()
        child.communicate(b"\n")
        child.wait(20)
        assert watch.ended()


def test_a_process_that_has_ended_before_is_seen_as_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(20)
    assert ProcessWatch(child.pid).ended()


class Lives:
    """Processes that end when told to, and the time."""

    def __init__(self):
        self.dead = set()
        self.seconds = 0.0

    def watch(self, pid):
        class Watch:
            ended = staticmethod(lambda: pid in self.dead)

        return Watch()

    def now(self):
        return self.seconds


@pytest.fixture
def lives():
    return Lives()


def test_a_host_outlives_a_daemon_only_until_the_next_one_would_have_come(lives):
    owners = Owners(1, lives.now, lives.watch)
    owners.add(10)
    lives.seconds = 100
    assert not owners.ended()
    lives.dead.add(10)
    lives.seconds = 104
    assert not owners.ended(), "Spark may be starting another daemon"
    owners.add(11)
    lives.seconds = 200
    assert not owners.ended()
    lives.dead.add(11)
    assert not owners.ended()
    lives.seconds = 206
    assert owners.ended()


def test_a_host_waits_for_its_first_worker_though_the_machine_is_slow(lives):
    owners = Owners(1, lives.now, lives.watch)
    lives.seconds = 59
    assert not owners.ended()
    owners.add(10)
    lives.seconds = 100
    assert not owners.ended()
    abandoned = Owners(1, lives.now, lives.watch)
    lives.seconds = 161
    assert abandoned.ended()


def test_a_host_ends_with_its_executor_at_once(lives):
    owners = Owners(1, lives.now, lives.watch)
    owners.add(10)
    lives.dead.add(1)
    assert owners.ended()


def test_a_daemon_that_got_the_number_of_a_dead_one_is_another(lives):
    owners = Owners(1, lives.now, lives.watch)
    owners.add(10)
    lives.dead.add(10)
    owners.add(10)
    lives.dead.clear()
    lives.seconds = 100
    assert not owners.ended()


def test_the_hosts_of_two_applications_and_two_executors_have_folders_of_their_own(monkeypatch):
    names = {hosts_folder_name(pid, application) for pid in (os.getpid(), os.getppid()) for application in ("a", "b")}
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "of a session of Connect")
    names.add(hosts_folder_name(os.getpid(), "a"))
    assert len(names) == 5


def test_what_killed_hosts_of_killed_executors_left_is_removed_and_nothing_else(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        left = tmp_path / hosts_folder_name(child.pid, "app")
        child.communicate(b"\n")
    mine = tmp_path / hosts_folder_name(os.getpid(), "app")
    another_container = tmp_path / (left.name.rsplit("-", 2)[0] + "-1-00000000")
    for folder in (left, mine, another_container):
        folder.mkdir()
        (folder / "0.sock").touch()
    remove_folders_of_ended_executors(tmp_path)
    assert not left.exists()
    assert mine.exists()
    assert another_container.exists(), "its processes cannot be seen from here"

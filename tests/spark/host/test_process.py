"""Whose hosts these are, and when their owner has ended."""

import subprocess
import sys

import pytest

from millpond.errors import UnavailableError
from millpond.spark.host import process as process_module
from millpond.spark.host.process import ProcessWatch, executor_pid


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

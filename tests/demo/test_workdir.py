"""A workdir belongs to one run and one process, and what has a name in it is whole."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.demo.workdir import MANIFEST, Asked, open_workdir, publish, replace_json
from millpond.errors import CorruptionError, OptionError, UnavailableError

ALL = Asked()


def test_a_finished_stage_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    with open_workdir(tmp_path / "run", ALL) as workdir:
        assert not workdir.resumed
        assert not workdir.done("replay")
        workdir.finish("replay", {"files": 3})
        workdir.spend(1.5)
    with open_workdir(tmp_path / "run", ALL) as again:
        assert again.resumed
        assert again.facts("replay") == {"files": 3}
        assert again.manifest.spent_seconds == 1.5


def test_a_run_of_another_question_is_refused_with_both_named(tmp_path: Path) -> None:
    with open_workdir(tmp_path, Asked(events=4000)):
        pass
    with (
        pytest.raises(OptionError, match=r"holds the run of --events 4000, asked is the whole year"),
        open_workdir(tmp_path, ALL),
    ):
        pass


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"found 'thesis\.txt'"), open_workdir(tmp_path, ALL):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="found a file"), open_workdir(tmp_path / "file", ALL):
        pass


@pytest.mark.parametrize("text", [b"", b'{"format": 1', b'{"format": "x", "asked": {}}', b"\x00\xff"])
def test_a_manifest_that_does_not_read_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(text)
    with pytest.raises(CorruptionError, match=MANIFEST), open_workdir(tmp_path, ALL):
        pass


def test_a_manifest_of_another_format_says_which(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": 99, "asked": {}}')
    with pytest.raises(OptionError, match="format 99, this version reads 2"), open_workdir(tmp_path, ALL):
        pass


def test_a_second_process_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    with open_workdir(tmp_path, ALL):
        code = (
            "import sys, pathlib; from millpond.demo.workdir import *\n"
            "with open_workdir(pathlib.Path(sys.argv[1]), Asked()): pass"
        )
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=env, check=False
        )
    assert f"process {os.getpid()} is at work there" in second.stderr
    with open_workdir(tmp_path, ALL):
        pass


def test_publishing_leaves_what_is_there_and_nothing_hidden(tmp_path: Path) -> None:
    publish(tmp_path / "a", lambda hidden: hidden.write_text("first"))
    publish(tmp_path / "a", lambda hidden: hidden.write_text("second"))
    assert (tmp_path / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "no permission"), (errno.EIO, "Input/output error")],
)
def test_a_refusal_of_the_disk_is_said_in_words_and_leaves_nothing(tmp_path: Path, code: int, words: str) -> None:
    def refuse(hidden: Path) -> None:
        hidden.write_text("half")
        raise OSError(code, os.strerror(code), str(hidden))

    with pytest.raises(UnavailableError, match=words):
        publish(tmp_path / "a", refuse)
    assert list(tmp_path.iterdir()) == []


def test_replacing_never_shows_a_part(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    replace_json(path, {"a": 1})
    replace_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'
    assert [found.name for found in tmp_path.iterdir()] == ["summary.json"]


def test_a_run_killed_over_its_first_manifest_can_be_started_again(tmp_path):
    (tmp_path / f".{MANIFEST}.4711").write_text("{")
    with open_workdir(tmp_path, Asked(None, None)) as workdir:
        assert not workdir.resumed


def test_an_error_of_the_run_itself_is_not_taken_for_one_of_the_workdir(tmp_path):
    with pytest.raises(ConnectionRefusedError), open_workdir(tmp_path, Asked(None, None)):
        raise ConnectionRefusedError("a store somewhere else")

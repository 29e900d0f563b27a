"""Temporary folders: private, removed by their owner, and by the next one when the owner was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from millpond import UnavailableError
from millpond.spark.environment.folders import OwnedFolder, private_folder, remove_abandoned, user_folder

OWNER = """
import sys
from pathlib import Path
from millpond.spark.environment.folders import OwnedFolder
folder = OwnedFolder(Path(sys.argv[1]), "table")
(folder.path / "1.arrow").write_bytes(b"rows")
print(folder.path, flush=True)
sys.stdin.read()
"""


def owner(parent: Path) -> tuple[subprocess.Popen, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_by_its_owner_and_closing_twice_is_closing_once(tmp_path: Path) -> None:
    folder = OwnedFolder(tmp_path, "table")
    (folder.path / "1.arrow").write_bytes(b"rows")
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_left_alone_while_its_owner_lives_and_removed_once_it_was_killed(tmp_path: Path) -> None:
    process, path = owner(tmp_path)
    assert remove_abandoned(tmp_path, "table") == []
    assert (path / "1.arrow").exists()
    process.kill()
    process.communicate()
    assert path.exists()
    assert remove_abandoned(tmp_path, "other") == []
    mine = OwnedFolder(tmp_path, "table")
    assert not path.exists()
    assert mine.path.exists()
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_an_owner_that_ends_by_itself_leaves_nothing(tmp_path: Path) -> None:
    process, path = owner(tmp_path)
    process.communicate("")
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "mine")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o755)
    with pytest.raises(UnavailableError, match="mode 755"):
        private_folder(made)


def test_a_file_in_place_of_the_parent_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("")
    for parent in (tmp_path / "disk", tmp_path / "disk" / "below"):
        with pytest.raises(UnavailableError, match=r"disk.* is no folder"):
            user_folder(parent)

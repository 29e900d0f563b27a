"""A disk that is full: an error in bounded time, what was committed stays readable, and work goes on with room.

The disk is a file system of its own in memory. A limit on the size of files is no substitute: then flushes fail at
other places than on a full disk, and RocksDB does not wait for room.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("full_disk.py")
BALLAST_BYTES = 3_500_000
TOGETHER = 10
ONE_OF_EACH = [1, 2, 3, 5]
"""Seeds whose runs go on twice, close the state on the full disk, and leave it open."""


@pytest.fixture
def disks(tmp_path):
    """Makes file systems of about 5 MB, most of each taken by a file `ballast`."""
    mounted = []

    def disk(seed):
        folder = tmp_path / f"disk-{seed}"
        folder.mkdir()
        size = 5_000 + seed % 7 * 300
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        (folder / "ballast").write_bytes(bytes(BALLAST_BYTES))
        return folder

    yield disk
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _run(disks, seeds):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    runs = [
        subprocess.Popen(
            [sys.executable, str(RUN), str(disks(seed)), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for seed in seeds
    ]
    told = [run.communicate(timeout=120)[0] for run in runs]
    for seed, run, text in zip(seeds, runs, told, strict=True):
        assert run.returncode == 0, f"seed {seed}: {text}"
        assert text.strip() in {"whole", "closed", "left open"}, f"seed {seed}: {text}"


def test_a_full_disk_fails_in_time_keeps_what_was_committed_and_is_used_again_with_room(disks):
    _run(disks, ONE_OF_EACH)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 200, TOGETHER))
def test_a_full_disk_never_hangs_in_200_runs(disks, first):
    _run(disks, range(first, first + TOGETHER))

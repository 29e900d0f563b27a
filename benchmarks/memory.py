"""What a table that is shared by processes takes on this host: memory, files, and files removed but still mapped.

For benchmarks that promise memory. The invariant: pages that processes share are counted once, as the file
they belong to; of each process only what no other has.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Memory:
    """What a full table takes on this host beyond what driver and Python workers held when this was made."""

    def __init__(self) -> None:
        self._before = self._private()
        # A worker that is new since then held at least what the least of them did.
        self._least = min((held for pid, held in self._before.items() if pid != os.getpid()), default=0)

    def bytes(self, folder: Path) -> int:
        """Memory that they hold more, the files in `folder`, and files removed from there that are still mapped."""
        now = self._private()
        grown = sum(max(0, held - self._before.get(pid, self._least)) for pid, held in now.items())
        files = sum(path.stat().st_size for path in folder.iterdir() if path.exists())
        removed: dict[str, int] = {}
        for pid in now:
            removed |= _removed_files(pid, folder)
        return grown + files + sum(removed.values())

    def _private(self) -> dict[int, int]:
        """The anonymous memory of this process and of the Python workers under it, by their numbers."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        held = {os.getpid(): _anonymous(os.getpid())}
        for pid, parent in parents.items():
            ancestor = parent
            while ancestor > 1 and ancestor != os.getpid():
                ancestor = parents.get(ancestor, 0)
            # Workers are forked by a daemon that has the same command line, and does no work itself.
            if ancestor == os.getpid() and _is_daemons(pid) and _is_daemons(parent):
                held[pid] = _anonymous(pid)
        return held


def _is_daemons(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _removed_files(pid: int, folder: Path) -> dict[str, int]:
    """The files of a folder that a process maps though they are removed: inode and bytes."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in maps.splitlines():
        if line.endswith("(deleted)") and str(folder) in line:
            span, _, _, _, inode, _ = line.split(maxsplit=5)
            start, end = (int(number, 16) for number in span.split("-"))
            found[inode] = max(found.get(inode, 0), end - start)
    return found


def _anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return int(found[0]) * 1024 if found else 0


@contextmanager
def sampled(sample: Callable[[], float], every_s: float) -> Iterator[list[float]]:
    """What `sample` returns while the block runs, every so often, in a thread."""
    samples: list[float] = [sample()]
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            samples.append(sample())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()

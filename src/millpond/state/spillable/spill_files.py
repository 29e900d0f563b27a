"""The spill files of a backend: one on each path, used in rotation, passed over for a while where one failed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.errors import UnavailableError
from millpond.state.spillable.spill_file import SpillFile


class SpillFiles:
    """Opens a file on a path when that is first needed.

    Args:
        folders: the paths.
        open_file: makes the file in a folder.
        clock_ms: monotonic milliseconds.
        retry_ms: for how long a path that failed is passed over.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        open_file: Callable[[Path], SpillFile],
        clock_ms: Callable[[], int],
        retry_ms: int,
    ) -> None:
        self._folders = list(folders)
        self._open_file = open_file
        self._clock_ms = clock_ms
        self._retry_ms = retry_ms
        self._files: dict[Path, SpillFile] = {}
        self._failed_ms: dict[Path, int] = {}
        self._turn = 0

    def able(self) -> bool:
        """Whether any path has not failed lately."""
        return any(map(self._may_be_used, self._folders))

    def next(self) -> SpillFile:
        """The file for the next key group.

        Raises:
            UnavailableError: no path can be used now; it says why.
        """
        problems = []
        for _ in self._folders:
            folder = self._folders[self._turn % len(self._folders)]
            self._turn += 1
            if not self._may_be_used(folder):
                problems.append(f"{folder} failed lately")
                continue
            try:
                if folder not in self._files:
                    self._files[folder] = self._open_file(folder)
                return self._files[folder]
            except UnavailableError as error:
                self._failed_ms[folder] = self._clock_ms()
                problems.append(str(error))
        raise UnavailableError(f"nothing can be spilled: {' '.join(problems)}")

    def failed(self, file: SpillFile) -> None:
        """Pass a path over for a while."""
        self._failed_ms[file.folder] = self._clock_ms()

    def may_write(self, file: SpillFile) -> bool:
        """Whether a file's path has not failed lately."""
        return self._may_be_used(file.folder)

    def forget_pages(self) -> None:
        """Let go of what is mapped into memory. From any thread."""
        for file in list(self._files.values()):
            file.forget_pages()

    def close(self) -> None:
        """Give all space back. Idempotent."""
        for file in self._files.values():
            file.close()

    def _may_be_used(self, folder: Path) -> bool:
        failed_ms = self._failed_ms.get(folder)
        return failed_ms is None or self._clock_ms() - failed_ms >= self._retry_ms

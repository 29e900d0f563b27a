"""The spill files of a backend: one per path, used in rotation. A path that failed is skipped for a while."""

from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.errors import UnavailableError
from millpond.state.spillable.spill_file import SpillFile


class SpillFiles:
    """Opens the file of a path when it is first needed.

    Args:
        retry_ms: how long a path that failed is skipped.
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
        """Return whether there is a path that has not failed lately."""
        return any(map(self._may_be_used, self._folders))

    def next(self) -> SpillFile:
        """Return the file for the next key group.

        Raises:
            UnavailableError: no path can be used now. The message says why.
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
        """Skip the file's path for a while."""
        self._failed_ms[file.folder] = self._clock_ms()

    def may_write(self, file: SpillFile) -> bool:
        """Return whether a file's path has not failed lately."""
        return self._may_be_used(file.folder)

    def forget_pages(self) -> None:
        """Drop the mapped pages from memory. Callable from any thread."""
        for file in list(self._files.values()):
            file.forget_pages()

    def check_again_if_due(self) -> None:
        """Have pages compared with their checksums again before they are used, if the last time was long ago."""
        for file in list(self._files.values()):
            file.check_again_if_due()

    def close(self) -> None:
        """Free all space. Idempotent."""
        for file in self._files.values():
            file.close()

    def _may_be_used(self, folder: Path) -> bool:
        failed_ms = self._failed_ms.get(folder)
        return failed_ms is None or self._clock_ms() - failed_ms >= self._retry_ms

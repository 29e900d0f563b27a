"""A folder on any of pyarrow's filesystems: local, HDFS, S3, GCS, Azure.

Only what every one of them can do is used: write a new file, read, list and delete. On a local disk
what was written is also synced, the bytes with the file and the names with `sync`.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

from millpond.errors import OptionError

_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})


class Folder:
    """A folder. Names are relative to it, with slashes. What goes wrong is an OSError, as pyarrow raises it.

    Args:
        location: a path, a URI (`file:///…`, `hdfs://…`, `s3://…`, `gs://…`, `abfs://…`), or a path in `filesystem`.
        filesystem: to be used instead of the one that the location's scheme names.
    """

    def __init__(self, location: str, filesystem: pa.fs.FileSystem | None = None) -> None:
        self.location = location
        found, root = _opened(location) if filesystem is None else (filesystem, location)
        while isinstance(found, pa.fs.SubTreeFileSystem):
            found, root = found.base_fs, f"{found.base_path.rstrip('/')}/{root.lstrip('/')}"
        self._filesystem: pa.fs.FileSystem = found
        self._root = root.rstrip("/")
        self._local = isinstance(self._filesystem, pa.fs.LocalFileSystem)

    def path(self, name: str) -> str:
        """The path of a file, within the filesystem."""
        return f"{self._root}/{name}"

    def make(self, names: Iterable[str]) -> None:
        """Make folders in this one, and sync what they are in. Object stores have none, and need none."""
        if self._filesystem.type_name in _OBJECT_STORES:
            return
        for name in names:
            self._filesystem.create_dir(self.path(name), recursive=True)
        self.sync(".")
        self.sync("..")

    def write(self, name: str, data: bytes) -> None:
        """Write a new file. It endures a crash of the machine once `sync` was called for its folder too."""
        with self._filesystem.open_output_stream(self.path(name), compression=None) as stream:
            stream.write(data)
        if self._local:
            _sync(self.path(name))

    def sync(self, name: str) -> None:
        """Have the disk hold the names in a folder."""
        if self._local:
            _sync(self.path(name))

    def read(self, name: str) -> bytes:
        """A whole file."""
        with self._filesystem.open_input_stream(self.path(name), compression=None) as stream:
            return bytes(stream.read())

    def sizes(self, name: str, *, recursive: bool = False) -> dict[str, int]:
        """The files in a folder, by name relative to that folder, with their bytes; none where there is no folder."""
        base = self.path(name).removesuffix("/.")
        selector = pa.fs.FileSelector(base, allow_not_found=True, recursive=recursive)
        infos = self._filesystem.get_file_info(selector)
        return {info.path.removeprefix(base).lstrip("/"): info.size for info in infos if info.is_file}

    def folders(self) -> list[str]:
        """The folders directly in this one."""
        selector = pa.fs.FileSelector(self._root, allow_not_found=True)
        return sorted(info.base_name for info in self._filesystem.get_file_info(selector) if not info.is_file)

    def delete(self, name: str) -> None:
        """Delete a file, if it is still there."""
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self.path(name))


def _opened(location: str) -> tuple[pa.fs.FileSystem, str]:
    try:
        found: tuple[pa.fs.FileSystem, str] = pa.fs.FileSystem.from_uri(
            location if "://" in location else str(Path(location).absolute())
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise OptionError(
            f"the location {location!r} cannot be opened: {error}. Expected a path or a URI such as "
            "file:///data/state, hdfs://…, s3://bucket/state, gs://… or abfs://…."
        ) from error
    return found


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

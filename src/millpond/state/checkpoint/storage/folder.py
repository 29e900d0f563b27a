"""A folder on any of pyarrow's filesystems: local, HDFS, S3, GCS, Azure.

Only operations that all of them have are used: write a new file, read, list and delete. On a local disk, written data
is also synced: the bytes with the file, and the names with `sync`.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

from millpond.errors import MissingDependencyError, OptionError
from millpond.masking import masked

_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
_HADOOPS_S3 = "s3a://"
"""The scheme of S3 in the locations that Spark is given."""
_HADOOPS_LIBRARIES = ("libjvm", "libhdfs")


class Folder:
    """A folder. Names are relative to it, with slashes. Errors are OSErrors, as pyarrow raises them.

    Attributes:
        location: as errors name it, see `masked`.

    Args:
        location: a path, a URI (`file:///…`, `hdfs://…`, `s3://…`, `gs://…`, `abfs://…`) with its file system's
            options (`s3://bucket/state?region=eu-west-1`), or a path in `filesystem`.
        filesystem: used instead of the one that the location's scheme names.

    Raises:
        OptionError: the location is no text, is invalid, or has an option that its file system does not know.
        MissingDependencyError: a driver of its file system is not installed.
    """

    def __init__(self, location: str, filesystem: pa.fs.FileSystem | None = None) -> None:
        if not isinstance(location, str):
            raise OptionError(
                f"the location {location!r} is no text; expected a path or URI as text, such as str(path), or the "
                "`location` of a savepoint."
            )
        self.location = masked(location)
        found, root = _opened(location) if filesystem is None else (filesystem, location)
        while isinstance(found, pa.fs.SubTreeFileSystem):
            found, root = found.base_fs, f"{found.base_path.rstrip('/')}/{root.lstrip('/')}"
        self._filesystem: pa.fs.FileSystem = found
        self._root = root.rstrip("/")
        self._local = isinstance(self._filesystem, pa.fs.LocalFileSystem)

    def within(self, name: str) -> "Folder":
        """Return a folder in this one. A URI ends with its options, so a name cannot be appended to a location."""
        return Folder(self.path(name), self._filesystem)

    def path(self, name: str) -> str:
        """Return the path of a file within the filesystem."""
        return f"{self._root}/{name}"

    def make(self, names: Iterable[str]) -> None:
        """Create folders in this one, and sync their parents. Object stores have none, and need none."""
        if self._filesystem.type_name in _OBJECT_STORES:
            return
        for name in names:
            self._filesystem.create_dir(self.path(name), recursive=True)
        self.sync(".")
        self.sync("..")

    def write(self, name: str, data: bytes) -> None:
        """Write a new file. It survives a crash of the machine once `sync` was called for its folder too."""
        with self._filesystem.open_output_stream(self.path(name), compression=None) as stream:
            stream.write(data)
        if self._local:
            _sync(self.path(name))

    def sync(self, name: str) -> None:
        """Make the names in a folder durable."""
        if self._local:
            _sync(self.path(name))

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with self._filesystem.open_input_stream(self.path(name), compression=None) as stream:
            return bytes(stream.read())

    def sizes(self, name: str, *, recursive: bool = False) -> dict[str, int]:
        """Return the files in a folder, by name relative to it, with their bytes; none if there is no such folder."""
        base = self.path(name).removesuffix("/.")
        selector = pa.fs.FileSelector(base, allow_not_found=True, recursive=recursive)
        infos = self._filesystem.get_file_info(selector)
        return {info.path.removeprefix(base).lstrip("/"): info.size for info in infos if info.is_file}

    def folders(self) -> list[str]:
        """Return the names of the folders directly in this one."""
        if self._filesystem.type_name == "gcs":
            # There pyarrow lists only objects, and a folder has no object of its own.
            return sorted({name.partition("/")[0] for name in self.sizes(".", recursive=True) if "/" in name})
        selector = pa.fs.FileSelector(self._root, allow_not_found=True)
        return sorted(info.base_name for info in self._filesystem.get_file_info(selector) if not info.is_file)

    def delete(self, name: str) -> None:
        """Delete a file, if it is still there."""
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self.path(name))


def _opened(location: str) -> tuple[pa.fs.FileSystem, str]:
    uri = location if "://" in location else str(Path(location).absolute())
    if uri.startswith(_HADOOPS_S3):
        uri = f"s3://{uri.removeprefix(_HADOOPS_S3)}"
    try:
        found: tuple[pa.fs.FileSystem, str] = pa.fs.FileSystem.from_uri(uri)
    except pa.ArrowNotImplementedError as error:
        raise MissingDependencyError(
            f"the location {masked(location)!r} cannot be opened by this pyarrow ({pa.__version__}), which was built "
            f'without its file system: {error}. Those from PyPI have it: pip install --force-reinstall "pyarrow>=22".'
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        # Not raised `from` it, since its text quotes the location and any password in it.
        reason = masked(str(error).partition("\n")[0])
        if isinstance(error, OSError) and any(library in reason for library in _HADOOPS_LIBRARIES):
            raise MissingDependencyError(
                f"the location {masked(location)!r} needs Hadoop's libhdfs and a Java runtime, which pyarrow loads: "
                f"{reason}. Install Java 17 and Hadoop, and set JAVA_HOME, HADOOP_HOME and CLASSPATH, the last to what "
                "`$HADOOP_HOME/bin/hadoop classpath --glob` prints."
            ) from None
        raise OptionError(
            f"the location {masked(location)!r} cannot be opened: {reason}. Expected a path or a URI such as "
            "file:///data/state, hdfs://…, s3://bucket/state, gs://… or abfs://…."
        ) from None
    return found


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

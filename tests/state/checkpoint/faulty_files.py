"""A filesystem in memory that fails where a test says: in the middle of a file, at the n-th operation, or too late.

`Disk` is what endures; each `FaultyFiles` is one process's way to it, with faults of its own.
"""

import errno
import io
import threading

import pyarrow as pa
import pyarrow.fs


class Disk:
    """Files by path. `late` holds what was written but only appears with `land`."""

    def __init__(self):
        self.files = {}
        self.late = {}

    def land(self):
        self.files |= self.late
        self.late = {}


class FaultyFiles(pa.fs.FileSystemHandler):
    """One process's view of a disk.

    space: how many bytes may be written before there is no space; None for ever.
    operations: how many calls may be made before the process dies; None for ever.
    atomic: whether a file appears whole when it is closed, as on an object store, or byte by byte.
    late: whether closing a file fails and the file appears later all the same.
    at: by the number of the call from now, something that others do just before it.
    """

    def __init__(self, disk, *, atomic=False):
        self.disk = disk
        self.atomic = atomic
        self.space = None
        self.operations = None
        self.late = False
        self.at = {}
        self._lock = threading.RLock()

    def filesystem(self):
        return pa.fs.PyFileSystem(self)

    def heal(self):
        self.space, self.operations, self.late, self.at = None, None, False, {}

    def _step(self):
        with self._lock:
            self._count()

    def _count(self):
        if self.operations is not None:
            if self.operations <= 0:
                raise OSError(errno.EIO, "the process is dead")
            self.operations -= 1
        steps = sorted(self.at.items())
        self.at = {left - 1: act for left, act in steps if left > 0}
        for left, act in steps:
            if left == 0:
                act()

    def taken(self, wanted):
        """How many of so many bytes there is space for; they are taken."""
        with self._lock:
            if self.space is None:
                return wanted
            fits = min(wanted, self.space)
            self.space -= fits
            return fits

    def get_type_name(self):
        return "faulty"

    def normalize_path(self, path):
        return path

    def create_dir(self, path, recursive):
        self._step()

    def get_file_info_selector(self, selector):
        self._step()
        inside = selector.base_dir + "/"
        return [self._info(path) for path in sorted(self.disk.files) if path.startswith(inside)]

    def get_file_info(self, paths):
        self._step()
        return [self._info(path) for path in paths]

    def _info(self, path):
        if path not in self.disk.files:
            return pa.fs.FileInfo(path, pa.fs.FileType.NotFound)
        return pa.fs.FileInfo(path, pa.fs.FileType.File, size=len(self.disk.files[path]))

    def open_input_stream(self, path):
        self._step()
        if path not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return pa.PythonFile(io.BytesIO(self.disk.files[path]), mode="r")

    open_input_file = open_input_stream

    def open_output_stream(self, path, metadata):
        self._step()
        assert path not in self.disk.files, "no file is ever written twice"
        return pa.PythonFile(_Output(self, path), mode="w")

    def delete_file(self, path):
        self._step()
        if path not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.disk.files[path]

    def _refuse(self, *_):
        raise AssertionError("nothing is moved, copied, appended to or deleted by the folder")

    delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = _refuse


class _Output(io.RawIOBase):
    def __init__(self, files, path):
        super().__init__()
        self._files = files
        self._path = path
        self._data = b""
        if not files.atomic:
            files.disk.files[path] = b""

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        fits = self._files.taken(len(data))
        self._data += data[:fits]
        if not self._files.atomic:
            self._files.disk.files[self._path] = self._data
        if fits < len(data):
            self._path = None
            raise OSError(errno.ENOSPC, "no space left on device")
        return len(data)

    def close(self):
        if not self.closed and self._path is not None and self._files.atomic:
            path, self._path = self._path, None
            if self._files.late:
                self._files.disk.late[path] = self._data
                raise OSError(errno.ETIMEDOUT, "the store did not answer")
            self._files.disk.files[path] = self._data
        super().close()

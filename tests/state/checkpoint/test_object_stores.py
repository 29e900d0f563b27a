"""Checkpoints and savepoints on S3 and GCS: servers of their own for these tests, which keep objects in memory.

They speak to pyarrow's own clients, but are no production stores: moto for S3, gcp-storage-emulator for GCS.
"""

import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

import pyarrow.fs
import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.checkpoint import FileStorage, Savepoint, ShardState, write_savepoint
from millpond.state.checkpoint.reader import StateReader
from tests.state.checkpoint.file_versions import BIRTH, a_commit, stored, whole
from tests.state.checkpoint.test_reader import STATES, Shard, rows

# Each says on which port it is once it takes requests, and ends with its input.
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_GCP = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True)
server.start()
print(server._api._httpd.server_port, flush=True)
sys.stdin.read()
"""


@dataclass
class Store:
    """A server: pyarrow's client for it, and how a URI names a place there."""

    filesystem: pyarrow.fs.FileSystem
    uri: str

    def at(self, place):
        return self.uri.format(place=place)


def s3(port):
    filesystem = pyarrow.fs.S3FileSystem(
        access_key="access",
        secret_key="secret-key",  # noqa: S106 - of a server that lives as long as the test
        scheme="http",
        region="us-east-1",
        endpoint_override=f"127.0.0.1:{port}",
        allow_bucket_creation=True,
    )
    endpoint = quote(f"127.0.0.1:{port}")
    uri = f"s3://access:secret-key@{{place}}?scheme=http&region=us-east-1&endpoint_override={endpoint}"
    return Store(filesystem, uri)


def gcs(port):
    filesystem = pyarrow.fs.GcsFileSystem(
        anonymous=True,
        scheme="http",
        endpoint_override=f"127.0.0.1:{port}",
        project_id="project",
        retry_time_limit=timedelta(seconds=5),
    )
    endpoint = quote(f"127.0.0.1:{port}")
    return Store(filesystem, f"gs://anonymous@{{place}}?scheme=http&endpoint_override={endpoint}&retry_limit_seconds=5")


@pytest.fixture(scope="module", params=[(_MOTO, s3), (_GCP, gcs)], ids=["s3", "gcs"])
def store(request, tmp_path_factory):
    """pyarrow's client, at a server on this machine."""
    program, client = request.param
    log = tmp_path_factory.mktemp("store") / "server.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        try:
            port = server.stdout.readline().strip()
            assert port, f"the server did not start: {log.read_text()}"
            store = client(port)
            store.filesystem.create_dir("bucket")
            yield store
        finally:
            server.terminate()


@pytest.fixture
def filesystem(store):
    return store.filesystem


def test_versions_are_stored_retained_and_read(filesystem):
    storage = FileStorage("bucket/versions", 0, filesystem=filesystem, retain=2)
    commits, manifest = [], BIRTH
    for version in range(1, 7):
        commits.append(a_commit(manifest, f"version {version}", based=[version % 4]))
        storage.put(commits[-1])
        manifest = commits[-1].manifest
    reader = FileStorage("bucket/versions", 0, filesystem=filesystem, read_only=True)
    assert reader.versions() == [5, 6]
    assert stored(reader) == whole(*commits)
    assert stored(reader, 5) == whole(*commits[:5])
    files = filesystem.get_file_info(pyarrow.fs.FileSelector("bucket/versions/shard-00000/segments"))
    assert len(files) == len({ref.id for version in (5, 6) for ref in reader.manifest(version).segments})


def test_a_writer_that_was_passed_by_is_refused(filesystem):
    zombie = FileStorage("bucket/zombie", 0, filesystem=filesystem)
    first = a_commit(BIRTH, "one", attempt="zombie")
    zombie.put(first)
    successor = FileStorage("bucket/zombie", 0, filesystem=filesystem)
    assert stored(successor) == whole(first)
    with pytest.raises(UnavailableError, match="has taken over"):
        zombie.put(a_commit(first.manifest, "zombie", attempt="zombie"))
    second = a_commit(first.manifest, "two", attempt="successor")
    successor.put(second)
    assert stored(FileStorage("bucket/zombie", 0, filesystem=filesystem, read_only=True)) == whole(first, second)


def test_a_bucket_that_is_not_there_is_told(filesystem):
    with pytest.raises(UnavailableError, match="shard 0 in no-such-bucket/state"):
        FileStorage("no-such-bucket/state", 0, filesystem=filesystem).put(a_commit(BIRTH, "one"))


def test_a_savepoint_and_its_reader(filesystem):
    shard = Shard("bucket/reader", 0, 1, filesystem=filesystem)
    shard.at("ann")["count"].update((1.0,))
    shard.checkpoint()
    shard.at("ann")["count"].update((2.0,))
    shard.checkpoint()
    reader = StateReader("bucket/reader", filesystem=filesystem)
    assert rows(reader.diff("count", 1, 2), "change", "old.number", "new.number") == [("changed", 1.0, 2.0)]
    part = ShardState.of_storage(FileStorage("bucket/reader", 0, filesystem=filesystem, read_only=True))
    write_savepoint("bucket/savepoint", [part], filesystem=filesystem)
    assert {state.name for state in Savepoint.open("bucket/savepoint", filesystem=filesystem).states()} == set(STATES)
    assert rows(StateReader("bucket/savepoint", filesystem=filesystem).arrow("count"), "value.number") == [(2.0,)]
    filesystem.delete_file("bucket/savepoint/state-count/shard-00000.parquet")
    with pytest.raises(CorruptionError, match=r"bucket/savepoint/state-count/shard-00000\.parquet is missing"):
        Savepoint.open("bucket/savepoint", filesystem=filesystem)


def test_a_uri_with_the_options_of_its_file_system_is_a_location(store):
    location = store.at("bucket/by-uri")
    commit = a_commit(BIRTH, "one")
    FileStorage(location, 0).put(commit)
    assert stored(FileStorage("bucket/by-uri", 0, filesystem=store.filesystem, read_only=True)) == whole(commit)
    assert stored(FileStorage(location, 0, read_only=True)) == whole(commit)

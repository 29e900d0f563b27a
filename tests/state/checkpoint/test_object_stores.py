"""Checkpoints and savepoints on S3: a server of its own for these tests, which keeps objects in memory.

It is moto's: it speaks S3 to pyarrow's own client, but is no production store.
"""

import subprocess
import sys

import pyarrow.fs
import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.checkpoint import FileStorage, Savepoint, ShardState, write_savepoint
from millpond.state.reader import StateReader
from tests.state.checkpoint.test_files import BIRTH, a_commit, stored, whole
from tests.state.test_reader import STATES, Shard, rows

# It says on which port it is once it takes requests, and ends with its input.
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """pyarrow's S3 client, at a server on this machine."""
    log = tmp_path_factory.mktemp("s3") / "server.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        try:
            port = server.stdout.readline().strip()
            assert port, f"the S3 server did not start: {log.read_text()}"
            filesystem = pyarrow.fs.S3FileSystem(
                access_key="access",
                secret_key="secret-key",  # noqa: S106 - of a server that lives as long as the test
                scheme="http",
                region="us-east-1",
                endpoint_override=f"127.0.0.1:{port}",
                allow_bucket_creation=True,
            )
            filesystem.create_dir("bucket")
            yield filesystem
        finally:
            server.terminate()


def test_versions_are_stored_retained_and_read(s3):
    storage = FileStorage("bucket/versions", 0, filesystem=s3, retain=2)
    commits, head = [], BIRTH
    for version in range(1, 7):
        commits.append(a_commit(head, f"version {version}", based=[version % 4]))
        storage.put(commits[-1])
        head = commits[-1].head
    reader = FileStorage("bucket/versions", 0, filesystem=s3, read_only=True)
    assert reader.versions() == [5, 6]
    assert stored(reader) == whole(*commits)
    assert stored(reader, 5) == whole(*commits[:5])
    files = s3.get_file_info(pyarrow.fs.FileSelector("bucket/versions/shard-00000/segments"))
    assert len(files) == len({ref.id for version in (5, 6) for ref in reader.head(version).segments})


def test_a_writer_that_was_passed_by_is_refused(s3):
    zombie = FileStorage("bucket/zombie", 0, filesystem=s3)
    first = a_commit(BIRTH, "one", attempt="zombie")
    zombie.put(first)
    successor = FileStorage("bucket/zombie", 0, filesystem=s3)
    assert stored(successor) == whole(first)
    with pytest.raises(UnavailableError, match="has taken over"):
        zombie.put(a_commit(first.head, "zombie", attempt="zombie"))
    second = a_commit(first.head, "two", attempt="successor")
    successor.put(second)
    assert stored(FileStorage("bucket/zombie", 0, filesystem=s3, read_only=True)) == whole(first, second)


def test_a_bucket_that_is_not_there_is_told(s3):
    with pytest.raises(UnavailableError, match="shard 0 in no-such-bucket/state"):
        FileStorage("no-such-bucket/state", 0, filesystem=s3).put(a_commit(BIRTH, "one"))


def test_a_savepoint_and_its_reader(s3):
    shard = Shard("bucket/reader", 0, 1, filesystem=s3)
    shard.at("ann")["count"].update((1.0,))
    shard.checkpoint()
    shard.at("ann")["count"].update((2.0,))
    shard.checkpoint()
    reader = StateReader("bucket/reader", filesystem=s3)
    assert rows(reader.diff("count", 1, 2), "change", "old.number", "new.number") == [("changed", 1.0, 2.0)]
    part = ShardState.of_storage(FileStorage("bucket/reader", 0, filesystem=s3, read_only=True))
    write_savepoint("bucket/savepoint", [part], filesystem=s3)
    assert {state.name for state in Savepoint.open("bucket/savepoint", filesystem=s3).states()} == set(STATES)
    assert rows(StateReader("bucket/savepoint", filesystem=s3).arrow("count"), "value.number") == [(2.0,)]
    s3.delete_file("bucket/savepoint/state-count/shard-00000.parquet")
    with pytest.raises(CorruptionError, match=r"bucket/savepoint/state-count/shard-00000\.parquet is missing"):
        Savepoint.open("bucket/savepoint", filesystem=s3)

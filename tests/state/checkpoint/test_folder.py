"""Which file system a location names, with which options, and what is said where it cannot be. No network."""

import os
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from millpond.errors import MillpondError, MissingDependencyError, OptionError
from millpond.state.checkpoint import FileStorage
from millpond.state.checkpoint.storage import folder as folder_module
from millpond.state.checkpoint.storage.folder import Folder

S3 = {"region": "eu-west-1", "endpoint_override": "minio:9000", "scheme": "http"}
GCS = {
    "anonymous": True,
    "scheme": "http",
    "endpoint_override": "gcs:4443",
    "retry_time_limit": timedelta(seconds=5),
}
AZURE = {"account_name": "account", "blob_storage_scheme": "https", "dfs_storage_authority": ".dfs.core.windows.net"}
AZURITE = {
    "account_name": "account",
    "blob_storage_authority": "127.0.0.1:10000",
    "dfs_storage_authority": "127.0.0.1:10000",
    "blob_storage_scheme": "http",
}


def test_a_location_that_is_no_text_is_refused_with_how_to_write_it(tmp_path):
    with pytest.raises(OptionError, match=r"expected a path or URI as text, such as str\(path\)"):
        Folder(tmp_path)


@pytest.mark.parametrize(
    ("location", "kind", "options", "path"),
    [
        ("s3://bucket/state?region=eu-west-1&endpoint_override=minio%3A9000&scheme=http", "s3", S3, "bucket/state"),
        ("s3a://bucket/state?region=eu-west-1&endpoint_override=minio%3A9000&scheme=http", "s3", S3, "bucket/state"),
        (
            "s3://key:secret@bucket/state/?region=eu-west-1",
            "s3",
            {"region": "eu-west-1", "access_key": "key", "secret_key": "secret"},
            "bucket/state",
        ),
        (
            "gs://anonymous@bucket/state?scheme=http&endpoint_override=gcs%3A4443&retry_limit_seconds=5",
            "gcs",
            GCS,
            "bucket/state",
        ),
        ("abfs://container@account.dfs.core.windows.net/state", "abfs", AZURE, "container/state"),
        ("abfss://container@account.dfs.core.windows.net/state", "abfs", AZURE, "container/state"),
        ("abfs://account:a2V5@127.0.0.1:10000/container/state?enable_tls=false", "abfs", AZURITE, "container/state"),
        ("file:///data/state", "local", {}, "/data/state"),
        ("/data/state", "local", {}, "/data/state"),
    ],
)
def test_a_location_names_its_file_system_with_the_options_given(location, kind, options, path):
    folder = Folder(location)
    filesystem = folder._filesystem
    assert filesystem.type_name == kind
    if options:
        _, (chosen,) = filesystem.__reduce__()
        assert {name: chosen[name] for name in options} == options
    assert folder.path("file") == f"{path}/file"
    assert folder.within("shard-00000").path("file") == f"{path}/shard-00000/file"
    assert folder._local is (kind == "local")
    if not folder._local:
        folder.make(["a", "b"])  # asks nobody, for there are no folders


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3://key:secret@bucket/state?region=eu-west-1", "s3://key:***@bucket/state?region=eu-west-1"),
        ("abfs://:secret@account.dfs.core.windows.net/c", "abfs://:***@account.dfs.core.windows.net/c"),
        ("abfs://container@account.dfs.core.windows.net/c", "abfs://container@account.dfs.core.windows.net/c"),
    ],
)
def test_what_errors_call_a_location_has_no_password(location, shown):
    assert Folder(location).location == shown
    assert FileStorage(location, 3, read_only=True).name == f"shard 3 in {shown}"
    with pytest.raises(OptionError) as refused:
        Folder(location.replace("s3:", "ftp:").replace("abfs:", "ftp:"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_option_that_the_file_system_does_not_know_is_refused_by_name(scheme):
    with pytest.raises(OptionError, match=rf"'{scheme}://bucket/state\?regoin=x' cannot be opened: .*'regoin'"):
        Folder(f"{scheme}://bucket/state?regoin=x")


def test_a_scheme_that_nobody_knows_is_refused_with_those_that_are_known():
    with pytest.raises(OptionError, match=r"'ftp://host/state' cannot be opened: .*s3://bucket/state, gs://… or abfs"):
        Folder("ftp://host/state")


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs"])
def test_without_hadoop_its_locations_say_what_to_install(scheme, tmp_path):
    """In a process that finds no Hadoop, wherever the machine has one: pyarrow looks once."""
    program = f"from millpond.state.checkpoint.storage.folder import Folder\nFolder('{scheme}://namenode:8020/state?user=ann')"
    nowhere = {name: str(tmp_path) for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR")}
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"} | nowhere
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    *_, told = done.stderr.splitlines()
    assert told.startswith(f"millpond.errors.MissingDependencyError: the location '{scheme}://namenode:8020/state")
    for named in ("libhdfs", "Java 17", "JAVA_HOME", "HADOOP_HOME", "CLASSPATH"):
        assert named in told


def test_a_pyarrow_that_was_built_without_a_file_system_is_named(monkeypatch):
    def from_uri(uri):
        raise pa.ArrowNotImplementedError(f"Got Azure Blob URI but Arrow compiled without Azure Blob support: {uri}")

    without = SimpleNamespace(ArrowNotImplementedError=pa.ArrowNotImplementedError, __version__=pa.__version__)
    without.fs = SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri))
    monkeypatch.setattr(folder_module, "pa", without)
    with pytest.raises(MissingDependencyError, match=r"built without its file system: .*pip install") as told:
        Folder("abfs://container@account.dfs.core.windows.net/state")
    assert isinstance(told.value, MillpondError)

"""Backends of shards on Spark: their files are private, go with them, and are swept after a kill."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.errors import OptionError, UnavailableError
from millpond.spark import StateConfig
from millpond.spark.runtime.shard_backend import open_shard_backend, remove_backend_folders
from millpond.state.options.operator import StateOptions
from millpond.state.spi import HeapBackend

HOST = """
import sys
from millpond.spark.runtime.shard_backend import open_shard_backend
from millpond.state.options.operator import StateOptions

options = {"state.backend.type": "rocksdb", "state.backend.rocksdb.local-dir": sys.argv[1]}
backend = open_shard_backend(StateOptions.parse(options), range(4))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def options(tmp_path):
    yield StateOptions.parse(
        {"state.backend.type": "rocksdb", "state.backend.rocksdb.local-dir": str(tmp_path / "fast")}
    )
    remove_backend_folders()


def databases(folder: Path) -> list[Path]:
    return sorted(folder.glob("fast/millpond-*/state-*/backend-*/db"))


def test_each_backend_has_a_folder_of_its_own_that_goes_when_it_is_closed(options, tmp_path):
    one, other = (open_shard_backend(options, range(4)) for _ in range(2))
    assert len(databases(tmp_path)) == 2
    one.close()
    assert len(databases(tmp_path)) == 1
    other.close()
    assert databases(tmp_path) == []


def test_at_the_end_of_the_process_nothing_is_left(options, tmp_path):
    open_shard_backend(options, range(4))
    remove_backend_folders()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_killed_host_left_is_swept_by_the_next_one_and_a_living_ones_is_not(options, tmp_path):
    command = [sys.executable, "-c", HOST, str(tmp_path / "fast")]
    env = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    hosts = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    for host in hosts:
        assert host.stdout.readline() == "open\n"
    killed, living = hosts
    killed.kill()
    killed.communicate()
    assert len(databases(tmp_path)) == 2
    open_shard_backend(options, range(4))
    assert len(databases(tmp_path)) == 2, "the killed host's is gone, the living one's and ours are there"
    living.communicate("")
    assert len(databases(tmp_path)) == 1


def test_a_local_dir_that_cannot_be_made_is_refused_by_its_option(tmp_path):
    (tmp_path / "file").write_text("")
    options = {"state.backend.type": "rocksdb", "state.backend.rocksdb.local-dir": str(tmp_path / "file" / "x")}
    with pytest.raises(UnavailableError, match=r"set state\.backend\.rocksdb\.local-dir to a folder"):
        open_shard_backend(StateOptions.parse(options), range(4))


def test_the_heap_needs_no_files():
    backend = open_shard_backend(StateConfig().parsed, range(4))
    assert isinstance(backend, HeapBackend)


def test_the_backend_may_be_named_by_argument_or_by_option_but_not_by_both():
    assert StateConfig("rocksdb").backend == "rocksdb"
    assert StateConfig(options={"State.Backend.Type": "rocksdb"}).backend == "rocksdb"
    assert StateConfig().backend == "heap"
    with pytest.raises(OptionError, match="say the same twice; keep one"):
        StateConfig("heap", options={"State.Backend.Type": "rocksdb"})


def test_options_that_a_query_would_ignore_are_refused():
    with pytest.raises(OptionError, match=r"'state\.checkpoint-storage' has no effect in a Spark query"):
        StateConfig(options={"state.checkpoint-storage": "s3://bucket/states"})
    with pytest.raises(OptionError, match=r"'state\.backend\.rocksdb\.local-dir' has no effect"):
        StateConfig(options={"state.backend.rocksdb.local-dir": "/mnt"})


def test_a_heap_that_spills_has_its_host_s_share_of_an_executor_s_memory():
    limit = {"state.backend.spillable.memory-limit": "8gb"}
    config = StateConfig("spillable", options=limit).shared_by(4)
    assert (config.parsed.settings.hosts, config.parsed.settings.memory_limit_bytes) == (4, 8 << 30)
    backend = open_shard_backend(config.parsed, range(8))
    assert backend._maintenance._monitor.limit_bytes == 2 << 30
    other = open_shard_backend(config.parsed, range(8, 16))
    assert other._maintenance._monitor is backend._maintenance._monitor
    backend.close()
    other.close()
    assert StateConfig("heap").shared_by(4) == StateConfig("heap")


def test_a_heap_that_spills_is_opened_anew_where_its_share_of_the_memory_is_another():
    config = StateConfig("spillable")
    assert config.shared_by(4).opened_with == config.shared_by(2).shared_by(4).opened_with
    assert config.shared_by(4).opened_with != config.shared_by(2).opened_with


def test_where_only_the_executor_can_tell_the_hosts_there_is_one_a_processor():
    limit = {"state.backend.spillable.memory-limit": "64gb"}
    backend = open_shard_backend(StateConfig("spillable", options=limit).shared_by(0).parsed, range(8))
    assert backend._maintenance._monitor.limit_bytes == (64 << 30) // os.cpu_count()
    backend.close()

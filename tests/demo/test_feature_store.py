"""Each run has a place of its own for its features, and no password is written down."""

from contextlib import closing
from pathlib import Path

import pytest

from millpond.demo.feature_store import store_url
from millpond.errors import OptionError
from millpond.kv import Put, open_store


def test_without_a_url_features_lie_in_the_workdir_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a run, 100 %"
    folder.mkdir()
    with closing(open_store(store_url(None, folder, "run"))) as store:
        store.put_many("route", [Put(b"key", b"value")])
    assert (folder / "features.lmdb").exists()


def test_two_runs_on_one_redis_have_two_prefixes() -> None:
    urls = {store_url("redis://localhost:6379?timeout_ms=200", Path(), run) for run in ("one", "other")}
    assert urls == {f"redis://localhost:6379?timeout_ms=200&prefix=millpond-demo-{run}" for run in ("one", "other")}


def test_a_prefix_of_the_user_is_kept() -> None:
    assert store_url("redis://localhost?prefix=mine", Path(), "run") == "redis://localhost?prefix=mine"


def test_a_store_in_memory_is_refused() -> None:
    with pytest.raises(OptionError, match="memory of this process"):
        store_url("memory://", Path(), "run")

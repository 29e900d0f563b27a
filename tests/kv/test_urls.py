"""Stores by URL."""

from pathlib import Path

import pytest

from millpond.errors import OptionError
from millpond.kv import LmdbStore, MemoryStore, RedisStore, open_store


def test_each_scheme_is_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_store("redis+cluster://a:1,b:2"), RedisStore)
    assert isinstance(open_store("valkeys://a"), RedisStore)
    for url, path in (
        (f"lmdb://{tmp_path}/a%20b", tmp_path / "a b"),
        ("lmdb://folder/kv", Path("folder/kv").resolve()),
    ):
        store = open_store(f"{url}?sync=false&map_bytes=4mb")
        assert isinstance(store, LmdbStore)
        assert (store.path, store._sync, store._map_bytes) == (str(path), False, 4 << 20)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "names no store: known are memory://"),
        ("/var/lib/kv", "names no store"),
        ("memory://name", "no name and no options"),
        ("lmdb://", "a path is needed"),
        ("lmdb:///kv?synk=true", "'synk' is unknown; did you mean 'sync'"),
        ("lmdb:///kv?sync=perhaps", "'sync': expected true or false, got 'perhaps'"),
        ("redis://a?synk=true", "no option 'synk'"),
    ],
)
def test_what_is_no_store_is_refused(url, message):
    with pytest.raises(OptionError, match=message):
        open_store(url)


def test_a_password_is_not_told_by_an_error():
    with pytest.raises(OptionError) as told:
        open_store("redsi://ada:secret@host")
    assert "secret" not in str(told.value)

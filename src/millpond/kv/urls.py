"""Open a store by its URL, as a command line or a settings file gives it."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote

from millpond import options
from millpond.errors import OptionError
from millpond.kv.lmdb.store import LmdbStore
from millpond.kv.memory import MemoryStore
from millpond.kv.redis.store import RedisStore
from millpond.masking import masked, split_url

_LMDB_OPTIONS: options.Known = {
    "map_bytes": ("map_bytes", options.size_bytes()),
    "sync": ("sync", options.flag),
}


def open_store(url: str) -> MemoryStore | LmdbStore | RedisStore:
    """Return the store that a URL names; the query of the URL has its options. It may be used in a `with` statement.

    | URL | store |
    |---|---|
    | `memory://` | `MemoryStore`, a new one each time |
    | `lmdb:///var/lib/kv`, `lmdb://folder/kv?sync=false` | `LmdbStore`, by an absolute or a relative path |
    | `redis://`, `rediss://`, `valkey://`, `redis+cluster://` | `RedisStore` |

    Raises:
        OptionError: the URL names no store, or an option is unknown or wrong.

    >>> open_store("redis+cluster://one:7000,two:7000?prefix=shop&timeout_ms=200")
    RedisStore(one:7000, two:7000, prefix='shop')
    >>> open_store("redsi://localhost")
    Traceback (most recent call last):
    millpond.errors.OptionError: 'redsi://localhost' names no store: ...
    """
    parts = split_url(url, several_hosts=True)
    scheme = parts.scheme.lower()
    if scheme == "memory":
        if parts.netloc or parts.path or parts.query:
            raise OptionError(f"a store in memory has no name and no options: write memory://, got {masked(url)!r}")
        return MemoryStore()
    if scheme == "lmdb":
        return _lmdb_store(url)
    if scheme.partition("+")[0] in ("redis", "rediss", "valkey", "valkeys"):
        return RedisStore(url)
    known = "memory://, lmdb:///path, redis://host:port, valkey://host:port, redis+cluster://host:port,host:port"
    raise OptionError(f"{masked(url)!r} names no store: known are {known}")


def _lmdb_store(url: str) -> LmdbStore:
    parts = split_url(url, several_hosts=True)
    path = unquote(parts.netloc + parts.path)
    problems: list[str] = [] if path and "\0" not in path else ["a path is needed, such as lmdb:///var/lib/kv"]
    given = options.named(dict(parse_qsl(parts.query)), _LMDB_OPTIONS, problems)
    values = options.parsed(given, _LMDB_OPTIONS, problems)
    options.refuse_problems(f"the store {masked(url)!r}", problems)
    return LmdbStore(Path(path), **values)

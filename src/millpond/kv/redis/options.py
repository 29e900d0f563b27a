"""The options of a Redis store: the addresses of its servers, time limits, TLS.

Place on the data path: `RedisStore` and `AsyncRedisStore` are made from them. The options are plain values, so a store
can be pickled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from millpond.errors import OptionError
from millpond.masking import split_url
from millpond.suggestions import hint

_DEFAULT_PORT = 6379
_SCHEMES = {
    "redis": (False, False),
    "rediss": (False, True),
    "valkey": (False, False),
    "valkeys": (False, True),
    "redis+cluster": (True, False),
    "rediss+cluster": (True, True),
    "valkey+cluster": (True, False),
    "valkeys+cluster": (True, True),
}


class Address(NamedTuple):
    """Host and port of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class RedisOptions:
    """How to reach a server or a cluster.

    >>> options = redis_options("redis+cluster://ada:secret@one:7000,two:7001", {"prefix": "shop"})
    >>> options.is_cluster, options.prefix, [str(node) for node in options.nodes]
    (True, 'shop', ['one:7000', 'two:7001'])
    >>> "secret" in repr(options)
    False
    """

    nodes: tuple[Address, ...]
    is_cluster: bool = False
    tls: bool = False
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    prefix: str = "millpond"
    pool_size: int = 16
    timeout_ms: int = 1_000
    retry_ms: int = 5_000
    read_from: str = "primary"
    replicas: tuple[Address, ...] = ()
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise OptionError(f"the Redis store {self.nodes[0] if self.nodes else ''}: {problem}")

    def _problem(self) -> str | None:
        if not self.prefix or set(self.prefix) & set("{}"):
            return f"prefix is {self.prefix!r}; expected a name without braces, such as 'millpond'"
        for name in ("pool_size", "timeout_ms", "retry_ms"):
            if getattr(self, name) < 1:
                return f"{name} is {getattr(self, name)}; expected 1 or more"
        if self.read_from not in ("primary", "replicas"):
            return f"read_from is {self.read_from!r}; expected 'primary' or 'replicas'"
        if self.is_cluster and (self.replicas or self.database):
            return "a cluster knows its replicas and has the one database 0; leave both out of the URL"
        if (self.read_from == "replicas") != bool(self.replicas) and not self.is_cluster:
            return "read_from='replicas' and replicas='host:port,…' go together; a cluster needs no list of them"
        return None


_OPTIONS = {one.name for one in fields(RedisOptions)} - {
    "nodes",
    "is_cluster",
    "tls",
    "database",
    "username",
    "password",
}


def redis_options(url: str, options: Mapping[str, Any]) -> RedisOptions:
    """Return the options in a URL and in `options`, which take precedence over the URL's query.

    Raises:
        OptionError: the URL is invalid, or an option is unknown or out of its range.
    """
    parts = split_url(url, "redis://host:port", several_hosts=True)
    if parts.scheme not in _SCHEMES:
        raise OptionError(f"a Redis store's URL begins with one of {', '.join(_SCHEMES)}; got {parts.scheme!r}")
    given: dict[str, Any] = {}
    for name, value in {**dict(parse_qsl(parts.query)), **options}.items():
        if name not in _OPTIONS:
            raise OptionError(f"a Redis store has no option {name!r}; {hint(name, sorted(_OPTIONS))}")
        given[name] = _parsed(name, value)
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise OptionError(f"a Redis store's URL ends with the number of a database, such as /0; got {parts.path!r}")
    is_cluster, tls = _SCHEMES[parts.scheme]
    addresses = _addresses(hosts or "localhost")
    if not is_cluster and len(addresses) > 1:
        raise OptionError(f"{parts.scheme}:// names one server, got {hosts!r}; for a cluster write redis+cluster://")
    return RedisOptions(
        nodes=addresses,
        is_cluster=is_cluster,
        tls=tls,
        database=int(database or 0),
        username=unquote(username) or None,
        password=unquote(password) or None,
        **given,
    )


def _parsed(name: str, value: Any) -> Any:
    if name == "replicas":
        return _addresses(value) if isinstance(value, str) else tuple(Address(*one) for one in value)
    if name in ("pool_size", "timeout_ms", "retry_ms"):
        if isinstance(value, bool) or not str(value).isdecimal():
            raise OptionError(f"a Redis store's {name} is {value!r}; expected a whole number of 1 or more")
        return int(value)
    return value


def _addresses(text: str) -> tuple[Address, ...]:
    found = []
    for one in text.split(","):
        try:
            parts = urlsplit(f"//{one}")
            found.append(Address(parts.hostname or "localhost", parts.port or _DEFAULT_PORT))
        except ValueError as error:
            raise OptionError(f"a Redis store's server is host:port, got {one!r} ({error})") from error
    return tuple(found)

"""A Redis store's URL and options: what they mean, and what is refused."""

import pytest

from millpond.errors import OptionError
from millpond.kv.redis.options import Address, RedisOptions, redis_options


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", RedisOptions((Address("localhost", 6379),))),
        ("valkey://host:1/3", RedisOptions((Address("host", 1),), database=3)),
        ("rediss://[::1]:7", RedisOptions((Address("::1", 7),), tls=True)),
        ("redis://:p%40ss@h", RedisOptions((Address("h", 6379),), password="p@ss")),  # noqa: S106
        (
            "rediss+cluster://ada:x@a:1,b:2?pool_size=3&timeout_ms=5&retry_ms=7&prefix=p",
            RedisOptions(
                (Address("a", 1), Address("b", 2)),
                is_cluster=True,
                tls=True,
                username="ada",
                password="x",  # noqa: S106
                pool_size=3,
                timeout_ms=5,
                retry_ms=7,
                prefix="p",
            ),
        ),
        (
            "redis://a?read_from=replicas&replicas=b:1,c:2",
            RedisOptions((Address("a", 6379),), read_from="replicas", replicas=(Address("b", 1), Address("c", 2))),
        ),
    ],
)
def test_a_url_says_where_and_how(url, expected):
    assert redis_options(url, {}) == expected


def test_an_argument_counts_more_than_the_query():
    assert redis_options("redis://a?prefix=query", {"prefix": "argument"}).prefix == "argument"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("http://a", {}, "begins with one of redis, rediss"),
        ("redis://a,b", {}, r"names one server.*redis\+cluster://"),
        ("redis://a:port", {}, "a Redis store's server is host:port, got 'a:port'"),
        ("redis://a/main", {}, "ends with the number of a database"),
        ("redis://a?timeout=5", {}, "no option 'timeout'; did you mean 'timeout_ms'"),
        ("redis://a", {"timeout_ms": 0}, "timeout_ms is 0; expected 1 or more"),
        ("redis://a?pool_size=many", {}, "pool_size is 'many'; expected a whole number"),
        ("redis://a", {"prefix": "a{b"}, "prefix is 'a{b'; expected a name without braces"),
        ("redis://a", {"prefix": ""}, "prefix is ''"),
        ("redis://a", {"read_from": "anyone"}, "read_from is 'anyone'"),
        ("redis://a", {"read_from": "replicas"}, "go together"),
        ("redis://a", {"replicas": "b:1"}, "go together"),
        ("redis+cluster://a/1", {}, "a cluster knows its replicas and has the one database 0"),
    ],
)
def test_what_is_wrong_is_named(url, options, message):
    with pytest.raises(OptionError, match=message):
        redis_options(url, options)

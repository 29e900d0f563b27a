"""Hide secrets in the texts that Millpond shows.

A URL or DSN may contain a password, a token or a signature. Errors, logs, metrics and plans are read by people
who may not know these. So every text that shows a source, a store, a location or an address, or quotes another
library's error about one, passes through `masked`.

In doubt the text is hidden: a name that could be a token is hidden too.
"""

import re
from urllib.parse import SplitResult, urlsplit

from millpond.errors import OptionError

HIDDEN = "***"

_NAME = (
    r"[\w.\-]*(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|credential|signature|api[_\-]?key|access[_\-]?key|"
    r"account[_\-]?key|private[_\-]?key|shared[_\-]?key|authorization|auth)[\w.\-]*|(?<=[?&])(?:sig|key)|x-amz-[\w\-]+|x-goog-[\w\-]+"
)
_VALUE = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\{[^}]*\}|[^\s&;,#'\")}\]]+"

_USER = re.compile(r"(?<=//)(?P<user>[^\s:/?#@]*):(?!\d{1,5}(?:[/?#,\s'\"]|$))\S*@")
"""User and password. The password may have characters that should have been percent-encoded."""

_TOKEN = re.compile(r"(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)(?<=://)[^\s:/?#@]+@")
"""Userinfo without a password, which may be a token. In Azure's URLs it is the container, and is shown."""

_NAMED = re.compile(rf"(?P<name>(?<![\w.\-])(?:{_NAME})[\"']?\s*(?:=|:(?!//))\s*)(?P<value>{_VALUE})", re.IGNORECASE)
_SCHEME = re.compile(r"\b(?P<scheme>Bearer|Basic|Token)\s+(?=[\w\-.~+/]*[\d\-._~+/=])[\w\-.~+/]{6,}=*", re.IGNORECASE)


def masked(text: object) -> str:
    """Return a URL, a DSN, a header, or a text that quotes one, with its secrets hidden.

    >>> masked("postgresql://ada:se:cr@t@db:5432/shop?sslmode=require&password=x1")
    'postgresql://ada:***@db:5432/shop?sslmode=require&password=***'
    >>> masked("host=db user=ada password='a b' dbname=shop")
    'host=db user=ada password=*** dbname=shop'
    >>> masked("s3://bucket/planes?X-Amz-Signature=abcdef, Authorization: Bearer eyJhbGciOi.x1")
    's3://bucket/planes?X-Amz-Signature=***, Authorization: ***'
    """
    shown = _SCHEME.sub(rf"\g<scheme> {HIDDEN}", str(text))
    shown = _USER.sub(rf"\g<user>:{HIDDEN}@", shown)
    shown = _TOKEN.sub(f"{HIDDEN}@", shown)
    shown = _NAMED.sub(rf"\g<name>{HIDDEN}", shown)
    return shown.replace(f"{HIDDEN} {HIDDEN}", HIDDEN)


def split_url(url: str, like: str = "scheme://host:port/path", *, several_hosts: bool = False) -> SplitResult:
    """Split a URL, and check that its host and port can be read, unless it may have several hosts.

    `like` is an example for the error.

    Raises:
        OptionError: it is not a URL.

    >>> split_url("http://ada:secret@[half")
    Traceback (most recent call last):
    millpond.errors.OptionError: 'http://ada:***@[half' is no URL: Invalid IPv6 URL; expected something like ...
    """
    try:
        parts = urlsplit(url)
        if not several_hosts:
            _ = parts.hostname, parts.port
    except (ValueError, UnicodeError) as error:
        # Not `from error`: the cause may quote the secret.
        raise OptionError(f"{masked(url)!r} is no URL: {masked(error)}; expected something like {like}") from None
    return parts


def tellable(error: BaseException) -> BaseException | None:
    """Return the error if another one may be raised from it; None if it or one of its causes contains a secret.

    >>> tellable(ValueError("no such host: db")), tellable(ValueError("cannot read s3://key:secret@bucket"))
    (ValueError('no such host: db'), None)
    """
    link: BaseException | None = error
    while link is not None:
        if masked(link) != str(link):
            return None
        link = link.__cause__ or link.__context__
    return error

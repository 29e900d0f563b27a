"""Text without secrets: the one function between what a user gave and what Millpond shows.

A URL or DSN may carry a password, a token or a signature, and errors, logs, metrics and plans are read by
more people than may know them. So whatever shows a source, a store, a location or an address, or quotes
another library's error about one, goes through `masked`.

The rule errs towards hiding: a name that could be a token is hidden as well as one that is.
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
"""User and password; the password may have characters that should have been quoted."""

_TOKEN = re.compile(r"(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)(?<=://)[^\s:/?#@]+@")
"""Userinfo without a password, which may be a token; with Azure it is the container."""

_NAMED = re.compile(rf"(?P<name>(?<![\w.\-])(?:{_NAME})[\"']?\s*(?:=|:(?!//))\s*)(?P<value>{_VALUE})", re.IGNORECASE)
_SCHEME = re.compile(r"\b(?P<scheme>Bearer|Basic|Token)\s+(?=[\w\-.~+/]*[\d\-._~+/=])[\w\-.~+/]{6,}=*", re.IGNORECASE)


def masked(text: object) -> str:
    """What may be shown of a URL, a DSN, a header, or a text that quotes one.

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
    """The parts of a URL, of which host and port can be read, unless it may name several; `like` is for the error.

    Raises:
        OptionError: it is none.

    >>> split_url("http://ada:secret@[half")
    Traceback (most recent call last):
    millpond.errors.OptionError: 'http://ada:***@[half' is no URL: Invalid IPv6 URL; expected something like ...
    """
    try:
        parts = urlsplit(url)
        if not several_hosts:
            _ = parts.hostname, parts.port
    except (ValueError, UnicodeError) as error:
        # Not `from` it: the cause may quote what is hidden here.
        raise OptionError(f"{masked(url)!r} is no URL: {masked(error)}; expected something like {like}") from None
    return parts


def tellable(error: BaseException) -> BaseException | None:
    """An error to raise another one from; None where it, or what it came from, tells a secret.

    >>> tellable(ValueError("no such host: db")), tellable(ValueError("cannot read s3://key:secret@bucket"))
    (ValueError('no such host: db'), None)
    """
    link: BaseException | None = error
    while link is not None:
        if masked(link) != str(link):
            return None
        link = link.__cause__ or link.__context__
    return error

"""The address of a service, and the certificates to trust there.

Place on the data path: both clients are made from it.
"""

import ssl
from pathlib import Path
from typing import NamedTuple

from millpond.errors import OptionError
from millpond.masking import masked, split_url


class Address(NamedTuple):
    """The address of a service; `url` has no secrets and may be shown."""

    url: str
    host: str
    port: int
    is_tls: bool


def address_of(url: str) -> Address:
    """Parse the URL of a service.

    Raises:
        OptionError: it is not the URL of a service.

    >>> address_of("http://127.0.0.1:8765").port
    8765
    """
    parts = split_url(url, "http://127.0.0.1:8765")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
        raise OptionError(f"url is {masked(url)!r}; expected something like http://127.0.0.1:8765")
    is_tls = parts.scheme == "https"
    return Address(masked(url), parts.hostname, parts.port or (443 if is_tls else 80), is_tls)


def tls_context(address: Address, ca_file: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for https; None for http."""
    if not address.is_tls:
        return None
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:
        raise OptionError(f"ca_file {ca_file} cannot be read: {error}.") from error


def checked_pool_size(size: int) -> int:
    """Return the number of connections that a client may have; raise `OptionError` if it is not a number above 0."""
    if type(size) is not int or size < 1:
        raise OptionError(f"pool_size is {size!r}; a whole number from 1 on is needed.")
    return size

"""Where the run keeps its features: LMDB in the workdir, or a store that the user named.

Beside the demo's data path. Several runs may share one Redis: each has a prefix of its own there, so that
none reads what another wrote. Passwords stay out of what is written down.
"""

from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlunsplit

from millpond.errors import OptionError
from millpond.masking import masked, split_url

LMDB = "features.lmdb"


def store_url(given: str | None, workdir: Path, run: str) -> str:
    """The URL of the store of a run.

    Args:
        given: what the user named; None is LMDB in the workdir.
        workdir: the folder of the run.
        run: names the run.

    Raises:
        OptionError: the store is in the memory of one process.

    >>> store_url(None, Path("/tmp/run"), "4f")
    'lmdb:///tmp/run/features.lmdb'
    >>> store_url("redis://localhost:6379", Path("/tmp/run"), "4f")
    'redis://localhost:6379?prefix=millpond-demo-4f'
    """
    if given is None:
        return f"lmdb://{quote(str((workdir / LMDB).resolve()))}"
    parts = split_url(given)
    if parts.scheme.lower() == "memory":
        raise OptionError(
            f"--store {masked(given)}: Spark's workers cannot write into the memory of this process. "
            "Give lmdb:///path or redis://host:port, or leave it out."
        )
    if parts.scheme.lower() == "lmdb" or "prefix" in dict(parse_qsl(parts.query)):
        return given
    own = urlencode({"prefix": f"millpond-demo-{run}"})
    return urlunsplit(parts._replace(query=f"{parts.query}&{own}" if parts.query else own))

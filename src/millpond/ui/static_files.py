"""The static files of the page, and their headers.

Place on the data path: beside it. The files are read once. Every path in the page is relative, so a proxy may serve it
under a prefix that it strips.

Invariant: the content security policy lets a browser run only the page's own scripts. The HTML contains no script or
style, and text never becomes markup.
"""

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""The content security policy: what a browser may load and run."""

MAX_BYTES = 300_000
"""The limit on the size of all files together."""

GUARDS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
"""The security headers of every file and of every view's document."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file to send: its body, its ETag, and all its headers except the length."""

    body: bytes
    etag: str
    headers: dict[str, str]


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all files by their URL path. The page itself is at ``/``.

    >>> sorted(static_files())[:2]
    ['/', '/ui/app.css']
    """
    found = {}
    for name, entry in _entries(files("millpond.ui") / "static", ""):
        body = entry.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {
            "content-type": _TYPES[name.rpartition(".")[2]],
            # A browser asks each time for a newer version; if there is none, the answer takes only a few bytes.
            "cache-control": "no-cache",
            "etag": etag,
            **GUARDS,
        }
        found["/" if name == "index.html" else f"/ui/{name}"] = StaticFile(body, etag, headers)
    return found


def _entries(folder: Traversable, before: str) -> list[tuple[str, Traversable]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _entries(entry, f"{before}{entry.name}/")
        else:
            found.append((before + entry.name, entry))
    return found

"""The files of the page, and the headers with which they are sent.

Place on the data path: beside it. The files are read once. Every path in the page is relative, so a proxy may put a
prefix before it and strip it again.

Invariant: the policy of content lets a browser run the page's own scripts, and nothing else. There is no script or
style within the HTML, and no text ever becomes markup.
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
"""What a browser may load and run."""

MAX_BYTES = 300_000
"""What all files may take together."""

GUARDS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every file and of every document of a view."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file as it is sent: its body, its mark for caches, and all its headers but the length."""

    body: bytes
    etag: str
    headers: dict[str, str]


@cache
def static_files() -> dict[str, StaticFile]:
    """Give all files by the path at which they are asked for; the page itself is at ``/``.

    >>> sorted(static_files())[:2]
    ['/', '/ui/app.css']
    """
    found = {}
    for name, entry in _entries(files("millpond.ui") / "static", ""):
        body = entry.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {
            "content-type": _TYPES[name.rpartition(".")[2]],
            # A browser asks each time whether there is a newer one, and is told in a few bytes that there is none.
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

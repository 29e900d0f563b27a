"""What MkDocs does beside its own work: the pages read the same on the forge, on a package index and on the site.

A page links to its neighbours by paths within the repository, as every forge understands them. The site has only
`docs/`, so this hook

- adds the pages that lie at the repository's root, and the pictures of the benchmarks;
- adds a page for each public package, whose text mkdocstrings takes from the docstrings;
- points each link that leaves `docs/` at one of those, or at the forge where the site has no such page;
- leaves out comments: code that the tests run and readers need not see.
"""

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FORGE = "https://github.com/millpond/millpond/blob/main"

ROOT_PAGES = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
"""Pages at the repository's root, and where the site has them."""

PICTURES = "benchmarks/results"
PACKAGES = (
    "spark",
    "state",
    "state.spi",
    "lookup",
    "features",
    "kv",
    "serving",
    "cache",
    "metrics",
    "errors",
    "doctor",
)
"""What is public of `millpond`, in the order of the data path."""

SHADOWED = {"kv": "millpond.kv.async_store.async_store"}
"""A function that has the name of its module, which mkdocstrings would show in its place."""

_COMMENT = re.compile(r"^<!--.*?-->\n?", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\(|\bsrc=\"|\bhref=\")(?!https?:|mailto:|#|/)([^)\"#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that do not lie in `docs/`."""
    for path, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for picture in sorted((ROOT / PICTURES).glob("*.png")):
        files.append(File.generated(config, f"images/{picture.name}", abs_src_path=str(picture)))
    for package in PACKAGES:
        content = f"# millpond.{package}\n\n::: millpond.{package}\n"
        if package in SHADOWED:
            content += f"\n::: {SHADOWED[package]}\n    options:\n      show_root_heading: true\n"
        files.append(File.generated(config, f"reference/api/{package}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave out comments, and point links at what the site has."""
    del config
    uris = {posixpath.join("docs", file.src_uri): file.src_uri for file in files}
    uris |= ROOT_PAGES
    uris |= {f"{PICTURES}/{Path(uri).name}": uri for uri in uris.values() if uri.endswith(".png")}
    here = page.file.src_uri
    source = next((path for path, uri in ROOT_PAGES.items() if uri == here), posixpath.join("docs", here))

    def pointed(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if target not in uris:
            return f"{link[1]}{FORGE}/{target}"
        return link[1] + os.path.relpath(uris[target], posixpath.dirname(here) or ".")

    return _outside_code(_COMMENT.sub("", markdown), lambda text: _LINK.sub(pointed, text))


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a change to what is not in fences."""
    pieces, last = [], 0
    for fence in _FENCED.finditer(markdown):
        pieces += [change(markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*pieces, change(markdown[last:])])

"""The documentation site builds without a warning, asks nobody else for anything, and has all that is public."""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_public_api import PUBLIC

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
WITH_PAGE = sorted(package for package, names in PUBLIC.items() if names.split() and package != "millpond")
"""What exports something of its own: the names of `millpond` are those of `millpond.errors`."""

_LOADED = re.compile(
    r"<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=\"?([^\">\s]+)|url\(([^)]*)\)|@import +(\S+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [Path(sys.executable).parent / "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_on_the_site_and_can_be_searched(site):
    indexed = json.loads((site / "search/search_index.json").read_text())["docs"]
    found = {entry["location"].partition("#")[0] for entry in indexed}
    wanted = {re.sub(r"(^|/)README\.md$", r"\1index.md", page).removesuffix(".md") + ".html" for page in PAGES}
    assert wanted - found == set()


def test_the_site_loads_nothing_from_elsewhere(site):
    loaded = {
        next(filter(None, found.groups())).strip("'\"")
        for path in site.rglob("*")
        if path.suffix in {".html", ".css"}
        for found in _LOADED.finditer(path.read_text())
    }
    assert len(loaded) > 10
    assert [address for address in sorted(loaded) if re.match(r"(https?:)?//", address)] == []


def test_no_page_has_the_code_that_readers_need_not_see(site):
    page = (site / "how-to/lookup.html").read_text()
    assert "LookupTable" in page
    assert "run first" not in page


@pytest.mark.parametrize("package", WITH_PAGE)
def test_the_reference_has_every_public_name(site, package):
    page = (site / f"reference/api/{package.removeprefix('millpond.')}.html").read_text()
    names = importlib.import_module(package).__all__
    anchored = set(re.findall(r'id="([\w.]+)"', page))
    own = [{f"{package}.{name}", f"{package}.{name}.{name}"} for name in names]  # the second: in a module of its name
    assert [name for name in own if not name & anchored] == []


def test_a_link_within_the_repository_leads_to_a_page_of_the_site_or_to_the_forge(site):
    page = (site / "explanation/spillable.html").read_text()
    assert 'src="../images/flip50.png"' in page
    readme = (site / "project/readme.html").read_text()
    assert 'href="../how-to/migrate.html"' in readme
    assert 'href="https://github.com/millpond/millpond/blob/main/LICENSE"' in readme


def test_a_doctest_of_a_docstring_is_fenced():
    fenced = runpy.run_path(str(ROOT / "scripts/site_docstrings.py"))["fenced"]
    assert fenced("Adds.\n\n    >>> for n in (1, 2):\n    ...     print(n)\n    1\n    2\n\nEnd.") == (
        "Adds.\n\n    ```pycon\n    >>> for n in (1, 2):\n    ...     print(n)\n    1\n    2\n    ```\n\nEnd."
    )
    assert fenced("No code >>> here.") == "No code >>> here."

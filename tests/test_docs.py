"""The README and the docs are true: their Python runs, their links lead somewhere.

Every block marked `python` runs, the blocks of one page in order and sharing their names, as a reader
would type them. What a reader need not see stands in a comment, `<!-- run first` ... `-->`, and runs in
its place. A block that cannot run has `<!-- not run: the reason -->` on the line above it. A page whose
code asks for the name `spark` gets the tests' session.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.state.options import registry

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])

_CODE = re.compile(
    r"^<!-- run first\n(?P<hidden>.*?)^-->$"
    r"|(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```python\n(?P<shown>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?:\]\(|src=\"|href=\")(?!https?:|mailto:|#)([^)\"#\s]+)")


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and code of every block that runs."""
    text = page.read_text()
    for match in _CODE.finditer(text):
        if match["reason"] is None:
            kind = "hidden" if match["hidden"] is not None else "shown"
            yield text.count("\n", 0, match.start(kind)), match[kind]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _asks_for_spark(page: Path) -> bool:
    return any(re.search(r"\bspark\b\.", code) for _, code in blocks(page))


WITH_CODE = [page for page in PAGES if any(blocks(page))]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a page in an empty folder; what it registers is gone with it."""
    monkeypatch.setattr(registry, "_BACKENDS", registry._BACKENDS.copy())
    monkeypatch.chdir(tmp_path)

    def run(page: Path, **names: object) -> None:
        names["__name__"] = "page"
        for line, code in blocks(page):
            exec(compile("\n" * line + code, str(page), "exec"), names)  # noqa: S102 - our own pages

    return run


@pytest.mark.parametrize("page", [page for page in WITH_CODE if not _asks_for_spark(page)], ids=_name)
def test_the_python_on_the_page_runs(page, run):
    run(page)


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in WITH_CODE if _asks_for_spark(page)], ids=_name)
def test_the_python_on_the_page_runs_on_spark(page, run, spark):
    run(page, spark=spark)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_links_on_the_page_lead_to_files(page):
    dangling = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert dangling == []


def anchors(page: Path) -> set[str]:
    """What links can name of a page: its headings, as forges and the site make anchors of them."""
    text = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", said.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_links_on_the_page_lead_to_headings(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    dangling = [
        f"{path}#{anchor}"
        for path, anchor in links
        if not path or path.endswith(".md")
        if anchor not in anchors((page.parent / path) if path else page)
    ]
    assert dangling == []


def test_a_list_item_holds_only_what_forges_and_the_site_read_alike():
    """The site wants four spaces where a forge takes two: before a table, a list or a paragraph within an item."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        found = re.findall(r"^ {1,3}(?:\||[-*] ).*$|^\n {1,3}\S.*$|^[^\s|-].*\n- .*$", text, re.MULTILINE)
        assert found == [], page


def test_a_block_runs_unless_a_reason_is_given(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run first\nfirst = 1\n-->\n```python\nsecond = 2\n```\n"
        "<!-- not run: needs a cluster -->\n```python\nthird = 3\n```\n```sh\nls\n```\n"
    )
    assert list(blocks(page)) == [(1, "first = 1\n"), (4, "second = 2\n")]

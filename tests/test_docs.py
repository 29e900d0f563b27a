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

from millpond.state import registry

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

_CODE = re.compile(
    r"^<!-- run first\n(?P<hidden>.*?)^-->$"
    r"|(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```python\n(?P<shown>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?:\]\(|src=\"|href=\")(?!https?:|mailto:|#)([^)\"#\s]+)")


def _blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and code of every block that runs."""
    text = page.read_text()
    for match in _CODE.finditer(text):
        if match["reason"] is None:
            kind = "hidden" if match["hidden"] is not None else "shown"
            yield text.count("\n", 0, match.start(kind)), match[kind]


def _names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.parametrize("page", pages := [page for page in PAGES if any(_blocks(page))], ids=_names(pages))
def test_the_python_on_the_page_runs(page, request, tmp_path, monkeypatch):
    # What a page registers is gone with the page.
    monkeypatch.setattr(registry, "_BACKENDS", registry._BACKENDS.copy())
    monkeypatch.chdir(tmp_path)
    blocks = list(_blocks(page))
    names: dict[str, object] = {"__name__": "page"}
    if any(re.search(r"\bspark\b\.", code) for _, code in blocks):
        names["spark"] = request.getfixturevalue("spark")
    for line, code in blocks:
        exec(compile("\n" * line + code, str(page), "exec"), names)  # noqa: S102 - our own pages


@pytest.mark.parametrize("page", PAGES, ids=_names(PAGES))
def test_the_links_on_the_page_lead_to_files(page):
    dangling = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert dangling == []


def test_a_block_runs_unless_a_reason_is_given(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run first\nfirst = 1\n-->\n```python\nsecond = 2\n```\n"
        "<!-- not run: needs a cluster -->\n```python\nthird = 3\n```\n```sh\nls\n```\n"
    )
    assert list(_blocks(page)) == [(1, "first = 1\n"), (4, "second = 2\n")]

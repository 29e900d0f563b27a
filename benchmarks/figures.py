"""Copies measured tables into the pages that quote them (`make figures`).

A page quotes a benchmark between two comments, `<!-- figures: NAME -->` and `<!-- end of figures -->`.
What stands between them is `results/NAME.md`, as the benchmark's last run wrote it, or a line saying
that it was not measured yet. A test holds the pages to that, so no figure is typed by hand.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import RESULTS

_ROOT = Path(__file__).parents[1]
_QUOTE = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def pages(root: Path = _ROOT) -> Iterator[Path]:
    """The pages that may quote a benchmark."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def filled(text: str, results: Path = RESULTS) -> str:
    r"""The page's text with every quoted table as it was last measured.

    >>> print(filled("<!-- figures: unmeasured -->\n<!-- end of figures -->", Path("nowhere")))
    <!-- figures: unmeasured -->
    Not measured yet: `.venv/bin/python -m benchmarks.unmeasured`
    <!-- end of figures -->
    """

    def quote(match: re.Match[str]) -> str:
        name = match[2]
        measured = results / f"{name}.md"
        table = measured.read_text(encoding="utf-8") if measured.exists() else _unmeasured(name)
        return f"{match[1]}{table}{match[3]}"

    return _QUOTE.sub(quote, text)


def _unmeasured(name: str) -> str:
    return f"Not measured yet: `.venv/bin/python -m benchmarks.{name}`\n"


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")

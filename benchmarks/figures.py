"""Copies measured tables into the pages that quote them (`make figures`).

A page quotes a benchmark between two comments, `<!-- figures: NAME -->` and `<!-- end of figures -->`.
What stands between them is `results/NAME.md` and its picture, as the benchmark's last run wrote them,
or a line saying that it was not measured yet. A test holds the pages to that, so no figure is typed by hand.
"""

import os
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


def filled(page: Path, results: Path = RESULTS) -> str:
    """The page's text with every quoted table, and its picture, as they were last measured."""

    def quote(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        table = results / f"{name}.md"
        if not table.exists():
            return f"{opening}Not measured yet: `.venv/bin/python -m benchmarks.{name}`\n{closing}"
        picture = os.path.relpath(results / f"{name}.png", page.parent)
        return f"{opening}{table.read_text(encoding='utf-8')}\n![{name.replace('_', ' ')}]({picture})\n{closing}"

    return _QUOTE.sub(quote, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page), encoding="utf-8")
